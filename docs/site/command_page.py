"""The reference of the command line: what `navrl COMMAND --help` prints, for every command."""

from __future__ import annotations

import argparse
import os

from navrl.cli import make_parser
from navrl.commands.candidates import command_parsers


def command_page() -> str:
    """Return the page of all commands and their actions."""
    os.environ["COLUMNS"] = "100"  # argparse wraps to the terminal
    parser = make_parser()
    lines = ["# Commands", "What `navrl COMMAND --help` prints.", _help(parser)]
    for name, command in command_parsers(parser).items():
        lines += [f"## {name}", _help(command)]
        for action, inner in command_parsers(command).items():
            lines += [f"### {name} {action}", _help(inner)]
    return "\n\n".join(lines) + "\n"


def _help(parser: argparse.ArgumentParser) -> str:
    return f"```text\n{parser.format_help().rstrip()}\n```"
