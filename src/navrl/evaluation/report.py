"""The results of an evaluation: numbers for programs, tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table

from navrl.evaluation.flights import OUTCOMES, Flights
from navrl.evaluation.statistics import Estimate
from navrl.registry.metric_names import other_names
from navrl.wording import counted

__all__ = [
    "DEFINITIONS",
    "cell_table",
    "cells_of",
    "outcome_table",
    "percent",
    "points",
    "pooled",
    "summary",
]

OF_SUCCESSES = {
    "mean_speed": ("speed", "m/s"),
    "time_to_goal": ("time to goal", "s"),
    "time_ratio": ("time / straight flight", ""),
    "min_clearance": ("least clearance", "m"),
    "effort": ("control effort", "m/s²"),
}

DEFINITIONS = """\
(a - b): 95 % interval from a bootstrap over worlds
success: within 1.0 m (0.5 m) of the goal, in time, before any collision
SPL: success x straight line / path flown, mean over all episodes
speed and below: means over successful episodes
time / straight flight: time to within 1 m over that of a straight flight at the speed limit
least clearance: to any obstacle, by rays and tracks; control effort: |dv/dt|"""


def percent(share: Estimate) -> str:
    """Return a share in words: `90.8 % (89.4 - 92.0)`."""
    return _told(share, "%", 100.0, 1)


def points(change: Estimate) -> str:
    """Return a change of a share in percentage points: `-2.1 (-3.0 to -1.2)`."""
    told = f"{100 * change.mean:+.1f}"
    if math.isnan(change.low):
        return told
    return f"{told} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"


def _told(value: Estimate, unit: str, scale: float = 1.0, digits: int = 2) -> str:
    if math.isnan(value.mean):
        return "-"
    mean, low, high = (
        f"{scale * number:.{digits}f}" for number in (value.mean, value.low, value.high)
    )
    return f"{mean} {unit}".strip() + ("" if math.isnan(value.low) else f" ({low} - {high})")


def outcome_table(
    conditions: Mapping[str, Flights],
    title: str = "",
    *,
    subtitles: Mapping[str, str] | None = None,
    latency_ms: float | None = None,
) -> Table:
    """Return how the episodes of one or several conditions ended, side by side.

    Args:
        conditions: flights by scenario or label.
        title: what was flown.
        subtitles: a second line for the head of a column, by its label.
        latency_ms: of a decision for one drone.
    """
    counted = {label: _counted(flights) for label, flights in conditions.items()}
    same = len(set(counted.values())) == 1
    flown = next(iter(counted.values())) if same else ""
    table = Table(title=": ".join(part for part in (title, flown) if part), title_justify="left")
    table.add_column("outcome")
    for label in conditions:
        subtitle = (subtitles or {}).get(label, "").removeprefix(f"{label} ")
        lines = [label, subtitle, "" if same else counted[label]]
        table.add_column("\n".join(line for line in lines if line), justify="right")
    for name, words in OUTCOMES.items():
        table.add_row(words, *(percent(flights.share(name)) for flights in conditions.values()))
    table.add_section()
    table.add_row("SPL", *(percent(flights.mean("spl")) for flights in conditions.values()))
    for name, (words, unit) in OF_SUCCESSES.items():
        means = [flights.mean(name, of_successes=True) for flights in conditions.values()]
        table.add_row(words, *(_told(mean, unit) for mean in means))
    if latency_ms is not None:
        table.add_row("decision, one drone", *(f"{latency_ms:.2f} ms" for _ in conditions))
    return table


def _counted(flights: Flights) -> str:
    worlds = counted(len(flights.world.unique()), "world")
    return f"{counted(len(flights.world), 'episode')} in {worlds}"


def cells_of(conditions: Mapping[str, Flights]) -> dict[str, dict[str, Flights]]:
    """Return the cells of scenarios like `grid`: `{"grid": {"300+60": flights}}`."""
    found: dict[str, dict[str, Flights]] = {}
    for label, flights in conditions.items():
        name, space, cell = label.partition(" ")
        if space:
            found.setdefault(name, {})[cell] = flights
    return found


def pooled(cells: Mapping[str, Flights]) -> Flights:
    """Return the flights of several cells as one; world w is one world in all of them."""
    flights = list(cells.values())
    statistics = {
        name: torch.cat([flown.statistics[name] for flown in flights])
        for name in flights[0].statistics
    }
    return Flights(statistics, torch.cat([flown.world for flown in flights]))


def cell_table(name: str, cells: Mapping[str, Flights], title: str = "") -> Table:
    """Return the success of every cell, the mean over all, and the hardest."""
    rows = list(dict.fromkeys(cell.split("+")[0] for cell in cells))
    columns = list(dict.fromkeys(cell.split("+")[1] for cell in cells))
    counted = _counted(next(iter(cells.values())))
    table = Table(
        title=f"{title}, {name}: success, {counted} each" if title else f"{name}: {counted} each",
        title_justify="left",
    )
    table.add_column("static boxes", justify="right")
    for column in columns:
        table.add_column(f"{column} moving", justify="right")
    for row in rows:
        shares = (percent(cells[f"{row}+{column}"].share("success_100")) for column in columns)
        table.add_row(row, *(share.replace(" (", "\n(") for share in shares))
    hardest = min(cells, key=lambda cell: cells[cell].share("success_100").mean)
    table.caption = (
        f"all cells {percent(pooled(cells).share('success_100'))}\n"
        f"hardest cell {hardest}: {percent(cells[hardest].share('success_100'))}"
    )
    table.caption_justify = "left"
    return table


def _outcome(flights: Flights, name: str) -> dict[str, float]:
    share, error = flights.rate(name)
    bounds = flights.share(name)
    return {"share": share, "standard_error": error, "low": bounds.low, "high": bounds.high}


def summary(flights: Flights) -> dict[str, Any]:
    """Return the numbers of an evaluation: shares and means with their 95 % intervals."""
    means = {"mean_return": flights.rate("return")[0], "mean_length": flights.rate("length")[0]}
    measured = {name: flights.mean(name, of_successes=True) for name in OF_SUCCESSES}
    return {
        "episodes": len(flights.world),
        "worlds": len(flights.world.unique()),
        "simulated_steps": int(flights.statistics["length"].sum()),
        **means,
        **other_names(means | {"success_100": flights.rate("success_100")[0]}),
        "spl": flights.mean("spl").as_dict(),
        "outcomes": {name: _outcome(flights, name) for name in OUTCOMES},
        "of_successes": {name: value.mean for name, value in measured.items()},
        "of_successes_intervals": {
            name: [value.low, value.high] for name, value in measured.items()
        },
    }
