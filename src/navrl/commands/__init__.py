"""The commands of `navrl`, one file each: `register(subparsers)` adds a command, `run(arguments)`
carries it out.
"""

from navrl.commands import (
    bench,
    checkpoints,
    convert,
    curves,
    demo,
    doctor,
    evaluate,
    export,
    inspect,
    model_registry,
    node,
    rehearse,
    replay,
    report,
    rollouts,
    settings,
    sync,
    train,
    video,
    world,
)

COMMANDS = (
    demo,
    train,
    evaluate,
    export,
    node,
    rehearse,
    replay,
    video,
    curves,
    report,
    world,
    inspect,
    checkpoints,
    model_registry,
    rollouts,
    convert,
    sync,
    settings,
    doctor,
    bench,
)
