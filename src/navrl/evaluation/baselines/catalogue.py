"""Baselines by name."""

from __future__ import annotations

import copy
from collections.abc import Callable

from navrl.evaluation.flights import Act
from navrl.sim.settings import NavigationSettings

__all__ = ["BASELINES", "baseline_task", "make_baseline"]

DECISIONS = 5  # simulated steps between decisions, unless the user says otherwise: 12.5 Hz


def _straight(task: NavigationSettings) -> Act:
    from navrl.evaluation.baselines.simple import Straight

    return Straight(task)


def _random(task: NavigationSettings) -> Act:
    from navrl.evaluation.baselines.simple import RandomPilot

    return RandomPilot(task)


def _potential_field(task: NavigationSettings) -> Act:
    from navrl.evaluation.baselines.simple import PotentialField

    return PotentialField(task)


def _dynamic_window(task: NavigationSettings) -> Act:
    from navrl.evaluation.baselines.dynamic_window import DynamicWindow

    return DynamicWindow(task)


def _orca(task: NavigationSettings) -> Act:
    from navrl.evaluation.baselines.orca import Orca

    return Orca(task)


def _oracle(task: NavigationSettings) -> Act:
    from navrl.evaluation.baselines.oracle import Oracle

    return Oracle(task)


BASELINES: dict[str, Callable[[NavigationSettings], Act]] = {
    "straight": _straight,
    "random": _random,
    "potential-field": _potential_field,
    "dynamic-window": _dynamic_window,
    "orca": _orca,
    "oracle": _oracle,
}


def baseline_task(task: NavigationSettings) -> NavigationSettings:
    """Return the task with the decision rate of the baselines, unless it has another one."""
    own = copy.deepcopy(task)
    if own.env.action_repeat == 1:
        own.env.action_repeat = DECISIONS
    return own


def make_baseline(name: str, task: NavigationSettings) -> Act:
    """Return a baseline as a function of observations."""
    return BASELINES[name](task)
