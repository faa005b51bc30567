"""Everything that moves, at one moment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from navrl.sim.env import NavigationEnv

__all__ = ["FLYING", "Moment", "moment_of"]

FLYING = "flying"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Moment:
    """What is where at one moment; metres, world frame."""

    position: Floats  # (R, 3)
    yaw: Floats  # (R,)
    goal: Floats  # (R, 3)
    state: list[str]  # (R,) FLYING, or how the flight has ended
    moving_position: Floats  # (D, 3)
    moving_width: Floats  # (D,)
    moving_tall: NDArray[np.bool_]  # (D,)
    trails: list[Floats] = field(default_factory=list)  # (K, 3) the way of each drone so far
    rays: Floats = field(default_factory=lambda: np.zeros((0, 2, 3), np.float32))  # (B, 2, 3)
    hits: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))  # (B,)
    seconds: float = 0.0


def moment_of(
    env: NavigationEnv, drones: torch.Tensor, trails: list[Floats], *, scanned: int | None = None
) -> Moment:
    """Return what a simulator shows now of some drones, (R,), all in the world of the first.

    The rays are those of the drone `scanned`, or of the first.
    """
    moving = env.obstacles(int(env.world[drones[0]]))
    rays, hits = _rays(env, int(drones[0]) if scanned is None else scanned)
    return Moment(
        position=env.position[drones].numpy(),
        yaw=env.yaw[drones].numpy(),
        goal=env.target[drones].numpy(),
        state=[FLYING] * len(drones),
        moving_position=moving["position"].numpy(),
        moving_width=moving["width"].numpy(),
        moving_tall=moving["tall"].numpy(),
        trails=trails,
        rays=rays,
        hits=hits,
    )


def _rays(env: NavigationEnv, drone: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the LiDAR rays of a drone as lines, (B, 2, 3), and which of them hit something."""
    sensor = env.settings.sensor
    scan = env.observe()["lidar"][drone, 0].numpy()  # (azimuths, beams): range less distance
    azimuth = float(env.yaw[drone]) + 2 * math.pi * np.arange(len(scan))[:, None] / len(scan)
    lowest, highest = sensor.lidar_vfov
    rise = np.radians(np.linspace(lowest, highest, sensor.lidar_vbeams))[None, :]
    directions = np.stack(
        np.broadcast_arrays(
            np.cos(azimuth) * np.cos(rise), np.sin(azimuth) * np.cos(rise), np.sin(rise)
        ),
        axis=-1,
    )
    start = env.position[drone].numpy()
    ends = start + directions * (sensor.lidar_range - scan)[..., None]
    lines = np.stack([np.broadcast_to(start, ends.shape), ends], axis=2).reshape(-1, 2, 3)
    return lines.astype(np.float32), scan.ravel() > 1e-6
