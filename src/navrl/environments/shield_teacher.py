"""The teachers of the navigation task: the shield, asked about other commands than the policy's.

They need no training and are given what the policy is given. `straight` flies straight at the goal
behind the shield: a policy that imitates it at first (`algo.imitation`) crosses a field of
obstacles long before rewards alone would have taught it to. `own` flies where the policy wants to,
at full speed and behind the shield: it corrects a policy that is already good.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from navrl.deploy.shielded_pilot import ShieldedPilot
from navrl.evaluation.baselines.simple import Straight
from navrl.sim.env import NavigationEnv

__all__ = ["TEACHERS", "OwnTeacher", "StraightTeacher"]

ARRIVING = 2.0  # m from the goal: nearer, a policy may be slow
STANDING = 0.3  # m/s: a slower command has no direction worth flying to


class StraightTeacher:
    """Says what the shield makes of flying straight at the goal.

    Args:
        simulator: the drones that are taught.
    """

    def __init__(self, simulator: NavigationEnv) -> None:
        self._layout = simulator.layout
        self._straight = Straight(simulator.settings)
        self._shield = ShieldedPilot(self._straight, simulator)

    def __call__(self, rows: Tensor, action: Tensor) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3), for packed observations."""
        observation = self._layout.split(rows)
        result = self._shield.filtered(observation, self._straight(observation))
        return torch.from_numpy(result.velocity).float()


class OwnTeacher:
    """Says what the shield makes of the policy's direction at full speed, where it changes that.

    At full speed, because a policy that is corrected at its own speed learns to stand still where
    it is corrected often.

    Args:
        simulator: the drones that are taught.
    """

    def __init__(self, simulator: NavigationEnv) -> None:
        self._layout = simulator.layout
        self._limit = simulator.settings.env.action_limit
        self._shield = ShieldedPilot(lambda observation: observation["state"], simulator)

    def __call__(self, rows: Tensor, action: Tensor) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3), or NaN where there is no advice."""
        observation = self._layout.split(rows)
        speed = action.norm(dim=1, keepdim=True).clamp_min(STANDING)
        arriving = observation["state"][:, 3:4] < ARRIVING
        faster = torch.where(arriving, 1.0, (self._limit / speed).clamp_min(1.0))
        result = self._shield.filtered(observation, action * faster)
        advice = torch.from_numpy(result.velocity).float()
        advice[~torch.from_numpy(result.intervened)] = math.nan
        return advice


TEACHERS: dict[str, type[StraightTeacher] | type[OwnTeacher]] = {
    "straight": StraightTeacher,
    "own": OwnTeacher,
}
