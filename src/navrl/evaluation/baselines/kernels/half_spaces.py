"""Half-spaces of ORCA, and the nearest velocity within them, for many drones."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from navrl.evaluation.baselines.kernels.projection import nearest_velocity
from navrl.kernel_cache import kernel

__all__ = ["avoid", "avoid_in_turn"]

OVERLAP_SECONDS = 0.25  # within which an overlap shall be left


@kernel(nogil=True)
def _add_plane(planes, place, p, u, v, radius, horizon, share):
    """Write the half-space that a neighbour leaves.

    Args:
        planes: (M, 4) unit normals and offsets of n . v >= b.
        place: row to write.
        p: (3,) the neighbour's relative position.
        u: (3,) relative velocity: ours less the neighbour's.
        v: (3,) our velocity.
        radius: the sum of both radii.
        horizon: s.
        share: of the avoidance that we take on, 0.5 if the neighbour does the same.
    """
    squared = p[0] ** 2 + p[1] ** 2 + p[2] ** 2
    time = horizon if squared > radius * radius else OVERLAP_SECONDS
    wx, wy, wz = u[0] - p[0] / time, u[1] - p[1] / time, u[2] - p[2] / time
    along = wx * p[0] + wy * p[1] + wz * p[2]
    length = math.sqrt(wx * wx + wy * wy + wz * wz)
    if squared <= radius * radius or (along < 0.0 and along * along > radius**2 * length**2):
        # nearest to the sphere that closes the cone
        depth = radius / time - length
    else:
        # nearest to the side of the cone: its axis point at distance t |p| touches a sphere t r
        b = p[0] * u[0] + p[1] * u[1] + p[2] * u[2]
        cx, cy = p[1] * u[2] - p[2] * u[1], p[2] * u[0] - p[0] * u[2]
        cz = p[0] * u[1] - p[1] * u[0]
        cross = (cx * cx + cy * cy + cz * cz) / (squared - radius * radius)
        c = u[0] ** 2 + u[1] ** 2 + u[2] ** 2 - cross
        t = (b + math.sqrt(max(b * b - squared * c, 0.0))) / squared
        wx, wy, wz = u[0] - t * p[0], u[1] - t * p[1], u[2] - t * p[2]
        length = math.sqrt(wx * wx + wy * wy + wz * wz)
        depth = radius * t - length
    if length < 1e-9:  # in the very middle: any way out is as good
        wx, wy, wz, length = -p[1], p[0], 0.0, max(math.sqrt(p[0] ** 2 + p[1] ** 2), 1e-9)
    nx, ny, nz = wx / length, wy / length, wz / length
    planes[place, 0], planes[place, 1], planes[place, 2] = nx, ny, nz
    planes[place, 3] = nx * v[0] + ny * v[1] + nz * v[2] + share * depth


@kernel(nogil=True)
def _avoid_one(velocity, wish, limit, place, motion, radius, flat, horizon, present, share, result):
    """Write the new velocity of one drone; the arguments are rows of those of `avoid`."""
    neighbours = len(radius)
    planes, lines = np.empty((neighbours, 4)), np.empty((neighbours, 3))
    p, u = np.empty(3), np.empty(3)
    count = 0
    for other in range(neighbours):
        if not present[other]:
            continue
        for axis in range(3):
            p[axis] = place[other, axis]
            u[axis] = velocity[axis] - motion[other, axis]
        if flat[other]:  # as high as the sky: only the horizontal counts
            p[2], u[2] = 0.0, 0.0
        _add_plane(planes, count, p, u, velocity, radius[other], horizon[other], share)
        count += 1
    nearest_velocity(planes, count, wish, limit, lines, result)


@kernel(nogil=True, parallel=True)
def avoid(velocity, wish, limit, place, motion, radius, flat, horizon, present, share, result):
    """Write the new velocities of N drones with M neighbours each.

    Args:
        velocity: (N, 3).
        wish: (N, 3) velocities that they would like to have.
        limit: the greatest speed.
        place: (N, M, 3) positions of the neighbours relative to the drone.
        motion: (N, M, 3) their velocities.
        radius: (N, M) sums of both radii.
        flat: (N, M) True: the neighbour is as high as the sky.
        horizon: (N, M) s.
        present: (N, M) False: there is no such neighbour.
        share: of the avoidance that the drone takes on.
        result: (N, 3).
    """
    number = len(radius)
    for drone in prange(number):
        _avoid_one(
            velocity[drone],
            wish[drone],
            limit,
            place[drone],
            motion[drone],
            radius[drone],
            flat[drone],
            horizon[drone],
            present[drone],
            share,
            result[drone],
        )


@kernel(nogil=True)
def avoid_in_turn(
    velocity, wish, limit, place, motion, radius, flat, horizon, present, share, result
):
    """Write what `avoid` writes, on one thread: for a single robot, threads cost more than work."""
    for drone in range(len(radius)):
        _avoid_one(
            velocity[drone],
            wish[drone],
            limit,
            place[drone],
            motion[drone],
            radius[drone],
            flat[drone],
            horizon[drone],
            present[drone],
            share,
            result[drone],
        )
