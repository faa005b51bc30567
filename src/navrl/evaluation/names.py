"""What can be flown by name: scenarios and policies, as data. Imports nothing heavy.

Settings that the user types, or that a preset of the training changes, win over the scenario's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CROSSING", "DEFAULT_SCENARIOS", "POLICIES", "SCENARIOS", "Scenario", "listed"]

STATIC, MOVING, LAYOUT = "env.num_obstacles", "env_dyn.num_obstacles", "env.layout"
CROSSING = "navrl_eval"  # the layout whose trips all cross the field


@dataclass(frozen=True)
class Scenario:
    """A named set of worlds and trips."""

    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # all combinations are flown


SCENARIOS = {
    "static": Scenario("350 boxes, random trips", {STATIC: 350, MOVING: 0}),
    "standard": Scenario("350 boxes, 80 moving, random trips", {STATIC: 350, MOVING: 80}),
    "crossing": Scenario(
        "350 boxes, 80 moving, every trip crosses the field (48 m)",
        {STATIC: 350, MOVING: 80, LAYOUT: CROSSING},
    ),
    "crossing-static": Scenario(
        "350 boxes, every trip crosses the field", {STATIC: 350, MOVING: 0, LAYOUT: CROSSING}
    ),
    "walled": Scenario(
        "as crossing, with walls along both sides: no way around",
        {STATIC: 350, MOVING: 80, LAYOUT: "walled"},
    ),
    "light": Scenario("100 boxes, 16 moving, random trips", {STATIC: 100, MOVING: 16}),
    "dense": Scenario("500 boxes, 120 moving, random trips", {STATIC: 500, MOVING: 120}),
    "moving": Scenario("no boxes, 80 moving, random trips", {STATIC: 0, MOVING: 80}),
    "grid": Scenario(
        "300, 350, 400 boxes x 0, 60, 80, 100 moving, random trips: twelve cells",
        cells={STATIC: (300, 350, 400), MOVING: (0, 60, 80, 100)},
    ),
    "own": Scenario("your worlds, given by env.world_files=[my.yaml]"),
}
DEFAULT_SCENARIOS = ("standard", "crossing")

POLICIES = {
    "pretrained": "the policy that comes with the package",
    "scripted": "hand-written pilot: the best free azimuth of the LiDAR",
    "straight": "straight at the goal, avoids nothing",
    "random": "random commands",
    "potential-field": "pull at the goal, push away from obstacles",
    "dynamic-window": "dynamic window approach: commands tried on a model of the drone",
    "orca": "optimal reciprocal collision avoidance, in three dimensions",
    "oracle": "upper bound: planner with the whole map and the true future of all obstacles",
}


def listed(entries: Mapping[str, str]) -> str:
    """Return names and what they mean, a line each, for a help page."""
    return "\n".join(f"  {name:<16} {about}" for name, about in entries.items())
