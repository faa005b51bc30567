"""Evaluation: what `navrl.evaluate` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError, nearest_name
from navrl.evaluation.flights import Flights

__all__ = ["Evaluation"]


@dataclass(frozen=True)
class Evaluation:
    """How the episodes of an evaluation ended, by condition: `result["crossing"]["success_rate"]`.

    The conditions of the navigation task are scenarios; another environment has one, its name.

    >>> import navrl
    >>> result = navrl.evaluate("straight", scenario="light", episodes=4, worlds=1)
    >>> "static_collision" in result["light"]["outcomes"]
    True
    >>> len(result.flights["light"].world)
    4
    """

    report: Mapping[str, Any]  # what `evaluation.json` holds
    flights: Mapping[str, Flights]  # by condition: statistics of every episode of the first policy
    paths: list[Path] = field(default_factory=list)  # files that were written

    @property
    def conditions(self) -> dict[str, dict[str, Any]]:
        """The numbers of the first policy by condition."""
        return dict(self.report["conditions"])

    @property
    def compared(self) -> list[dict[str, Any]]:
        """The results of the other policies, with paired differences to the first."""
        return list(self.report.get("compared", []))

    def __getitem__(self, condition: str) -> dict[str, Any]:
        """Return the numbers of a condition."""
        known = self.conditions
        if condition not in known:
            raise ConfigError(
                f"no condition {condition!r} in this evaluation; there are {', '.join(known)}."
                f"{nearest_name(condition, known)}"
            )
        return known[condition]
