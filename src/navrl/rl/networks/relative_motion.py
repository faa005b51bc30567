"""How moving obstacles approach the drone, from what an observation tells of both.

Where and when an obstacle comes closest is a quotient of products of what is observed, which a
network would have to learn. With `network.relative_motion` it is given it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from navrl.navigation_observation import OBSTACLE, STATE

__all__ = ["RELATIVE", "relative_motion"]

# of each obstacle, in the goal frame; absent obstacles have zeros
RELATIVE = (
    "relative_velocity_x",  # m/s, of the obstacle seen from the drone
    "relative_velocity_y",
    "relative_velocity_z",  # 0 for those that reach from the ground up
    "approach_time",  # s until it is closest if both keep their velocity, at most HORIZON
    "approach_x",  # m, where it is then, seen from the drone
    "approach_y",
    "approach_z",
    "approach_gap",  # m from the drone's centre to the obstacle's side then
)
HORIZON = 3.0  # s
SLOWEST = 0.01  # (m/s)^2, added to the squared relative speed that is divided by
PRESENT = 0.25  # an obstacle's direction has length 1, that of an absent one length 0

DISTANCE, HEIGHT = OBSTACLE.index("distance_horizontal"), OBSTACLE.index("height_difference")
VELOCITY, WIDTH_CLASS = OBSTACLE.index("velocity_x"), OBSTACLE.index("width_class")
HALF_CLASS = 0.125  # m; an obstacle is twice (its class + 1) times that wide
FLOATS, OWN_VELOCITY = OBSTACLE.index("floats"), STATE.index("velocity_x")


def relative_motion(obstacles: Tensor, state: Tensor) -> Tensor:
    """Return the relative motion of obstacles, (N, K, 8), the numbers named in RELATIVE.

    Args:
        obstacles: as observed, (N, K, 10).
        state: of the drone, as observed, (N, 8).

    >>> import torch
    >>> ahead = torch.tensor([[[1.0, 0, 0, 3, 0, -1, 0, 0, 1, 0]]])  # 3 m in front, comes nearer
    >>> found = relative_motion(ahead, torch.tensor([[1.0, 0, 0, 9, 0, 1, 0, 0]]))[0, 0]
    >>> dict(zip(RELATIVE, (round(number, 2) for number in found.tolist())))["approach_time"]
    1.5
    """
    direction = obstacles[..., :3]
    distance = torch.sqrt(
        obstacles[..., DISTANCE : DISTANCE + 1] ** 2 + obstacles[..., HEIGHT : HEIGHT + 1] ** 2
    )
    offset = direction * distance
    velocity = (
        obstacles[..., VELOCITY : VELOCITY + 3] - state[:, None, OWN_VELOCITY : OWN_VELOCITY + 3]
    )
    velocity = torch.cat(
        [velocity[..., :2], velocity[..., 2:] * obstacles[..., FLOATS : FLOATS + 1]], -1
    )
    speed = (velocity**2).sum(-1, keepdim=True) + SLOWEST
    time = (-(offset * velocity).sum(-1, keepdim=True) / speed).clamp(0.0, HORIZON)
    closest = offset + velocity * time
    half_width = (obstacles[..., WIDTH_CLASS : WIDTH_CLASS + 1] + 1) * HALF_CLASS
    gap = torch.sqrt((closest**2).sum(-1, keepdim=True)) - half_width
    found = torch.cat([velocity, time, closest, gap], -1)
    present = (direction**2).sum(-1, keepdim=True) > PRESENT
    return torch.where(present, found, torch.zeros_like(found))
