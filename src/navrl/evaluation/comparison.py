"""Two policies on the same episodes: the paired difference, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table

from navrl.errors import ConfigError
from navrl.evaluation.flights import Flights
from navrl.evaluation.recording import ending_of
from navrl.evaluation.report import percent, points
from navrl.evaluation.statistics import Paired, differing, paired

__all__ = ["check_same_episodes", "compare", "comparison_table"]


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


def comparison_table(
    flown: Mapping[str, Mapping[str, Flights]], names: Mapping[str, str] | None = None
) -> Table:
    """Return successes of several policies side by side, and their paired differences to the first.

    Args:
        flown: flights by scenario, by policy.
        names: shown for the policies, by their keys in `flown`.
    """
    first, *others = flown
    shown = {key: (names or {}).get(key, key) for key in flown}
    sample = next(iter(flown[first].values()))
    counted = f"{len(sample.world)} episodes in {len(sample.world.unique())} worlds"
    table = Table(title=f"success on the same episodes: {counted}", title_justify="left")
    table.add_column("scenario")
    table.add_column(shown[first], justify="right")
    for key in others:
        table.add_column(shown[key], justify="right")
        table.add_column("difference", justify="right")
        table.add_column("only it /\nonly first", justify="right")
        table.add_column("p", justify="right")
    for scenario, reference in flown[first].items():
        cells = [_stacked(percent(reference.share("success_100")))]
        for key in others:
            other = flown[key][scenario]
            check_same_episodes(reference, other)
            result = paired(reference.success, other.success, reference.world)
            cells += [_stacked(percent(other.share("success_100"))), *_difference(result)]
        table.add_row(scenario, *cells)
    table.caption = "p: McNemar's exact test, two-sided"
    return table


def _stacked(told: str) -> str:
    """Return a value above its interval: columns of several policies are narrow."""
    return told.replace(" (", "\n(")


def _difference(result: Paired) -> list[str]:
    p = "< 0.001" if result.p < 0.001 else f"{result.p:.3f}"
    return [_stacked(points(result.difference)), f"{result.only_b} / {result.only_a}", p]
