"""The command line, one command a file of `commands/`: parse, call the library, print; nothing else
prints.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence

from navrl import __version__
from navrl.commands import COMMANDS
from navrl.commands.candidates import command_parsers
from navrl.commands.help_text import lay_out
from navrl.errors import NavrlError, missing_extra, nearest_name
from navrl.lazy import TRAINING

EPILOG = """examples:
  navrl demo                                         watch the policy in the package: writes demo.html
  navrl train                                        train a policy in about twelve minutes, evaluate it, leave a model
  navrl train resume=auto                            resume where it stopped
  navrl eval pretrained                              fly the policy in the package over unseen worlds
  navrl world --png world.png                        look at a world from above
  navrl robot new my_robot.yaml                      describe your robot: navrl train robot=my_robot.yaml
  navrl inspect checkpoint.pt --verify               what is inside a checkpoint, and whether it is whole
  navrl models register policy runs/mine             keep a model under a name: navrl eval policy
  navrl settings lidar                               every setting that mentions a word
  eval "$(navrl completion bash)"                    complete commands and settings in the shell
  navrl bench simulator --check                      measure the simulator beside MuJoCo and PyTorch
"""  # noqa: E501


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of every command; building it imports nothing heavy."""
    parser = argparse.ArgumentParser(
        prog="navrl",
        description="Train a drone to fly to a goal among static and moving obstacles.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"navrl {__version__}")
    subparsers = parser.add_subparsers(dest="chosen", required=True, metavar="command")
    for command in COMMANDS:
        command.register(subparsers)
    lay_out(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 a check or a save failed, 2 a
    mistake in the input.
    """
    parsed = _parse(sys.argv[1:] if arguments is None else list(arguments))
    try:
        code = int(parsed.run(parsed))
        sys.stdout.flush()
        return code
    except NavrlError as error:
        print(f"navrl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("navrl: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name not in TRAINING:
            raise
        told = missing_extra(f"`navrl {parsed.chosen}` needs {error.name}", "train")
        print(f"navrl: {told}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 128 + signal.SIGPIPE
        missing = isinstance(error, FileNotFoundError)
        # elsewhere it is the path that was typed; in a training it may be anything
        paths = [each for each in (error.filename, error.filename2) if isinstance(each, str)]
        if not paths or not error.strerror or (parsed.chosen == "train" and not missing):
            raise
        reason = "no such file or folder" if missing else error.strerror.lower()
        print(f"navrl: {' -> '.join(paths)}: {reason}", file=sys.stderr)
        return 2


def _reader_is_gone() -> bool:
    """Return whether what read the output has closed the pipe, as `| head` does; drop the rest."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)
    if not any(events & select.POLLERR for _, events in pipe.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _parse(typed: list[str]) -> argparse.Namespace:
    """Return the command with its arguments, or exit with a message about what is wrong."""
    parser = make_parser()
    commands = command_parsers(parser)
    if not typed:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if typed[0] == "help":
        typed = [*typed[1:2], "--help"]
    if not typed[0].startswith("-") and typed[0] not in commands:
        begun = [name for name in commands if typed[0].startswith(name)]  # `evaluate` for `eval`
        near = nearest_name(typed[0], commands) or nearest_name("".join(begun[:1]), begun)
        parser.error(f"unknown command {typed[0]!r}.{near} `navrl --help` lists all")
    if typed[0] not in commands and not _options_like(typed[0], parser):
        known = list(parser._option_string_actions)
        parser.error(f"unknown option {typed[0]!r}.{nearest_name(typed[0], known)}")
    parsed, late = parser.parse_known_args(typed)
    command = commands[parsed.chosen]
    if late and not (
        hasattr(parsed, "overrides")
        and all("=" in word and not word.startswith("-") for word in late)
    ):
        command.error(f"unrecognized arguments: {' '.join(late)}{_advice(late, command, parsed)}")
    if late:
        parsed.overrides.extend(late)  # settings may stand behind options too
    return parsed


def _options_like(word: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the options that a word is, or begins."""
    return [name for name in parser._option_string_actions if name.startswith(word.split("=")[0])]


def _advice(late: list[str], command: argparse.ArgumentParser, parsed: argparse.Namespace) -> str:
    """Return what was probably meant by an option that does not exist, such as `--seed`."""
    word = next((word.split("=")[0] for word in late if word.startswith("-")), "")
    if not word:
        return ""
    near = nearest_name(word, command._option_string_actions)
    if near or not hasattr(parsed, "overrides"):
        return f".{near}" if near else ""
    from navrl.conf.setting_names import config_groups, setting_types

    setting = word.lstrip("-").replace("-", "_")
    near = nearest_name(setting, [*setting_types(), *config_groups()])
    return f".{near} Settings have no dashes: key=value, such as seed=1"


if __name__ == "__main__":
    sys.exit(main())
