"""Where a picture is taken from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Camera", "chasing", "overview"]

FIELD_OF_VIEW = math.radians(42)  # from bottom to top


@dataclass(frozen=True)
class Camera:
    """A camera at `eye` that looks at `target`, z up; metres, world frame."""

    eye: tuple[float, float, float]
    target: tuple[float, float, float]
    near: float = 0.2

    def packed(self, width: int, height: int) -> NDArray[np.float32]:
        """Return the camera as the kernels read it, for a picture of so many pixels, (16,)."""
        right, up, ahead = self.axes()
        focal = height / 2 / math.tan(FIELD_OF_VIEW / 2)
        numbers = [*right, *up, *ahead, *self.eye, focal, width / 2, height / 2, self.near]
        return np.array(numbers, np.float32)

    def axes(self) -> NDArray[np.float64]:
        """Return the unit vectors to the right, up and ahead, (3, 3)."""
        ahead = np.subtract(self.target, self.eye, dtype=float)
        ahead /= np.linalg.norm(ahead)
        right = np.cross(ahead, [0.0, 0.0, 1.0])
        right /= max(float(np.linalg.norm(right)), 1e-9)
        return np.stack([right, np.cross(right, ahead), ahead])


def overview(aspect: float = 16 / 9) -> Camera:
    """Return a camera that sees the whole field; `aspect` is the width over the height."""
    return _around((0.2, -2.4, 0.0), -1.36, 0.76, 64.0 * max(1.0, 1.42 / aspect))


def chasing(place: Sequence[float], heading: float, distance: float = 9.0) -> Camera:
    """Return a camera behind and above a drone that flies towards `heading`."""
    x, y, z = (float(value) for value in place)
    return _around((x, y, z), heading + math.pi, 0.62, distance)


def _around(
    target: tuple[float, float, float], yaw: float, pitch: float, distance: float
) -> Camera:
    x, y, z = target
    level = distance * math.cos(pitch)
    eye = (x + level * math.cos(yaw), y + level * math.sin(yaw), z + distance * math.sin(pitch))
    return Camera(eye, target)
