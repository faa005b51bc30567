"""Two policies on the same episodes: the paired difference, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich import box
from rich.table import Table

from navrl.errors import ConfigError
from navrl.evaluation.flights import Flights
from navrl.evaluation.recording import ending_of
from navrl.evaluation.report import cells_of, percent, points, pooled
from navrl.evaluation.statistics import Paired, differing, paired
from navrl.wording import counted

__all__ = ["check_same_episodes", "compare", "comparison_table", "short_names"]


def check_same_episodes(a: Flights, b: Flights) -> None:
    """Raise a ConfigError unless two evaluations flew the same trips in the same worlds."""
    same = len(a.world) == len(b.world) and torch.equal(a.world, b.world)
    if same:
        same = torch.equal(a.statistics["distance"], b.statistics["distance"])
    if not same:
        raise ConfigError(
            "the two evaluations flew different episodes and cannot be compared pair by pair: "
            "use equal flight.*, env.* and env_dyn.* settings"
        )


def compare(a: Flights, b: Flights) -> dict[str, Any]:
    """Return the paired difference B - A in success, and the episodes where only one succeeds."""
    check_same_episodes(a, b)
    result = paired(a.success, b.success, a.world)
    episodes = [
        {
            "episode": int(number),
            "world": int(a.world[number]),
            "first": ending_of(a.statistics, int(number)),
            "second": ending_of(b.statistics, int(number)),
        }
        for number in differing(a.statistics, b.statistics)
    ]
    return {
        "success_100": result.difference.as_dict(),
        "only_first": result.only_a,
        "only_second": result.only_b,
        "mcnemar_p": result.p,
        "differing": episodes,
    }


def short_names(references: Sequence[str]) -> list[str]:
    """Return the ends of paths that tell references apart: `a` for `runs/a` beside `runs/b`."""
    parts = [reference.rstrip("/").split("/") for reference in references]
    names = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = 1
        while length < len(own) and any(other[-length:] == own[-length:] for other in others):
            length += 1
        names.append("/".join(own[-length:]))
    return names


def comparison_table(flown: Mapping[str, Mapping[str, Flights]]) -> Table:
    """Return successes of several policies, and their paired differences to the first.

    Args:
        flown: flights by scenario, by policy.
    """
    first, *others = flown
    shown = dict(zip(flown, short_names([*flown]), strict=True))
    sample = next(iter(flown[first].values()))
    flown_in = counted(len(sample.world.unique()), "world")
    title = f"success on the same episodes: {counted(len(sample.world), 'episode')} in {flown_in}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    table.pad_edge = False  # fits into 80 columns, whatever the number of policies
    table.add_column("", overflow="fold")
    for heading in ("success", "difference", "won / lost", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    every = {key: _with_totals(flights) for key, flights in flown.items()}
    for scenario, reference in every[first].items():
        table.add_row(scenario)
        table.add_row(f" {shown[first]}", percent(reference.share("success_100")))
        for key in others:
            other = every[key][scenario]
            check_same_episodes(reference, other)
            result = paired(reference.success, other.success, reference.world)
            success = percent(other.share("success_100"))
            table.add_row(f" {shown[key]}", success, *_difference(result))
    table.caption = (
        f"difference: to {shown[first]}, in percentage points\n"
        f"won / lost: episodes in which only it, or only {shown[first]}, succeeds\n"
        "p: McNemar's exact test of these, two-sided"
    )
    table.caption_justify = "left"
    return table


def _with_totals(flights: Mapping[str, Flights]) -> dict[str, Flights]:
    """Return flights by scenario, and those of all cells of a grid together."""
    totals = {f"{name}, all": pooled(cells) for name, cells in cells_of(flights).items()}
    return {**flights, **totals}


def _difference(result: Paired) -> list[str]:
    p = "< 0.001" if result.p < 0.001 else f"{result.p:.3f}"
    difference = points(result.difference).replace(" to ", ", ")
    return [difference, f"{result.only_b} / {result.only_a}", p]
