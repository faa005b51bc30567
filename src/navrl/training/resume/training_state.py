"""The training state in a checkpoint, and how that of an older version is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["WEIGHTS", "is_training_state", "rank_states", "upgraded_state"]

WEIGHTS = "model_state_dict"  # the policy's weights by name
_OLD_WEIGHTS = "network"
_OLD_METRICS = {"success": "success_100", "clearance": "min_clearance"}  # of the best model


def is_training_state(state: Any) -> bool:
    """Return whether this is what `navrl train` saves: settings and the state of every rank."""
    return isinstance(state, dict) and "config" in state and "ranks" in state


def rank_states(state: Mapping[str, Any], size: int) -> list[dict[str, Any] | None]:
    """Return the state of each of `size` ranks; None for all if another number of ranks saved it.

    The environments of one rank cannot be divided among others, so ranks without a state begin new
    episodes.
    """
    ranks = state["ranks"]
    return [*ranks] if len(ranks) == size else [None] * size


def upgraded_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state under the current names."""
    upgraded = dict(state)
    if WEIGHTS not in upgraded and _OLD_WEIGHTS in upgraded:
        upgraded[WEIGHTS] = upgraded.pop(_OLD_WEIGHTS)
    best = upgraded.get("best")
    if isinstance(best, Mapping):
        upgraded["best"] = {_OLD_METRICS.get(name, name): value for name, value in best.items()}
    return upgraded
