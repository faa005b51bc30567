"""Exact ray casting against boxes, upright cylinders and the ground."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LIDAR_RANGE", "Scene", "cast_rays"]

LIDAR_RANGE = 4.0


@dataclass(frozen=True)
class Scene:
    """The static solids. Either kind may be empty: `torch.zeros(0, 6)`, `torch.zeros(0, 5)`."""

    boxes: Tensor  # (M, 6): x0, x1, y0, y1, z0, z1
    cylinders: Tensor  # (C, 5): x, y, radius, z0, z1; the axis is vertical
    ground_half_width: float = 25.0  # flat ground z = 0 inside |x|, |y| <= this; nothing beyond


def cast_rays(
    scene: Scene,
    position: Tensor,
    yaw: Tensor,
    azimuths: Tensor,
    elevations: Tensor,
    maximum: float = LIDAR_RANGE,
) -> Tensor:
    """Return the exact distance to the first solid along every ray, (N, H, V), at most `maximum`.

    The rays turn with the yaw of the drone, not with roll or pitch. An origin inside or on a solid
    gives 0.
    """
    heading = (yaw[:, None] + azimuths)[:, :, None]  # (N, H, 1)
    # (N, H, V)
    x, y = (torch.cos(heading) * torch.cos(elevations), torch.sin(heading) * torch.cos(elevations))
    direction = torch.stack([x, y, torch.sin(elevations).expand_as(x)], dim=-1)  # (N, H, V, 3)
    origin = position[:, None, None, :].expand_as(direction)  # (N, H, V, 3)
    ground = _ground_distance(scene.ground_half_width, origin, direction)[..., None]  # (N, H, V, 1)
    boxes = _box_distances(scene.boxes, origin, direction)  # (N, H, V, M)
    cylinders = _cylinder_distances(scene.cylinders, origin, direction)  # (N, H, V, C)
    return torch.cat([ground, boxes, cylinders], dim=-1).amin(dim=-1).clamp(max=maximum)


def _slab(origin: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ray parameters at which low <= origin + t * direction <= high begins and ends."""
    parallel = direction == 0
    divisor = torch.where(parallel, 1.0, direction)
    first, second = (low - origin) / divisor, (high - origin) / divisor
    # A ray parallel to the faces is always or never between them.
    endless = torch.where((low <= origin) & (origin <= high), math.inf, -math.inf)
    enter = torch.where(parallel, -endless, torch.minimum(first, second))
    leave = torch.where(parallel, endless, torch.maximum(first, second))
    return enter, leave


def _first_hit(enter: Tensor, leave: Tensor) -> Tensor:
    """Return the distance at which rays enter a convex solid: 0 from inside, infinity if never."""
    return torch.where((enter <= leave) & (leave >= 0), enter.clamp(min=0.0), math.inf)


def _box_distances(boxes: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    """Return (N, H, V, M) distances to boxes: the overlap of the slabs of the three axes."""
    low, high = boxes[:, 0::2], boxes[:, 1::2]  # (M, 3)
    # (N, H, V, M, 3)
    enter, leave = _slab(origin[..., None, :], direction[..., None, :], low, high)
    return _first_hit(enter.amax(dim=-1), leave.amin(dim=-1))


def _cylinder_distances(cylinders: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    """Return (N, H, V, C) distances to upright cylinders: an infinite tube between two caps."""
    x, y, radius, bottom, top = cylinders.unbind(dim=-1)  # (C,)
    from_x, from_y = origin[..., 0:1] - x, origin[..., 1:2] - y  # (N, H, V, C)
    # (N, H, V, 1)
    along_x, along_y, along_z = (direction[..., 0:1], direction[..., 1:2], direction[..., 2:3])
    # |from + t * along|^2 = radius^2 in the plane: a t^2 + 2 b t + c = 0. (a > 0: the cosine of no
    # angle rounds to 0.)
    a, b = along_x**2 + along_y**2, from_x * along_x + from_y * along_y
    discriminant = b**2 - a * (from_x**2 + from_y**2 - radius**2)
    root = discriminant.clamp(min=0.0).sqrt()
    cap_enter, cap_leave = _slab(origin[..., 2:3], along_z, bottom, top)
    enter = torch.maximum((-b - root) / a, cap_enter)
    leave = torch.minimum((-b + root) / a, cap_leave)
    return torch.where(discriminant >= 0, _first_hit(enter, leave), math.inf)


def _ground_distance(half_width: float, origin: Tensor, direction: Tensor) -> Tensor:
    """Return (N, H, V) distances to the ground. Choice: solid below, so z <= 0 gives 0."""
    height, slope = origin[..., 2], direction[..., 2]
    distance = torch.where(slope < 0, height / -slope.clamp(max=-1e-30), math.inf)
    # (N, H, V, 2)
    landing = origin[..., :2] + distance[..., None].clamp(max=1e30) * direction[..., :2]
    on_ground = (landing.abs() <= half_width).all(dim=-1)
    buried = (height <= 0) & (origin[..., :2].abs() <= half_width).all(dim=-1)
    return torch.where(buried, 0.0, torch.where(on_ground & (height > 0), distance, math.inf))
