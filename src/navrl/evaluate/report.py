"""An evaluation as a table for people and numbers for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from navrl.evaluate import OUTCOMES, Flights
from navrl.registry.metric_names import other_names

__all__ = ["outcome_table", "summary"]

OF_SUCCESSES = {
    "mean_speed": ("speed", "m/s"),
    "time_to_goal": ("time to goal", "s"),
    "min_clearance": ("least clearance", "m"),
}


def outcome_table(conditions: Mapping[str, Flights], title: str = "") -> Table:
    """Return the outcomes of one evaluation or several under different conditions, side by side.

    A share is followed by its standard error between worlds, in percent too.
    """
    flown = [
        f"{len(flights.world)} episodes in {len(flights.world.unique())} worlds"
        for flights in conditions.values()
    ]
    same = len(set(flown)) == 1
    table = Table(
        title=": ".join(part for part in (title, flown[0] if same else "") if part),
        title_justify="left",
    )
    table.add_column("outcome")
    for label, counted in zip(conditions, flown, strict=True):
        table.add_column(label if same else f"{label}\n{counted}", justify="right")
    for name, label in OUTCOMES.items():
        table.add_row(label, *(_share(*flights.rate(name)) for flights in conditions.values()))
    table.add_section()
    for name, (label, unit) in OF_SUCCESSES.items():
        values = [flights.of_successes(name) for flights in conditions.values()]
        table.add_row(
            f"{label} of successes",
            *(f"{value:.2f} {unit}" if value == value else "-" for value in values),
        )
    return table


def _share(mean: float, error: float) -> str:
    return f"{100 * mean:.1f} %" + (f" ± {100 * error:.1f}" if error == error else "")


def summary(flights: Flights) -> dict[str, Any]:
    """Return the numbers of an evaluation: shares with standard errors between worlds, and means
    over the successes.
    """
    means = {"mean_return": flights.rate("return")[0], "mean_length": flights.rate("length")[0]}
    return {
        "episodes": len(flights.world),
        "worlds": len(flights.world.unique()),
        "simulated_steps": int(flights.statistics["length"].sum()),
        **means,
        **other_names(means | {"success_100": flights.rate("success_100")[0]}),
        "outcomes": {
            name: dict(zip(("share", "standard_error"), flights.rate(name), strict=True))
            for name in OUTCOMES
        },
        "of_successes": {name: flights.of_successes(name) for name in OF_SUCCESSES},
    }
