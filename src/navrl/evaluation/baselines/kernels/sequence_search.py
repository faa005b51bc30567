"""Sequences of commands tried against the true future, for many drones."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from navrl.evaluation.baselines.kernels.clearance import CELL, LAYER, LAYERS, ORIGIN
from navrl.kernel_cache import kernel
from navrl.sim.draws import normal

__all__ = ["KNOTS", "STEP", "plan"]

KNOTS = 5  # commands in a sequence
HORIZON = 4.0  # s that a sequence lasts
STEP = 0.08  # s, of the model
SAMPLES = 48  # sequences tried at a decision
MARGIN = 0.12  # m that the planner would like beyond the collision radius
NEAR = 8.5  # m: moving obstacles further away cannot be met within the horizon
LOWEST, HIGHEST = 0.4, 3.7  # m
PURPOSE = 97  # of the random numbers, apart from those of the simulator
CRASH = 1000.0


@kernel(nogil=True)
def _static_gap(grid, x, y, z):
    """Return the distance to static obstacles at a point, in m."""
    i = min(max(int((x - ORIGIN) / CELL), 0), grid.shape[1] - 1)
    j = min(max(int((y - ORIGIN) / CELL), 0), grid.shape[2] - 1)
    layer = min(max(int(z / LAYER), 0), LAYERS - 1)
    return 0.01 * grid[layer, i, j]


@kernel(nogil=True)
def _moving_gap(tracks, moment, near, count, width, tall, x, y, z):
    """Return the distance to the surfaces of the near moving obstacles at a moment, in m."""
    nearest = 1e9
    for place in range(count):
        k = near[place]
        dx, dy = tracks[moment, k, 0] - x, tracks[moment, k, 1] - y
        gap = math.sqrt(dx * dx + dy * dy) - 0.5 * width[k]
        if tall[k] < 0.5:
            gap = max(gap, abs(tracks[moment, k, 2] - z) - 0.5)
        nearest = min(nearest, gap)
    return nearest


@kernel(nogil=True)
def _cost(knots, start, model, grid, tracks, moment, per_step, near, count, width, tall, radius):
    """Return the cost of a sequence: time to the goal, danger, and a crash if there is one.

    Args:
        knots: (KNOTS, 3) commands in the world frame, m/s.
        start: (12,) position, velocity, acceleration, goal.
        model: gain, lag and damping of the drone.
        grid: (LAYERS, X, Y) clearance of the world in cm.
        tracks: (T, D, 3) moving obstacles of the world.
        moment: row of `tracks` that is now.
        per_step: rows of `tracks` in one step of the model.
        near: (D,) moving obstacles that matter.
        count: how many they are.
        width: (D,) of moving obstacles.
        tall: (D,) 1 for tall ones.
        radius: m, of the drone.
    """
    x, y, z, vx, vy, vz, ax, ay, az = start[:9]
    gain, lag, damping = model
    follow = 1.0 - math.exp(-STEP / lag) if lag > 0.0 else 1.0
    steps = int(HORIZON / STEP)
    held = steps // KNOTS
    danger, last = 0.0, len(tracks) - 1
    for step in range(steps):
        knot = min(step // held, KNOTS - 1)
        ax += (gain * (knots[knot, 0] - vx) - ax) * follow
        ay += (gain * (knots[knot, 1] - vy) - ay) * follow
        az += (gain * (knots[knot, 2] - vz) - az) * follow
        vx += (ax - damping * vx) * STEP
        vy += (ay - damping * vy) * STEP
        vz += (az - damping * vz) * STEP
        x, y, z = x + vx * STEP, y + vy * STEP, z + vz * STEP
        row = min(moment + int((step + 1) * per_step + 0.5), last)
        gap = min(
            _static_gap(grid, x, y, z), _moving_gap(tracks, row, near, count, width, tall, x, y, z)
        )
        gap -= radius
        if gap < 0.0 or z < LOWEST or z > HIGHEST:
            return CRASH * (2.0 - step / steps) + danger
        if gap < MARGIN:
            danger += 4.0 * (1.0 - gap / MARGIN) ** 2 * STEP * (1.5 - step / steps)
        away = math.sqrt((start[9] - x) ** 2 + (start[10] - y) ** 2 + (start[11] - z) ** 2)
        if away < 0.45:
            return (step + 1) * STEP + danger
    return HORIZON + away / 1.8 + danger


@kernel(nogil=True)
def _propose(sample, knots, goal, forward, limit, seed, drone, moment):
    """Fill `knots` with a sequence to try, in the world frame.

    Args:
        sample: its number: 0 the sequence kept from before, 1 straight at the goal, the others
            random: changes of the kept one, or a bend to one side.
        knots: (KNOTS, 3) holds the kept sequence, in the goal frame, and is overwritten.
        goal: (3,) relative to the drone, in the world frame.
        forward: (2,) x of the goal frame.
        limit: m/s on each axis of the goal frame.
        seed: of the random numbers.
        drone: its number.
        moment: of the decision.
    """
    ahead = goal[0] * forward[0] + goal[1] * forward[1]
    aside = goal[1] * forward[0] - goal[0] * forward[1]
    away = max(math.sqrt(ahead * ahead + aside * aside + goal[2] * goal[2]), 1e-6)
    owner = drone * SAMPLES + sample
    for knot in range(KNOTS):
        first = 8 * knot
        if sample == 1 or (sample > 1 and sample % 3 == 0):
            knots[knot, 0] = limit * ahead / away
            knots[knot, 1] = limit * aside / away
            knots[knot, 2] = limit * goal[2] / away
        if sample > 1:
            spread = 0.35 if sample % 3 == 1 else 1.0
            spread *= limit
            for axis in range(3):
                amount = spread * (0.5 if axis == 2 else 1.0)
                if sample % 3 == 0 and knot >= 1 + sample % 4:
                    amount = 0.1 * limit  # bends first, then goes straight
                draw = normal(seed, PURPOSE, owner, moment, first + axis)
                if sample % 3 == 2 and knot != sample % KNOTS:
                    amount = 0.0  # one knot is drawn anew
                knots[knot, axis] += amount * draw
        for axis in range(3):
            knots[knot, axis] = min(max(knots[knot, axis], -limit), limit)


@kernel(nogil=True, parallel=True)
def plan(
    active,
    state,
    forward,
    world,
    kept,
    grids,
    tracks,
    width,
    tall,
    moment,
    per_step,
    model,
    limit,
    radius,
    seed,
    command,
):
    """Improve the kept sequences of all active drones, and write their first commands.

    `kept` (N, KNOTS, 3) and `command` (N, 3) are in the goal frame.
    """
    for drone in prange(len(state)):
        if not active[drone]:
            continue
        w = world[drone]
        fx, fy = forward[drone, 0], forward[drone, 1]
        near, count = np.empty(tracks.shape[2], np.int64), 0
        for k in range(tracks.shape[2]):
            dx = tracks[moment, w, k, 0] - state[drone, 0]
            dy = tracks[moment, w, k, 1] - state[drone, 1]
            if dx * dx + dy * dy < NEAR * NEAR:
                near[count] = k
                count += 1
        goal = state[drone, 9:12] - state[drone, 0:3]
        best, lowest = np.zeros((KNOTS, 3)), 1e18
        tried, turned = np.empty((KNOTS, 3)), np.empty((KNOTS, 3))
        for sample in range(SAMPLES):
            tried[:] = kept[drone] if sample < 2 or sample % 2 else best
            _propose(sample, tried, goal, forward[drone], limit, seed, drone, moment)
            for knot in range(KNOTS):
                turned[knot, 0] = tried[knot, 0] * fx - tried[knot, 1] * fy
                turned[knot, 1] = tried[knot, 0] * fy + tried[knot, 1] * fx
                turned[knot, 2] = tried[knot, 2]
            cost = _cost(
                turned,
                state[drone],
                model,
                grids[w],
                tracks[:, w],
                moment,
                per_step,
                near,
                count,
                width[w],
                tall[w],
                radius,
            )
            if cost < lowest:
                lowest = cost
                best[:] = tried
        command[drone] = best[0]
        kept[drone] = best
