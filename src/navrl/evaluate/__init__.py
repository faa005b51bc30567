"""Judge a policy: fly episodes in unseen worlds, count how they end, compare, draw a card.

`load_policy` finds a policy, `scenario_tasks` describes the worlds, `evaluate` flies them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "Act": "navrl.evaluate.flights",
    "Flights": "navrl.evaluate.flights",
    "INTERFACE": "navrl.evaluate.policy",
    "OUTCOMES": "navrl.evaluate.flights",
    "PRETRAINED": "navrl.evaluate.policy",
    "Policy": "navrl.evaluate.policy",
    "Recording": "navrl.evaluate.recording",
    "conditions": "navrl.evaluate.tasks",
    "evaluate": "navrl.evaluate.flights",
    "label_of": "navrl.evaluate.tasks",
    "load_policy": "navrl.evaluate.policy",
    "scenario_tasks": "navrl.evaluate.scenarios",
}

if TYPE_CHECKING:
    from navrl.evaluate.flights import OUTCOMES as OUTCOMES
    from navrl.evaluate.flights import Act as Act
    from navrl.evaluate.flights import Flights as Flights
    from navrl.evaluate.flights import evaluate as evaluate
    from navrl.evaluate.policy import INTERFACE as INTERFACE
    from navrl.evaluate.policy import PRETRAINED as PRETRAINED
    from navrl.evaluate.policy import Policy as Policy
    from navrl.evaluate.policy import load_policy as load_policy
    from navrl.evaluate.recording import Recording as Recording
    from navrl.evaluate.scenarios import scenario_tasks as scenario_tasks
    from navrl.evaluate.tasks import conditions as conditions
    from navrl.evaluate.tasks import label_of as label_of

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)
