"""How `--help` is laid out: descriptions wrapped, examples as they are written."""

from __future__ import annotations

import argparse
import textwrap

from navrl.commands.candidates import command_parsers

__all__ = ["HelpText", "lay_out"]


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Wraps a text of one line to the terminal, and leaves one of several lines alone."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def lay_out(parser: argparse.ArgumentParser) -> None:
    """Lay out the help of a parser, and of all its commands, with `HelpText`."""
    parser.formatter_class = HelpText
    for command in command_parsers(parser).values():
        lay_out(command)
