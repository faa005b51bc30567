"""Evaluate a policy: fly episodes in unseen worlds, count how they end, compare, draw a card.

`load_policy` finds a policy, `scenario_tasks` describes the worlds, `evaluate` flies them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "Act": "navrl.evaluation.flights",
    "Flights": "navrl.evaluation.flights",
    "INTERFACE": "navrl.evaluation.policy_lookup",
    "OUTCOMES": "navrl.evaluation.flights",
    "PRETRAINED": "navrl.evaluation.policy_lookup",
    "Policy": "navrl.evaluation.policy_lookup",
    "Recording": "navrl.evaluation.recording",
    "conditions": "navrl.evaluation.tasks",
    "evaluate": "navrl.evaluation.flights",
    "label_of": "navrl.evaluation.tasks",
    "load_policy": "navrl.evaluation.policy_lookup",
    "scenario_tasks": "navrl.evaluation.scenarios",
}

if TYPE_CHECKING:
    from navrl.evaluation.flights import OUTCOMES as OUTCOMES
    from navrl.evaluation.flights import Act as Act
    from navrl.evaluation.flights import Flights as Flights
    from navrl.evaluation.flights import evaluate as evaluate
    from navrl.evaluation.policy_lookup import INTERFACE as INTERFACE
    from navrl.evaluation.policy_lookup import PRETRAINED as PRETRAINED
    from navrl.evaluation.policy_lookup import Policy as Policy
    from navrl.evaluation.policy_lookup import load_policy as load_policy
    from navrl.evaluation.recording import Recording as Recording
    from navrl.evaluation.scenarios import scenario_tasks as scenario_tasks
    from navrl.evaluation.tasks import conditions as conditions
    from navrl.evaluation.tasks import label_of as label_of

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)
