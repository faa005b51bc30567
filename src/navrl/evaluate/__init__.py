"""Judge a policy: fly episodes in unseen worlds, count how they end, compare, draw a card.

`load_policy` finds a policy, `conditions` describes the worlds, `evaluate` flies them.
"""

from navrl.evaluate.conditions import conditions, label_of
from navrl.evaluate.flights import OUTCOMES, Act, Flights, evaluate
from navrl.evaluate.policy import INTERFACE, PRETRAINED, Policy, load_policy

__all__ = [
    "INTERFACE",
    "OUTCOMES",
    "PRETRAINED",
    "Act",
    "Flights",
    "Policy",
    "conditions",
    "evaluate",
    "label_of",
    "load_policy",
]
