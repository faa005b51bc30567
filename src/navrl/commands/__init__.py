"""The commands of `navrl`, one file each: `register(subparsers)` adds a command, `run(arguments)`
carries it out.
"""

from navrl.commands import (
    bench,
    checkpoints,
    convert,
    curves,
    evaluate,
    export,
    inspect,
    model_registry,
    report,
    rollouts,
    sync,
    train,
    world,
)

COMMANDS = (
    train,
    evaluate,
    export,
    curves,
    report,
    world,
    inspect,
    checkpoints,
    model_registry,
    rollouts,
    convert,
    sync,
    bench,
)
