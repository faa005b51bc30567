"""The display of a training: a live panel on a terminal, else a line every ten seconds."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from navrl.training.panel import History, layouts, preparation
from navrl.training.status import Status, plain_line

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "open_display"]

REFRESHES = 2  # per second
LINE_EVERY = 10.0  # seconds between lines without a terminal
WIDEST = 110  # columns
BORDERS = 2  # lines of the panel around its contents

# A broken pipe (`navrl train | head`; rich turns it into SystemExit), a closed terminal and one
# that cannot encode a character must not stop the training.
HARMLESS = (OSError, SystemExit, UnicodeError)


class Display(ABC):
    """The interface of both displays; no failure of the terminal stops the training."""

    def __init__(self, console: Console, title: str) -> None:
        self.console = console
        self.title = title

    @abstractmethod
    def update(self, status: Status) -> None:
        """Show a new status, now or soon."""

    def note(self, text: str) -> None:
        """Print a line that stays: `checkpoint saved`, `resumed from iteration 40`."""
        self._print(Text(text))

    @abstractmethod
    def preparing(self, what: str) -> None:
        """Show a step before the first iteration, such as `compiling: 3 kernels`."""

    @abstractmethod
    def stopping(self, what: str) -> None:
        """Show that the training is about to stop, until the display is closed.

        Any thread may call this; it does not wait for the terminal.
        """

    @abstractmethod
    def close(self) -> None:
        """Show the last status."""

    def _print(self, text: Text) -> None:
        with suppress(*HARMLESS):
            self.console.print(text, soft_wrap=True, highlight=False)


@contextmanager
def open_display(console: Console, title: str) -> Iterator[Display]:
    """Yield a LiveDisplay on a terminal, else a PlainDisplay; the last status stays visible."""
    live = (
        console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    )
    display: Display = LiveDisplay(console, title) if live else PlainDisplay(console, title)
    try:
        yield display
    finally:
        display.close()


class PlainDisplay(Display):
    """One line for the first status, one about every ten seconds, one for the last."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console, title)
        self._last: Status | None = None
        self._printed: Status | None = None
        self._next = 0.0
        self._step = ""
        self._print(Text(title))

    def update(self, status: Status) -> None:
        """Store the status, and print it if the last line is ten seconds old."""
        self._last = status
        if time.monotonic() >= self._next:
            self._line(status)

    def preparing(self, what: str) -> None:
        """Print a step when it begins, without the part after the colon, which changes."""
        step = what.partition(":")[0]
        if step != self._step:
            self._step = step
            self._print(Text(step))

    def stopping(self, what: str) -> None:
        """Do nothing: the training notes what it does before it stops."""

    def close(self) -> None:
        """Print the last status if it was not printed yet."""
        if self._last is not None and self._last is not self._printed:
            self._line(self._last)

    def _line(self, status: Status) -> None:
        self._next = time.monotonic() + LINE_EVERY
        self._printed = status
        self._print(Text(plain_line(status)))


class _Resizable(Live):
    """A live display that starts on an empty screen after the terminal was resized.

    A terminal that gets narrower wraps the lines of the old panel, so they cannot be found again.
    """

    def __init__(self, renderable: RenderableType, console: Console) -> None:
        super().__init__(renderable, console=console, refresh_per_second=REFRESHES)
        self._size = console.size

    def refresh(self) -> None:
        """Draw."""
        size = self.console.size
        if size != self._size:
            self._size = size
            self.console.control(Control.clear(), Control.home())
        super().refresh()


class LiveDisplay(Display):
    """A panel that a thread of rich redraws twice a second."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console, title)
        self._status: Status | None = None
        self._updated = 0.0
        self._history = History()
        self._started = time.monotonic()
        self._preparing, self._stopping = "starting", ""
        self._live = _Resizable(self, console)
        self._closed = True
        with suppress(*HARMLESS):
            self._live.start()
            self._closed = False

    def update(self, status: Status) -> None:
        """Store the status for the next redraw."""
        self._status, self._updated = status, time.monotonic()
        value = status.episode_return if status.headline == "return" else status.success
        if math.isfinite(value):
            self._history.add(value)

    def preparing(self, what: str) -> None:
        """Show a step before the first iteration at the next redraw."""
        self._preparing = what

    def stopping(self, what: str) -> None:
        """Show that the training is about to stop at the next redraw."""
        self._stopping = what

    def close(self) -> None:
        """Draw the last status and leave it on the screen; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._stopping = ""
            with suppress(*HARMLESS):
                self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw; called by rich."""
        width = min(options.max_width, WIDEST)
        yield Panel(
            self._inside(console, options.update(width=max(width - 4, 20))),
            title=Text(self.title, "bold"),
            title_align="left",
            subtitle=Text(self._stopping, "bold yellow") if self._stopping else None,
            width=width,
            border_style="bright_black",
        )

    def _inside(self, console: Console, options: ConsoleOptions) -> RenderableType:
        """Return the tallest contents that fit into the terminal, or the shortest there are."""
        now, width = time.monotonic(), options.max_width
        if self._status is None:
            return preparation(self._preparing, now - self._started, width)
        status = _later(self._status, 0.0 if self._closed else now - self._updated)
        for contents in layouts(status, list(self._history.values), width):
            if len(console.render_lines(contents, options)) + BORDERS <= options.size.height:
                break
        return contents


def _later(status: Status, seconds: float) -> Status:
    """Return a status with its clocks advanced, so that they run during a long iteration."""
    left = status.seconds_left
    return replace(
        status,
        seconds=status.seconds + seconds,
        seconds_left=None if left is None else left - seconds,
    )
