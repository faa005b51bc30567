"""Commands tried on a model of the drone, for many drones."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from navrl.kernel_cache import kernel

__all__ = ["choose"]

STEP, STEPS = 0.1, 20  # s, and how many of them a command is tried for
ENOUGH = 1.0  # m of clearance; more is no better


@kernel(nogil=True)
def _clearance(x, y, z, time, points, seen, position, motion, width, tall, present):
    """Return the distance from a point to the nearest obstacle's surface at a time."""
    nearest = 1e9
    for ray in range(len(points)):
        if seen[ray]:
            dx, dy = points[ray, 0] - x, points[ray, 1] - y
            nearest = min(nearest, dx * dx + dy * dy)
    nearest = math.sqrt(nearest)
    for other in range(len(position)):
        if not present[other]:
            continue
        dx = position[other, 0] + motion[other, 0] * time - x
        dy = position[other, 1] + motion[other, 1] * time - y
        gap = math.sqrt(dx * dx + dy * dy) - 0.5 * width[other]
        if not tall[other]:
            above = abs(position[other, 2] + motion[other, 2] * time - z) - 0.5
            gap = max(gap, above)
        nearest = min(nearest, gap)
    return nearest


@kernel(nogil=True)
def _rate(command, velocity, goal, response, limit, keep, sight):
    """Return the value of holding a command: below 0 if it meets something."""
    gain, lag, damping = response
    vx, vy, vz = velocity[0], velocity[1], velocity[2]
    ax, ay, az = 0.0, 0.0, 0.0
    follow = 1.0 - math.exp(-STEP / lag) if lag > 0.0 else 1.0
    x, y, z = 0.0, 0.0, 0.0
    before = math.sqrt(goal[0] ** 2 + goal[1] ** 2 + goal[2] ** 2)
    least, nearest = 1e9, before
    for step in range(STEPS):
        ax += (gain * (command[0] - vx) - ax) * follow
        ay += (gain * (command[1] - vy) - ay) * follow
        az += (gain * (command[2] - vz) - az) * follow
        vx += (ax - damping * vx) * STEP
        vy += (ay - damping * vy) * STEP
        vz += (az - damping * vz) * STEP
        x, y, z = x + vx * STEP, y + vy * STEP, z + vz * STEP
        left = math.sqrt((goal[0] - x) ** 2 + (goal[1] - y) ** 2 + (goal[2] - z) ** 2)
        nearest = min(nearest, left)
        clear = _clearance(x, y, z, (step + 1) * STEP, *sight) - keep
        if clear < 0.0:
            return (step - STEPS) * 10.0 + clear
        least = min(least, clear)
        if nearest < 0.5:
            break
    progress = (before - nearest) / (limit * STEP * STEPS)
    speed = math.sqrt(command[0] ** 2 + command[1] ** 2) / limit
    return 2.0 + progress + 0.4 * min(least, ENOUGH) / ENOUGH + 0.1 * speed


@kernel(nogil=True, parallel=True)
def choose(
    velocity,
    goal,
    points,
    seen,
    position,
    motion,
    width,
    tall,
    present,
    candidates,
    response,
    limit,
    keep,
    result,
):
    """Write the best of the candidates for every drone."""
    for drone in prange(len(velocity)):
        sight = (
            points[drone],
            seen[drone],
            position[drone],
            motion[drone],
            width[drone],
            tall[drone],
            present[drone],
        )
        climb = min(max(1.5 * goal[drone, 2], -0.5 * limit), 0.5 * limit)
        bearing = math.atan2(goal[drone, 1], goal[drone, 0])
        cosine, sine = math.cos(bearing), math.sin(bearing)
        command, best = np.zeros(3), -1e18
        for place in range(len(candidates)):
            cx, cy = candidates[place, 0] * limit, candidates[place, 1] * limit
            command[0], command[1] = cosine * cx - sine * cy, sine * cx + cosine * cy
            command[2] = climb
            value = _rate(command, velocity[drone], goal[drone], response, limit, keep, sight)
            if value > best:
                best = value
                for axis in range(3):
                    result[drone, axis] = command[axis]
