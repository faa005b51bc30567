"""Left-right reflection of the navigation task: what was learnt on one side holds on the other.

In the goal frame, with x towards the goal and z up, a reflection negates every y. Flights through
the reflected world with reflected commands earn the same rewards, so a reflected sample is a
sample of the same task.
"""

from __future__ import annotations

import torch
from torch import Tensor

from navrl.navigation_observation import reflection
from navrl.observation import ObservationLayout

__all__ = ["Mirror"]

LEFT = 1  # the axis of a command that points left


class Mirror:
    """Reflects packed observations and actions of the unit cube."""

    def __init__(self, layout: ObservationLayout) -> None:
        order, signs = reflection(layout)
        self._order, self._signs = torch.tensor(order), torch.tensor(signs)

    def rows(self, rows: Tensor) -> Tensor:
        """Return the reflection of packed observations, (N, width)."""
        return rows[:, self._order.to(rows.device)] * self._signs.to(rows.device)

    def actions(self, action: Tensor) -> Tensor:
        """Return the reflection of actions in the unit cube, (N, 3 or more): y becomes 1 - y."""
        mirrored = action.clone()
        mirrored[:, LEFT] = 1 - mirrored[:, LEFT]
        return mirrored
