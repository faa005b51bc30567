"""The dynamic window approach: try commands on a model of the drone, take the best.

Every command is held for two seconds by a model of the drone; commands that meet an obstacle drop
out, the others are rated by progress, clearance and speed (Fox, Burgard, Thrun: The dynamic window
approach to collision avoidance, 1997). Moving obstacles are assumed to keep their velocity.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from navrl.evaluation.baselines.kernels.command_search import choose
from navrl.evaluation.baselines.response import response_of
from navrl.evaluation.baselines.senses import sense
from navrl.sim.settings import NavigationSettings

__all__ = ["DynamicWindow"]

DIRECTIONS = 24
SPEEDS = (1.0, 0.7, 0.4)  # of the limit; and a stop


class DynamicWindow:
    """Flies the dynamic window approach with the drone's sensors.

    Args:
        task: gives sensor, speed limit and drone.
        margin: m beyond the collision radius.
    """

    decides_alone = True

    def __init__(self, task: NavigationSettings, *, margin: float = 0.1) -> None:
        self._task, self._margin = task, margin
        angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
        ring = np.stack([np.cos(angles), np.sin(angles)], 1)
        self._candidates = np.concatenate([ring * speed for speed in SPEEDS] + [np.zeros((1, 2))])

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3)."""
        senses = sense(observation, self._task.sensor)
        result = np.zeros((len(senses.goal), 3))
        choose(
            *(
                np.ascontiguousarray(part.numpy(), np.float64 if part.is_floating_point() else bool)
                for part in (
                    senses.velocity,
                    senses.goal,
                    senses.reach[..., None] * senses.headings,
                    senses.reach < self._task.sensor.lidar_range - 1e-4,
                    senses.position,
                    senses.motion,
                    senses.width,
                    senses.tall,
                    senses.present,
                )
            ),
            self._candidates,
            tuple(response_of(self._task)),
            float(self._task.env.action_limit),
            self._task.env.collision_radius + self._margin,
            result,
        )
        return torch.from_numpy(result).float()
