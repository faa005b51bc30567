"""A shield that solves a convex program: the nearest velocity within half-spaces, exactly.

Every hit and every track forbids a cone of velocities; the half-space beside the cone, next to the
desired velocity, replaces it; hits are upright, as pillars and walls are. The projection on all of
them is exact, but half-spaces forbid more than the obstacles do, and the robot's response is a
delay here. Beside `Shield`, which samples the flown paths themselves, it saves fewer flights and
times out more often: it is here to be compared with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from navrl.deploy import shield_kernel
from navrl.deploy.shield import CHANGED, Shield
from navrl.deploy.tracks import TALL
from navrl.evaluation.baselines.kernels.half_spaces import avoid_in_turn

if TYPE_CHECKING:
    Array = NDArray[np.float64]


class QpShield(Shield):
    """Projects commands on the half-spaces of all hits and tracks; called as `Shield` is.

    Where no velocity satisfies all of them, it takes the one with the smallest violation.

    >>> import numpy as np
    >>> from navrl.deploy import QpShield
    >>> result = QpShield()(
    ...     [[1.0, 0.0, 0.0]],
    ...     position=[[0.0, 0.0, 1.5]],
    ...     velocity=[[0.0, 0.0, 0.0]],
    ...     lidar=np.full((1, 36, 4), 4.0),
    ...     bearing=0.0,
    ... )
    >>> bool(result.intervened[0])  # nothing in sight
    False
    """

    def _filter(
        self,
        wanted: Array,
        place: Array,
        own: Array,
        angles: Array,
        ranges: Array,
        tracks: Array,
        goals: Array,
        velocities: Array,
        reason: NDArray[np.int64],
        changed: NDArray[np.bool_],
    ) -> None:
        distance = np.linalg.norm(goals - place, axis=1)
        distance = np.where(np.isfinite(distance), distance, np.inf)
        usable = _usable(wanted, place, own, ranges, tracks) & np.isfinite(angles)
        limit = self.settings.speed_limit
        wish = np.clip(np.where(usable[:, None], wanted, 0.0), -limit, limit)
        standing = self._standing(place, own, angles, ranges, distance)
        moving = self._moving(place, own, tracks)
        static = self._projected(wish, *standing)
        threats: list[Array] = [
            np.concatenate(pair, 1) for pair in zip(standing, moving, strict=True)
        ]
        both = self._projected(wish, *threats)
        both[:, 2] = self._within_heights(place, own, both[:, 2])
        moved = np.abs(both - wish).max(1) > CHANGED
        by_static = np.abs(static - wish).max(1) > CHANGED
        velocities[:] = np.where(usable[:, None], np.clip(both, -limit, limit), 0.0)
        reason[:] = np.where(by_static, shield_kernel.STATIC, shield_kernel.MOVING)
        reason[~moved] = shield_kernel.CLEAN
        reason[~usable] = shield_kernel.INVALID
        changed[:] = ~usable | (np.abs(velocities - wanted) > CHANGED).any(1)

    def _projected(self, wish: Array, *threats: Array | NDArray[np.bool_]) -> Array:
        """Return the nearest velocities outside all half-spaces; linearised at the wish.

        Threats have a place, a velocity, a radius, whether they are upright, a horizon, and whether
        there are any.
        """
        place, motion, radius, flat, horizon, present = threats
        result = np.zeros_like(wish)
        speed = math.sqrt(3) * self.settings.speed_limit
        clean = np.ascontiguousarray
        avoid_in_turn(
            wish,
            wish,
            speed,
            clean(np.where(present[..., None], place, 1e3)),
            clean(motion),
            clean(radius),
            clean(flat),
            clean(horizon),
            clean(present),
            1.0,
            result,
        )
        return result

    def _standing(
        self, place: Array, own: Array, angles: Array, ranges: Array, distance: Array
    ) -> tuple[Array | NDArray[np.bool_], ...]:
        """Return the hits of the LiDAR as threats."""
        settings = self.settings
        hits, hit = self._hits(place, own, angles, ranges, distance)
        kept = settings.static_radius + settings.static_growth * settings.speed_limit
        return (
            hits,
            np.zeros_like(hits),
            np.full(hit.shape, kept),
            np.ones(hit.shape, bool),
            np.full(hit.shape, settings.static_horizon),
            hit,
        )

    def _hits(
        self, place: Array, own: Array, angles: Array, ranges: Array, distance: Array
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return where hits will be after the lag, (N, rays, 3), and which rays have hit."""
        number, azimuths = ranges.shape[:2]
        turned = angles[:, None] + np.arange(azimuths) * 2 * math.pi / azimuths
        level = ranges * self._cosines
        points = np.stack(
            [
                level * np.cos(turned)[:, :, None],
                level * np.sin(turned)[:, :, None],
                ranges * self._sines,
            ],
            -1,
        )
        above = place[:, None, None, 2] + points[..., 2] >= self.settings.ground
        near = ranges < np.minimum(self.settings.lidar_range - 1e-3, distance[:, None, None])
        points = points.reshape(number, -1, 3)
        shifted = points - self.settings.lag * own[:, None]
        kept = self.settings.static_radius + self.settings.static_growth * self.settings.speed_limit
        return _outside(shifted, points, kept), (above & near).reshape(number, -1)

    def _moving(
        self, place: Array, own: Array, tracks: Array
    ) -> tuple[Array | NDArray[np.bool_], ...]:
        """Return the moving obstacles after the lag as threats; those that are tall are upright."""
        offset = tracks[:, :, :3] - place[:, None]
        tall = tracks[:, :, 7] > TALL
        offset[tall, 2] = 0.0
        shifted = offset + self.settings.lag * (tracks[:, :, 3:6] - own[:, None])
        shifted[tall, 2] = 0.0
        radius = 0.5 * tracks[:, :, 6] + self.settings.moving_margin
        return (
            _outside(shifted, offset, radius[:, :, None]),
            tracks[:, :, 3:6],
            radius,
            tall,
            np.full(tall.shape, self.settings.moving_horizon),
            tracks[:, :, 6] > 0,
        )

    def _within_heights(self, place: Array, own: Array, climb: Array) -> Array:
        """Return vertical velocities that keep the robots within their heights."""
        after = place[:, 2] + self.settings.lag * own[:, 2]
        low = (self.settings.lowest - after) / self.settings.height_horizon
        high = (self.settings.highest - after) / self.settings.height_horizon
        return np.minimum(np.maximum(climb, low), high)


def _usable(
    wanted: Array, place: Array, own: Array, ranges: Array, tracks: Array
) -> NDArray[np.bool_]:
    """Return for which robots all inputs are finite."""
    usable = np.ones(len(wanted), bool)
    for vector in (wanted, place, own):
        usable &= np.isfinite(vector).all(1)
    for rows in (ranges, tracks):
        usable &= np.isfinite(rows).all((1, 2))
    return usable


def _outside(shifted: Array, now: Array, radius: Array | float) -> Array:
    """Return where threats will be, kept outside their radius on the side where they are now.

    Inside, the nearest velocity outside the cone would lead through the threat.
    """
    size = np.linalg.norm(now, axis=-1, keepdims=True)
    edge = now / np.maximum(size, 1e-6) * (1.02 * radius)
    inside = np.linalg.norm(shifted, axis=-1, keepdims=True) <= 1.02 * radius
    return np.where(inside, edge, shifted)
