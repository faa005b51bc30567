"""An observation as obstacles around the drone, in the goal frame with the drone at its origin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from navrl.navigation_observation import (
    GOAL_DIRECTION,
    GOAL_DISTANCE,
    GOAL_HEIGHT,
    OBSTACLE_DIRECTION,
    OBSTACLE_DISTANCE,
    OBSTACLE_FLOATS,
    OBSTACLE_HEIGHT,
    OBSTACLE_VELOCITY,
    OBSTACLE_WIDTH,
    VELOCITY,
    WIDTH_STEP,
)
from navrl.sim.settings import SensorSettings

__all__ = ["Senses", "sense"]


@dataclass(frozen=True)
class Senses:
    """What a drone knows: N drones, H azimuths, C tracked obstacles."""

    goal: Tensor  # (N, 3) m
    velocity: Tensor  # (N, 3) m/s
    reach: Tensor  # (N, H) m to the nearest static obstacle in each azimuth, or the LiDAR's range
    headings: Tensor  # (H, 2) unit vectors of the azimuths
    position: Tensor  # (N, C, 3) m, of moving obstacles
    motion: Tensor  # (N, C, 3) m/s, their velocities
    width: Tensor  # (N, C) m
    tall: Tensor  # (N, C) True: a cylinder that cannot be passed above or below
    present: Tensor  # (N, C) False: there is no such obstacle within range


def sense(observation: dict[str, Tensor], lidar: SensorSettings) -> Senses:
    """Return what an observation says about the surroundings.

    Rays below the horizon are left out: they see the ground too. The LiDAR turns with the drone,
    which faces its goal from the start and is not turned by its controller, so its azimuths are
    taken as those of the goal frame.
    """
    state = observation["state"]  # (N, 8)
    distance = torch.sqrt(state[:, GOAL_DISTANCE] ** 2 + state[:, GOAL_HEIGHT] ** 2)
    scan = observation["lidar"][:, 0]  # (N, H, V) range - distance
    low, high = lidar.lidar_vfov
    elevations = torch.deg2rad(torch.linspace(low, high, lidar.lidar_vbeams))
    used = elevations >= -1e-6 if bool((elevations >= -1e-6).any()) else elevations > -math.pi
    flat = (lidar.lidar_range - scan[..., used]) * elevations[used].cos()
    reach = torch.where(scan[..., used] > 1e-6, flat, lidar.lidar_range).amin(-1)
    azimuths = torch.arange(scan.shape[1]) * (2 * math.pi / scan.shape[1])
    rows = observation["dynamic_obstacle"][:, 0]  # (N, C, 10)
    far = torch.sqrt(rows[..., OBSTACLE_DISTANCE] ** 2 + rows[..., OBSTACLE_HEIGHT] ** 2)
    return Senses(
        goal=state[:, GOAL_DIRECTION] * distance[:, None],
        velocity=state[:, VELOCITY],
        reach=reach,
        headings=torch.stack([azimuths.cos(), azimuths.sin()], 1),
        position=rows[..., OBSTACLE_DIRECTION] * far[..., None],
        motion=rows[..., OBSTACLE_VELOCITY],
        width=(rows[..., OBSTACLE_WIDTH] + 1) * WIDTH_STEP,
        tall=rows[..., OBSTACLE_FLOATS] < 0.5,
        present=rows[..., OBSTACLE_DISTANCE] > 0,
    )
