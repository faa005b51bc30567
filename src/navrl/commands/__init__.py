"""The commands of `navrl`, one file each: `register(subparsers)` adds a command, `run(arguments)` carries it out."""

from navrl.commands import bench, train, world

COMMANDS = (train, world, bench)
