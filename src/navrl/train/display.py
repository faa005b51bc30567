"""What a run shows while it trains: a live panel on a terminal, a line now and then without one."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from navrl.train.saving.checkpoints import SaveStatus

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "Status", "open_display"]

REFRESHES = 2  # a second: drawing takes 4 ms, which the trainer should not notice
LINE_EVERY = 10.0  # s, without a terminal
HISTORY = 1024  # values of the success curve that are kept at most; even
WIDEST = 110
BARS = " ▁▂▃▄▅▆▇█"
PHASE_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
MISSING = "-"
NAN = math.nan

# A pipe closed by its reader (`navrl train | head`; rich turns that into SystemExit), a terminal
# that went away or that cannot show a letter are no reasons to stop training.
HARMLESS = (OSError, SystemExit, UnicodeError)


@dataclass(frozen=True)
class Status:
    """Where a run stands. What is NaN or None is shown as a dash or left out. Rates are shares from
    0 to 1.
    """

    iteration: int
    iterations: int
    frames: int
    total_frames: int
    seconds: float  # since the start
    frames_per_second: float = NAN
    success: float = NAN
    collision: float = NAN
    out_of_bounds: float = NAN
    time_out: float = NAN
    episode_return: float = NAN
    episode_length: float = NAN  # simulated steps
    policy_loss: float = NAN
    value_loss: float = NAN
    kl: float = NAN
    entropy: float = NAN
    learning_rate: float = NAN
    gradient_norm: float = NAN
    explained_variance: float = NAN
    phases: dict[str, float] = field(default_factory=dict)  # share of the time of each
    stall_ms: float | None = None  # how long training waited for the last checkpoint
    evaluation: dict[str, float] | None = None  # the headline of the last one, by condition
    headline: str = "success"  # what is shown large: success, or return where there is none
    seconds_left: float | None = None
    saves: SaveStatus = field(default_factory=SaveStatus)
    unwritten: int = 0  # files beside the checkpoints that could not be written yet


class Display(ABC):
    """What both displays do. `update` costs microseconds; nothing that happens to the terminal
    stops training.
    """

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
    def close(self) -> None:
        """Show the last status."""

    def _print(self, text: Text) -> None:
        with suppress(*HARMLESS):
            self.console.print(text, soft_wrap=True, highlight=False)


@contextmanager
def open_display(console: Console, title: str) -> Iterator[Display]:
    """Give a LiveDisplay on a terminal, else a PlainDisplay; leaving the block leaves the last
    status on the screen.
    """
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
        self._print(Text(title))

    def update(self, status: Status) -> None:
        """Remember the status; print it when it is time."""
        self._last = status
        if time.monotonic() >= self._next:
            self._line(status)

    def close(self) -> None:
        """Print the last status, unless it was."""
        if self._last is not None and self._last is not self._printed:
            self._line(self._last)

    def _line(self, status: Status) -> None:
        self._next = time.monotonic() + LINE_EVERY
        self._printed = status
        self._print(Text(plain_line(status)))


def plain_line(status: Status) -> str:
    """Return a status in one line."""
    pieces = [
        f"iteration {status.iteration}/{status.iterations}",
        f"{_count(status.frames)} frames",
        f"{_count(status.frames_per_second)} frames/s",
        *_outcomes_in_words(status),
        f"return {_number(status.episode_return)}",
        f"KL {_number(status.kl)}",
        f"entropy {_number(status.entropy)}",
    ]
    if status.evaluation:
        pieces.append(
            "evaluated "
            + ", ".join(
                f"{name} {_headline(status, value)}" for name, value in status.evaluation.items()
            )
        )
    if status.seconds_left is not None:
        pieces.append(f"{_clock(status.seconds_left)} left")
    if saved := _saved(status):
        pieces.append(f"checkpoint {saved}")
    if status.unwritten:
        pieces.append(f"{status.unwritten} files NOT written")
    return "  ".join(pieces)


def _outcomes_in_words(status: Status) -> list[str]:
    """Return how episodes ended, as far as the environment tells."""
    if status.headline == "return":
        known = math.isfinite(status.success)
        return [f"success {_percent(status.success)}"] if known else []
    return [f"success {_percent(status.success)}", f"collision {_percent(status.collision)}"]


def _headline(status: Status, value: float) -> str:
    return _number(value, 4) if status.headline == "return" else _percent(value)


class LiveDisplay(Display):
    """A panel that a thread of rich draws anew, twice a second."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console, title)
        self._status: Status | None = None
        self._updated = 0.0
        self._curve = _Curve()
        self._live = Live(self, console=console, refresh_per_second=REFRESHES)
        self._ended = True
        with suppress(*HARMLESS):
            self._live.start()
            self._ended = False

    def update(self, status: Status) -> None:
        """Remember the status; the next drawing shows it."""
        self._status, self._updated = status, time.monotonic()
        value = status.episode_return if status.headline == "return" else status.success
        if math.isfinite(value):
            self._curve.add(value)

    def close(self) -> None:
        """Draw the last status and leave it on the screen; again does nothing."""
        if not self._ended:
            self._ended = True
            with suppress(*HARMLESS):
                self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw; called by rich."""
        width = min(options.max_width, WIDEST)
        inside: RenderableType = Text("starting", "dim")
        if self._status is not None:
            since = 0.0 if self._ended else time.monotonic() - self._updated
            inside = draw(_later(self._status, since), list(self._curve.values), max(width - 4, 20))
        yield Panel(
            inside,
            title=Text(self.title, "bold"),
            title_align="left",
            width=width,
            border_style="bright_black",
        )


def _later(status: Status, seconds: float) -> Status:
    """Return a status with its clocks moved on, so that a long iteration does not look dead."""
    left = status.seconds_left
    return replace(
        status,
        seconds=status.seconds + seconds,
        seconds_left=None if left is None else left - seconds,
    )


def draw(status: Status, history: Sequence[float], width: int) -> Group:
    """Return the inside of the panel for so many columns."""
    parts: list[RenderableType] = [
        _progress(status, width),
        Text(),
        _outcomes(status, history, width),
        Text(),
        _learning(status, width),
        Text(),
        *_phases(status, width),
        *_footer(status, width),
    ]
    return Group(*parts)


def _flow(pieces: Sequence[Text], width: int) -> Text:
    """Return the pieces beside each other, in lines of at most `width`, none of them broken."""
    gap = 3 if sum(len(piece) + 3 for piece in pieces) - 3 <= width else 2
    text, used = Text(no_wrap=True, overflow="ellipsis"), 0
    for piece in pieces:
        if used and used + gap + len(piece) > width:
            text.append("\n")
            used = 0
        elif used:
            text.append(" " * gap)
            used += gap
        text.append_text(piece)
        used += len(piece)
    return text


def _named(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name} ", "dim"), (value, style))


def _progress(status: Status, width: int) -> Group:
    share = status.frames / status.total_frames if status.total_frames else 0.0
    left = f", {_clock(status.seconds_left)} left" if status.seconds_left is not None else ""
    numbers = Text.assemble(
        (f" {100 * share:.0f} %", "bold"), f"  {_clock(status.seconds)} gone{left}"
    )
    total = max(status.total_frames, 1)
    length = max(width - len(numbers), 8)
    bar = ProgressBar(
        total,
        min(status.frames, total),
        width=length,
        complete_style="green",
        finished_style="green",
    )
    line = Table.grid()
    line.add_row(bar, numbers)
    pieces = (
        _named("iteration", f"{status.iteration:,} of {status.iterations:,}"),
        _named("frames", f"{_count(status.frames)} of {_count(status.total_frames)}"),
        _named("frames/s", _count(status.frames_per_second), "bold"),
    )
    return Group(line, _flow(pieces, width))


def _returns(status: Status, history: Sequence[float], width: int) -> Group:
    """Return the curve of returns between the lowest and the highest, and how episodes ended."""
    least, most = min(history, default=0.0), max(history, default=0.0)
    shares = [(value - least) / (most - least) if most > least else 0.5 for value in history]
    high, low = sparkline(shares, max(width - 19, 8))
    rising = Text.assemble(" " * 19, (high, "green"), no_wrap=True, overflow="crop")
    returned = Text.assemble(
        ("return    ", "dim"),
        (f"{_number(status.episode_return, 4):>7}  ", "bold green"),
        (low, "green"),
        no_wrap=True,
        overflow="crop",
    )
    pieces = [_named("length", _number(status.episode_length))]
    if math.isfinite(status.success):
        pieces.insert(0, _named("success", _percent(status.success), "green"))
    return Group(rising, returned, _flow(pieces, width))


def _outcomes(status: Status, history: Sequence[float], width: int) -> Group:
    if status.headline == "return":
        return _returns(status, history, width)
    high, low = sparkline(history, max(width - 19, 8))
    rising = Text.assemble(" " * 19, (high, "green"), no_wrap=True, overflow="crop")
    success = Text.assemble(
        ("success   ", "dim"),
        (f"{_percent(status.success):>7}  ", "bold green"),
        (low, "green"),
        no_wrap=True,
        overflow="crop",
    )
    pieces = (
        Text.assemble(("collision ", "dim"), (f"{_percent(status.collision):>7}", "bold red")),
        _named("bounds", _percent(status.out_of_bounds), "magenta"),
        _named("time-out", _percent(status.time_out), "blue"),
        _named("return", _number(status.episode_return)),
        _named("length", _number(status.episode_length)),
    )
    return Group(rising, success, _flow(pieces, width))


def _learning(status: Status, width: int) -> Table:
    values = (
        ("policy loss", _number(status.policy_loss)),
        ("value loss", _number(status.value_loss)),
        ("KL", _number(status.kl)),
        ("entropy", _number(status.entropy)),
        ("rate", _number(status.learning_rate, 2)),
        ("gradient", _number(status.gradient_norm)),
        ("explained", _percent(status.explained_variance)),
    )
    columns = len(values) if width >= 72 else 4 if width >= 46 else 2
    grid = Table.grid(expand=True, padding=(0, 1))
    for _ in range(columns):
        grid.add_column(no_wrap=True)
    for start in range(0, len(values), columns):
        group = values[start : start + columns]
        grid.add_row(*(Text(name, "dim") for name, _ in group))
        grid.add_row(*(Text(value) for _, value in group))
    return grid


def _phases(status: Status, width: int) -> list[Text]:
    """Return the phases as a bar of one line, and what its colours mean; what is left is grey."""
    bar, names = Text(no_wrap=True, overflow="crop"), []
    edge, done = 0.0, 0
    for i, (name, share) in enumerate(status.phases.items()):
        if not share > 0:
            continue
        colour = PHASE_COLOURS[i % len(PHASE_COLOURS)]  # of its place, so that a phase keeps it
        edge += share
        until = max(done, min(round(edge * width), width))
        bar.append("━" * (until - done), colour)
        done = until
        shown = f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"
        names.append(Text.assemble(("■ ", colour), (name.replace("_", " ") + " ", "dim"), shown))
    bar.append("━" * (width - done), "bright_black")
    return [bar, _flow(names, width)] if names else []


def _footer(status: Status, width: int) -> list[Text]:
    lines = []
    if status.evaluation:
        rates = [
            _named(name, _headline(status, value), "bold green")
            for name, value in status.evaluation.items()
        ]
        where = "evaluated return" if status.headline == "return" else "in unseen worlds"
        lines.append(_flow([Text(where, "dim"), *rates], width))
    if saved := _saved(status):
        stall = f", stall {_number(status.stall_ms)} ms" if status.stall_ms is not None else ""
        style = "bold red" if status.saves.failure else ""
        line = _named("checkpoint", saved + ("" if status.saves.failure else stall), style)
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    if status.unwritten:
        told = f"{status.unwritten} (tried again after each checkpoint)"
        lines.append(_named("files not written", told, "bold red"))
    return lines


def _saved(status: Status) -> str:
    """Return the state of saving: the last checkpoint and its age, or why the last attempts
    failed.
    """
    saves = status.saves
    age = _clock(time.monotonic() - saves.at)
    last = f"iteration {saves.iteration}, {age} ago" if saves.iteration is not None else ""
    if not saves.failure:
        return last
    times = f" {saves.failed_in_row} times" if saves.failed_in_row > 1 else ""
    return f"FAILED{times}: {saves.failure}; last: {last or 'none'}"


def sparkline(values: Sequence[float], width: int) -> tuple[str, str]:
    """Return a curve of shares from 0 to 1, two lines high, older values to the left, each place
    the mean of its part.
    """
    if not values:
        return "", ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    levels = [round(16 * math.fsum(values[a:b]) / (b - a)) for a, b in pairwise(edges)]
    return "".join(BARS[min(max(level - 8, 0), 8)] for level in levels), "".join(
        BARS[min(max(level, 1), 8)] for level in levels
    )


class _Curve:
    """A history of any length in little memory: each value the mean of as many that were added."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._together = 1
        self._open: list[float] = []

    def add(self, value: float) -> None:
        self._open.append(value)
        if len(self._open) < self._together:
            return
        self.values.append(math.fsum(self._open) / self._together)
        self._open.clear()
        if len(self.values) == HISTORY:
            self.values = [
                (a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2], strict=True)
            ]
            self._together *= 2


def _number(value: float, digits: int = 3) -> str:
    if not math.isfinite(value):
        return MISSING
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e7 else f"{value:.{digits}g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else MISSING


def _count(value: float) -> str:
    if not math.isfinite(value):
        return MISSING
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= scale:
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
