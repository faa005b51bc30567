"""The robustness card of a policy as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.render.palette import LIGHT
from navrl.view.topdown import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_card"]

ROW = 0.24  # inches
LOST = 2.0  # percentage points below the nominal success, from which a row is drawn as a loss


Row = Mapping[str, Any]  # as in `card.json`


def save_card(rows: Sequence[Row], title: str, path: Path) -> None:
    """Write a picture: success with its interval in every row, the nominal success as a line.

    Args:
        rows: `rows` of a `card.json`.
        title: above the picture.
        path: of the PNG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: the file cannot be written; no part of it is left.
    """
    groups = [(name, list(members)) for name, members in groupby(rows, lambda row: row["group"])]
    height = len(rows) + 0.6 * len(groups)
    figure = make_figure(9.0, ROW * height + 1.2)
    axes = figure.subplots()
    nominal = 100 * rows[0]["success_100"]["mean"]
    axes.axvline(nominal, color=LIGHT.faint, linestyle="--", linewidth=1.0)
    end = _draw_groups(axes, groups)
    lowest = min(100 * _bounds(row)[0] for row in rows)
    axes.set(
        ylim=(end, -1.0),
        xlim=(max(0.0, lowest - 5.0), 104.0),
        xlabel="success (%), 95 % interval; dashed: nominal",
    )
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(axis="x", alpha=0.3)
    try:
        figure.savefig(path)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _draw_groups(axes: Any, groups: Sequence[tuple[str, list[Row]]]) -> float:
    """Draw the rows of all groups below each other; return where the last one ends."""
    ticks: list[float] = []
    labels: list[str] = []
    place = 0.0
    for name, members in groups:
        for row in members:
            _draw_row(axes, row, place)
            ticks.append(place)
            labels.append(f"{name}: {row['condition']}")
            place += 1.0
        place += 0.6
    axes.set_yticks(ticks, labels, fontsize=8)
    return place - 0.6


def _bounds(row: Row) -> tuple[float, float]:
    """Return the interval of a success rate, or its mean twice if it has none."""
    mean, low, high = (row["success_100"][name] for name in ("mean", "low", "high"))
    return (mean, mean) if low is None or math.isnan(low) else (low, high)


def _draw_row(axes: Axes, row: Row, place: float) -> None:
    lost = 100 * row["change"]["mean"] <= -LOST
    colour = LIGHT.static_collision if lost else LIGHT.flying
    mean = 100 * row["success_100"]["mean"]
    low, high = (100 * bound for bound in _bounds(row))
    axes.plot([low, high], [place, place], color=colour, linewidth=2)
    axes.plot([mean], [place], marker="s" if lost else "o", color=colour, markersize=5)
    axes.annotate(
        f"{mean:.1f}",
        (max(high, mean), place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color=LIGHT.text,
    )
