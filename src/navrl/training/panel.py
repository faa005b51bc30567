"""The live panel of a training: progress, outcomes, losses, time, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from navrl.training.status import Status, clock, count, headline, number, percent, save_state

__all__ = ["History", "draw", "layouts", "preparation", "sparkline"]

HISTORY = 1024  # most values of the success curve; even
BARS = " ▁▂▃▄▅▆▇█"
PHASE_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def draw(status: Status, history: Sequence[float], width: int) -> Group:
    """Return all contents of the panel, `width` columns wide."""
    return next(layouts(status, history, width))


def layouts(status: Status, history: Sequence[float], width: int) -> Iterator[Group]:
    """Yield the contents of the panel from the tallest form to the shortest, for low terminals."""
    progress, outcomes = _progress(status, width), _outcomes(status, history, width)
    learning, phases = _learning(status, width), _phases(status, width)
    footer = _footer(status, width)
    yield Group(progress, Text(), outcomes, Text(), learning, Text(), *phases, *footer)
    yield Group(progress, outcomes, learning, *phases, *footer)
    yield Group(progress, outcomes, *phases, *footer)
    yield Group(progress, outcomes, *footer)


def preparation(what: str, seconds: float, width: int) -> Table:
    """Return what is done before the first iteration, with a moving bar and the time it took."""
    numbers = Text(f" {clock(seconds)}")
    label = Text(f"{what} ", no_wrap=True, overflow="ellipsis")
    label.truncate(max(width - 20, 8))
    length = max(width - len(label) - len(numbers), 8)
    line = Table.grid()
    line.add_row(label, ProgressBar(total=None, width=length, animation_time=seconds), numbers)
    return line


def _flow(pieces: Sequence[Text], width: int) -> Text:
    """Return the pieces side by side, wrapped between pieces at `width` columns."""
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


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _progress(status: Status, width: int) -> Group:
    pieces = (
        _named("iteration", f"{status.iteration:,} of {status.iterations:,}"),
        _named("frames", f"{count(status.frames)} of {count(status.total_frames)}"),
        _named("frames/s", count(status.frames_per_second), "bold"),
    )
    return Group(_bar(status, width), _flow(pieces, width))


def _bar(status: Status, width: int) -> Table:
    """Return the progress as a bar, and in numbers behind it."""
    share = status.frames / status.total_frames if status.total_frames else 0.0
    left = f", {clock(status.seconds_left)} left" if status.seconds_left is not None else ""
    numbers = Text.assemble(
        (f" {100 * share:.0f} %", "bold"), f"  {clock(status.seconds)} gone{left}"
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
    return line


def _returns(status: Status, history: Sequence[float], width: int) -> Group:
    """Return the curve of returns between the lowest and the highest, and how episodes ended."""
    least, most = min(history, default=0.0), max(history, default=0.0)
    shares = [(value - least) / (most - least) if most > least else 0.5 for value in history]
    high, low = sparkline(shares, max(width - 19, 8))
    rising = Text.assemble(
        ("training return    ", "dim"), (high, "green"), no_wrap=True, overflow="crop"
    )
    returned = Text.assemble(
        (f"{number(status.episode_return, 4):>15}    ", "bold green"),
        (low, "green"),
        no_wrap=True,
        overflow="crop",
    )
    pieces = [_named("length", number(status.episode_length))]
    if math.isfinite(status.success):
        pieces.insert(0, _named("training success", percent(status.success), "green"))
    return Group(rising, returned, _flow(pieces, width))


def _outcomes(status: Status, history: Sequence[float], width: int) -> Group:
    if status.headline == "return":
        return _returns(status, history, width)
    high, low = sparkline(history, max(width - 19, 8))
    rising = Text.assemble(
        ("training success   ", "dim"), (high, "green"), no_wrap=True, overflow="crop"
    )
    success = Text.assemble(
        (f"{percent(status.success):>16}   ", "bold green"),
        (low, "green"),
        no_wrap=True,
        overflow="crop",
    )
    pieces = (
        Text.assemble(("collision ", "dim"), (f"{percent(status.collision):>7}", "bold red")),
        _named("bounds", percent(status.out_of_bounds), "magenta"),
        _named("time-out", percent(status.time_out), "blue"),
        _named("return", number(status.episode_return)),
        _named("length", number(status.episode_length)),
    )
    return Group(rising, success, _flow(pieces, width))


def _learning(status: Status, width: int) -> Table:
    values = (
        ("policy loss", number(status.policy_loss)),
        ("value loss", number(status.value_loss)),
        ("KL", number(status.kl)),
        ("entropy", number(status.entropy)),
        ("rate", number(status.learning_rate, 2)),
        ("gradient", number(status.gradient_norm)),
        ("explained", percent(status.explained_variance)),
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
    """Return the phases as a coloured bar and its legend; the rest of the time is grey."""
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
    if status.collection:
        lines.append(_cut(_named("collection", status.collection), width))
    if status.evaluation:
        rates = [
            _named(name, headline(status, value), "bold green")
            for name, value in status.evaluation.items()
        ]
        lines.append(_flow([Text(f"evaluated {status.headline}", "dim"), *rates], width))
    if saved := save_state(status):
        stall = f", stall {number(status.stall_ms)} ms" if status.stall_ms is not None else ""
        style = "bold red" if status.saves.failure else ""
        line = _named("checkpoint", saved + ("" if status.saves.failure else stall), style)
        lines.append(_cut(line, width))
    if status.unwritten:
        shown = f"{status.unwritten} (retried after each checkpoint)"
        lines.append(_named("files not written", shown, "bold red"))
    return lines


def sparkline(values: Sequence[float], width: int) -> tuple[str, str]:
    """Return two lines of a bar chart of rates from 0 to 1, the oldest on the left."""
    if not values:
        return "", ""
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    levels = [round(16 * math.fsum(values[a:b]) / (b - a)) for a, b in pairwise(edges)]
    return "".join(BARS[min(max(level - 8, 0), 8)] for level in levels), "".join(
        BARS[min(max(level, 1), 8)] for level in levels
    )


class History:
    """A bounded history: once it is full, neighbouring values are averaged in pairs."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._averaged = 1  # added values that make one of the history
        self._open: list[float] = []

    def add(self, value: float) -> None:
        """Add a value."""
        self._open.append(value)
        if len(self._open) < self._averaged:
            return
        self.values.append(math.fsum(self._open) / self._averaged)
        self._open.clear()
        if len(self.values) == HISTORY:
            self.values = [
                (a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2], strict=True)
            ]
            self._averaged *= 2
