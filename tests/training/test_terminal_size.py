"""The live panel on a real terminal: it fits, survives a resize, and says what is going on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

PATIENCE = 60.0  # s
SHOW = """
import sys
from rich.console import Console
from navrl.training.display import open_display
sys.path[:0] = {tests!r}
from test_display import FULL
with open_display(Console(), "navrl train: runs/mine") as display:
    for word in open({orders}, encoding="utf-8"):
        name, _, argument = word.strip().partition(" ")
        display.update(FULL) if name == "update" else getattr(display, name)(argument)
"""


class Screen:
    """A terminal of so many columns and rows: what a program that writes to it leaves visible."""

    CODES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")

    def __init__(self, columns: int, rows: int) -> None:
        self.resize(columns, rows)
        self.lines, self.x, self.y = [""], 0, 0

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows

    def write(self, text: str) -> None:
        while text:
            code = self.CODES.match(text)
            if code:
                self._control(code[1], code[2])
                text = text[code.end() :]
            else:
                self._letter(text[0])
                text = text[1:]

    def _control(self, argument: str, kind: str) -> None:
        if kind == "A":
            self.y = max(self.y - int(argument or 1), len(self.lines) - self.rows, 0)
        elif kind == "K":
            self.lines[self.y] = ""
        elif kind == "J":
            self.lines = [""] * len(self.lines)
        elif kind == "H":
            self.x, self.y = 0, max(len(self.lines) - self.rows, 0)

    def _letter(self, letter: str) -> None:
        if letter == "\r":
            self.x = 0
            return
        if letter == "\n" or self.x >= self.columns:
            self.x, self.y = 0, self.y + 1
            self.lines += [""] * (self.y + 1 - len(self.lines))
        if letter != "\n":
            line = self.lines[self.y].ljust(self.x)
            self.lines[self.y] = line[: self.x] + letter + line[self.x + 1 :]
            self.x += 1

    @property
    def visible(self) -> list[str]:
        return self.lines[-self.rows :]


class Shown:
    """A display in a process of its own, on a terminal of so many columns and rows."""

    def __init__(self, columns: int, rows: int) -> None:
        self.master, slave = pty.openpty()
        self.screen = Screen(columns, rows)
        self._set_size(columns, rows)
        read, self._orders = os.pipe()
        script = SHOW.format(
            tests=[str(Path(__file__).parent), str(Path(__file__).parents[1])], orders=read
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=(read,),
            env={k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
            | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
        )
        os.close(slave)
        os.close(read)
        self._pending = b""

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self._set_size(columns, rows)
        self.screen.resize(columns, rows)

    def order(self, *words: str) -> None:
        os.write(self._orders, "".join(f"{word}\n" for word in words).encode())

    def until(self, holds) -> list[str]:
        """Read what is written until it holds for the visible lines; return them."""
        give_up = time.monotonic() + PATIENCE
        while not holds(self.screen.visible):
            assert time.monotonic() < give_up, "\n".join(self.screen.visible)
            if select.select([self.master], [], [], 0.2)[0]:
                self._pending += os.read(self.master, 65536)
                text = self._pending.decode(errors="ignore")
                whole = re.sub(r"\x1b\[?[0-9;?]*$", "", text)  # an unfinished code waits
                if len(whole) == len(text) and not self._cut():
                    self._pending = b""
                    self.screen.write(whole)
        return self.screen.visible

    def _cut(self) -> bool:
        """Return whether the bytes end within a letter."""
        try:
            self._pending.decode()
        except UnicodeDecodeError:
            return True
        return False

    def close(self) -> None:
        os.close(self._orders)
        self.process.wait(PATIENCE)
        os.close(self.master)


@pytest.fixture
def shown():
    display = Shown(60, 20)
    yield display
    display.close()


def has(piece: str):
    return lambda lines: any(piece in line for line in lines)


def whole_panel(columns: int, rows: int):
    """Hold when exactly one whole panel of this width is visible, and nothing above it."""

    def holds(lines: list[str]) -> bool:
        edges = [line.strip()[:1] for line in lines if line.strip()]
        return (
            edges.count("╭") == 1
            and edges[0] == "╭"
            and edges[-1] == "╰"
            and len(edges) <= rows
            and all(len(line.rstrip()) == columns for line in lines if line.strip())
        )

    return holds


@pytest.mark.slow
def test_the_panel_fits_sixty_by_twenty_survives_a_resize_and_says_that_it_saves(shown):
    shown.order("preparing compiling (1-2 minutes): 3 kernels")
    shown.until(has("compiling (1-2 minutes): 3 kernels"))
    shown.order("update")
    lines = shown.until(has("evaluated success"))
    shown.until(whole_panel(60, 20))
    for piece in ("training success", "91.8 %", "350 static 93.8 %", "entropy", "checkpoint"):
        assert has(piece)(lines), piece
    shown.resize(44, 14)
    lines = shown.until(whole_panel(44, 14))
    assert has("training success")(lines)
    assert has("evaluated success")(lines)
    shown.order("stopping saving, then stopping")
    shown.until(has("saving, then stopping"))
