"""What a robot file adds to the task: another body, and a LiDAR that sees less."""

from __future__ import annotations

import torch
from torch import Tensor

from navrl.sim.reference.rays import Scene

__all__ = ["held", "hits_cylinder", "within_view"]


def hits_cylinder(scene: Scene, position: Tensor, radius: float, height: float) -> Tensor:
    """Return whether an upright cylinder around each position (N, 3) touches a solid, (N,)."""
    x, y, z = (position[:, axis, None] for axis in range(3))  # (N, 1) each
    x0, x1, y0, y1, z0, z1 = scene.boxes.T  # (M,) each
    to_x = torch.maximum(x0 - x, x - x1).clamp(min=0.0)  # (N, M)
    to_y = torch.maximum(y0 - y, y - y1).clamp(min=0.0)
    beside = to_x**2 + to_y**2 < radius**2
    hit = (beside & _overlaps(z, z0, z1, height)).any(dim=-1)
    x0, y0, thickness, z0, z1 = scene.cylinders.T  # (C,) each
    beside = torch.hypot(x - x0, y - y0) < radius + thickness
    return hit | (beside & _overlaps(z, z0, z1, height)).any(dim=-1)


def _overlaps(z: Tensor, bottom: Tensor, top: Tensor, height: float) -> Tensor:
    return (bottom < z + height / 2) & (z - height / 2 < top)


def within_view(distances: Tensor, field_of_view: float, maximum: float) -> Tensor:
    """Return ray lengths (N, H, V) with `maximum` outside of a field of view in degrees, which is
    centred on azimuth 0.
    """
    count = distances.shape[1]
    number = torch.arange(count, device=distances.device)
    angle = torch.minimum(number, count - number) * (360.0 / count)  # (H,) from straight ahead
    return torch.where((angle <= field_of_view / 2)[:, None], distances, maximum)


def held(scans: Tensor, interval: int) -> Tensor:
    """Return the scans (T, ...) that the decisions of an episode see if only every so-many-th
    decision has a new one.
    """
    return scans[torch.arange(len(scans)) // interval * interval]
