"""A scripted pilot that flies at the goal and steers around what LiDAR and tracker detect."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from navrl.navigation_observation import (
    GOAL_DISTANCE,
    GOAL_HEIGHT,
    OBSTACLE_DISTANCE,
    OBSTACLE_VELOCITY,
    OBSTACLE_WIDTH,
    VELOCITY,
    WIDTH_STEP,
)

CAUTION = 1.5  # m; azimuths with less free distance are penalised
LOOKAHEAD = 0.8  # s over which the motion of obstacles is extrapolated
NEIGHBOURS = 4  # azimuths to each side whose obstacles count, with falling weight
SLOWEST = 0.2  # fraction of the speed limit in front of an obstacle


class ScriptedPilot:
    """The scripted pilot with its limits.

    Args:
        limit: the greatest speed, m/s.
        reach: range of the LiDAR, m.
    """

    decides_alone = True

    def __init__(self, limit: float = 2.0, reach: float = 4.0) -> None:
        self.limit, self.reach = limit, reach

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3)."""
        return scripted_pilot(observation, self.limit, self.reach)


def scripted_pilot(
    observation: dict[str, Tensor], limit: float = 2.0, reach: float = 4.0
) -> Tensor:
    """Return velocity commands in the goal frame, (N, 3): along the best azimuth, at goal height.

    The score of an azimuth is its alignment with the goal and the current velocity, plus its free
    distance, minus a penalty where that is short. The LiDAR turns with the drone, whose controller
    does not change its yaw, so its azimuths are those of the goal frame.
    """
    state = observation["state"]  # (N, 8)
    distances = (reach - observation["lidar"][:, 0]).amin(2)  # (N, H) nearest of the beams
    azimuths = torch.arange(distances.shape[1]) * (2 * math.pi / distances.shape[1])
    headings = torch.stack([azimuths.cos(), azimuths.sin()], 1)  # (H, 2)
    distances = torch.minimum(
        distances, _moving_distances(observation["dynamic_obstacle"][:, 0], headings, reach)
    )
    step = float(azimuths[1])
    discounts = {
        s: (1 + 0.25 * abs(s)) / max(math.cos(s * step), 0.2)
        for s in range(-NEIGHBOURS, NEIGHBOURS + 1)
    }
    room = torch.stack(
        [distances.roll(shift, 1) * factor for shift, factor in discounts.items()]
    ).amin(0)  # (N, H)
    # behind the goal nothing counts
    beyond = state[:, GOAL_DISTANCE, None].clamp_min(0.5)
    free = (torch.minimum(room, beyond) / reach).clamp_max(1.0)
    goal = torch.nn.functional.normalize(state[:, :2], dim=1) @ headings.T  # (N, H)
    value = (
        goal
        + 2.0 * free
        + 0.5 / limit * state[:, VELOCITY][:, :2] @ headings.T
        - 4.0 * (1 - room / CAUTION).clamp_min(0.0)
    )
    chosen = value.argmax(1)
    ahead = distances.gather(1, chosen[:, None])[:, 0]
    speed = limit * torch.minimum(ahead / CAUTION, state[:, GOAL_DISTANCE]).clamp(SLOWEST, 1.0)
    climb = (state[:, GOAL_HEIGHT] * 1.5).clamp(-limit / 2, limit / 2)
    return torch.cat([headings[chosen] * speed[:, None], climb[:, None]], 1)


def _moving_distances(obstacles: Tensor, headings: Tensor, reach: float) -> Tensor:
    """Return the distance to moving obstacles in each azimuth, now or shortly, (N, H)."""
    distance = obstacles[..., OBSTACLE_DISTANCE, None]
    present = distance[..., 0] > 0  # (N, C)
    direction = torch.nn.functional.normalize(obstacles[..., :2], dim=-1)
    position = direction * distance  # (N, C, 2)
    ahead = position + LOOKAHEAD * obstacles[..., OBSTACLE_VELOCITY][..., :2]
    result = torch.full((len(obstacles), len(headings)), reach)
    for place in (position, ahead):
        along = place @ headings.T  # (N, C, H)
        across = (place[..., None, :] - along[..., None] * headings).norm(dim=-1)  # (N, C, H)
        radius = (obstacles[..., OBSTACLE_WIDTH, None] + 1) * (WIDTH_STEP / 2) + 0.4
        hit = present[..., None] & (along > 0) & (across < radius)
        result = torch.minimum(
            result, torch.where(hit, along - radius, reach).amin(1).clamp_min(0.0)
        )
    return result
