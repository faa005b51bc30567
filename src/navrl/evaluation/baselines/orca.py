"""ORCA in three dimensions: the nearest velocity without a collision within a time horizon.

Every neighbour forbids the velocities that would bring it too near within the horizon: a truncated
cone of relative velocities. ORCA replaces each cone by the half-space that is tangent to it next to
the present relative velocity (van den Berg, Guy, Lin, Manocha: Reciprocal n-body collision
avoidance, 2011).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.evaluation.baselines.kernels.half_spaces import avoid
from navrl.evaluation.baselines.kernels.projection import nearest_velocity
from navrl.evaluation.baselines.senses import sense
from navrl.evaluation.baselines.simple import towards
from navrl.sim.settings import NavigationSettings

__all__ = ["Orca", "project", "reciprocal_velocities"]


def reciprocal_velocities(
    position: NDArray[np.float64],
    velocity: NDArray[np.float64],
    wish: NDArray[np.float64],
    *,
    radius: float,
    limit: float,
    horizon: float,
    neighbours: int = 10,
    flat: bool = False,
) -> NDArray[np.float64]:
    """Return new velocities of N agents that all avoid each other, (N, 3).

    Args:
        position: (N, 3) m.
        velocity: (N, 3) m/s.
        wish: (N, 3) m/s, the velocities that they would like to have.
        radius: m, of an agent.
        limit: m/s, the greatest speed.
        horizon: s without collision.
        neighbours: that an agent avoids: the nearest ones.
        flat: move in the horizontal plane only.
    """
    number = len(position)
    place = position[None] - position[:, None]  # (N, N, 3)
    distance = np.linalg.norm(place, axis=2)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1)[:, : min(neighbours, number - 1)]  # (N, K)
    shape = nearest.shape
    result = np.zeros((number, 3))
    avoid(
        velocity,
        wish,
        float(limit),
        np.take_along_axis(place, nearest[..., None], 1),
        velocity[nearest],
        np.full(shape, 2.0 * radius),
        np.full(shape, flat),
        np.full(shape, float(horizon)),
        np.ones(shape, bool),
        0.5,
        result,
    )
    return result


class Orca:
    """Flies ORCA with the drone's sensors: rays are obstacles at rest, tracks moving ones.

    The obstacles do not avoid the drone, so it takes the whole avoidance on.

    Args:
        task: gives sensor and speed limit.
        margin: m beyond the collision radius.
        static_horizon: s without meeting an obstacle at rest.
        moving_horizon: s without meeting a moving one.
        lag: s that the drone takes to answer: obstacles are taken where they will be then.
    """

    decides_alone = True

    def __init__(
        self,
        task: NavigationSettings,
        *,
        margin: float = 0.2,
        static_horizon: float = 1.0,
        moving_horizon: float = 2.0,
        lag: float = 0.25,
    ) -> None:
        self._task, self._margin, self._lag = task, margin, lag
        self._horizons = static_horizon, moving_horizon

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3)."""
        limit = self._task.env.action_limit
        senses = sense(observation, self._task.sensor)
        number, azimuths = senses.reach.shape
        hits = torch.zeros(number, azimuths, 3)
        hits[..., :2] = senses.reach[..., None] * senses.headings
        keep = self._task.env.collision_radius + self._margin
        half = torch.where(senses.tall, senses.width / 2, (senses.width / 2).clamp_min(0.5))
        radius = torch.cat([torch.full((number, azimuths), keep), half + keep], 1)
        flat = torch.cat([torch.ones(number, azimuths, dtype=torch.bool), senses.tall], 1)
        horizon = torch.full_like(radius, self._horizons[0])
        horizon[:, azimuths:] = self._horizons[1]
        place = torch.cat([hits, senses.position], 1)
        motion = torch.cat([torch.zeros_like(hits), senses.motion], 1)
        place = place + self._lag * (motion - senses.velocity[:, None])
        seen = senses.reach < self._task.sensor.lidar_range - 1e-4
        result = np.zeros((number, 3))
        avoid(
            _doubles(senses.velocity),
            _doubles(towards(senses.goal, limit)),
            float(limit),
            _doubles(place),
            _doubles(motion),
            _doubles(radius),
            flat.numpy(),
            _doubles(horizon),
            torch.cat([seen, senses.present], 1).numpy(),
            1.0,
            result,
        )
        return torch.from_numpy(result).float()


def _doubles(values: Tensor) -> NDArray[np.float64]:
    return np.ascontiguousarray(values.numpy(), np.float64)


def project(
    planes: NDArray[np.float64], wish: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Return the velocity nearest to a wish within half-spaces n . v >= b and a speed limit.

    Args:
        planes: (M, 4) unit normals and offsets.
        wish: (3,).
        radius: the greatest speed.
    """
    result = np.zeros(3)
    rows = np.ascontiguousarray(planes, np.float64)
    nearest_velocity(
        rows, len(rows), np.asarray(wish, np.float64), radius, np.empty((len(rows), 3)), result
    )
    return result
