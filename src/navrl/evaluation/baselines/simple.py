"""Pilots of a few lines: straight at the goal, random commands, a potential field."""

from __future__ import annotations

import torch
from torch import Tensor

from navrl.evaluation.baselines.senses import sense
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

__all__ = ["PotentialField", "RandomPilot", "Straight", "towards"]

RADIUS = 0.3  # m, of the drone


def towards(goal: Tensor, limit: float) -> Tensor:
    """Return velocities at the goal, (N, 3), at the speed limit until 1 m before it."""
    distance = goal.norm(dim=1, keepdim=True).clamp_min(1e-6)
    return goal / distance * (distance * limit).clamp_max(limit)


class Straight:
    """Flies straight at the goal and avoids nothing."""

    decides_alone = True

    def __init__(self, task: NavigationSettings) -> None:
        self._task = task

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3)."""
        return towards(sense(observation, self._task.sensor).goal, self._task.env.action_limit)


class RandomPilot:
    """Draws every command anew, uniform within the limit."""

    def __init__(self, task: NavigationSettings) -> None:
        self._limit = task.env.action_limit
        self._generator = torch.Generator().manual_seed(0)

    def begin(self, env: NavigationEnv) -> None:
        """Draw the same commands in every evaluation."""
        self._generator.manual_seed(0)

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3)."""
        drawn = torch.rand(len(observation["state"]), 3, generator=self._generator)
        return (2 * drawn - 1) * self._limit


class PotentialField:
    """Adds a pull at the goal and a push away from everything near (Khatib's field).

    An obstacle at distance d pushes with gain (1/d - 1/range) / d, horizontally. Moving obstacles
    are taken where they will be after `lookahead` seconds.
    """

    decides_alone = True

    def __init__(
        self,
        task: NavigationSettings,
        *,
        gain: float = 1.0,
        field_range: float = 3.0,
        lookahead: float = 0.3,
    ) -> None:
        self._task, self._gain = task, gain
        self._range, self._lookahead = field_range, lookahead

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3)."""
        limit = self._task.env.action_limit
        senses = sense(observation, self._task.sensor)
        command = towards(senses.goal, limit)
        share = 12.0 / senses.reach.shape[1]  # a box is met by more rays of a finer scan
        push = share * self._push(senses.reach - RADIUS)  # (N, H)
        command[:, :2] -= push @ senses.headings
        ahead = senses.position + self._lookahead * (senses.motion - senses.velocity[:, None])
        ahead[..., 2] = torch.where(senses.tall, 0.0, ahead[..., 2])
        distance = ahead.norm(dim=2).clamp_min(1e-6)
        gap = distance - senses.width / 2 - RADIUS
        push = torch.where(senses.present, 2 * self._push(gap), 0.0) / distance
        command[:, :2] -= (push[..., None] * ahead[..., :2]).sum(1)
        speed = command[:, :2].norm(dim=1, keepdim=True).clamp_min(limit)
        command[:, :2] *= limit / speed
        command[:, 2] = (1.5 * senses.goal[:, 2]).clamp(-limit / 2, limit / 2)
        return command

    def _push(self, gap: Tensor) -> Tensor:
        near = gap.clamp_min(0.05)
        return self._gain * (1 / near - 1 / self._range).clamp_min(0.0) / near
