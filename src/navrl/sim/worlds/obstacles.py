"""Moving obstacles: each moves between goals around its origin, at a changing speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import float32
from numpy.typing import NDArray

from navrl.kernel_cache import kernel
from navrl.sim.draws import OBSTACLE_GOAL, OBSTACLE_ORIGIN, OBSTACLE_SPEED, uniform
from navrl.sim.settings import MovingSettings
from navrl.sim.worlds.terrain import ARENA
from navrl.simd import WIDTH, bits_of, inner, load, lowest_bit, store

ARRIVED = 0.5  # m from the goal
MOVING_CEILING = 4.5  # m, of the goals of floating boxes
TALL_HEIGHT, FLOATING_HEIGHT = 5.0, 1.0  # m, of cylinders and of boxes
TALL_CENTRE = TALL_HEIGHT / 2  # m
FAR = 1e6  # m, the position of unused moving obstacles
ORIGIN_ATTEMPTS = 2000  # before the required spacing of the origins is reduced


def per_world(counts: Sequence[int], default: int, world: int) -> int:
    """Return the count of a world: from the list, repeated, or the default if the list is empty."""
    return counts[world % len(counts)] if counts else default


def moving_obstacles(
    settings: MovingSettings, num_worlds: int, *, planar: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Return counts (W,), sizes (W, 2, D) and origins (W, 3, D).

    There are eight classes of equal size: four widths of boxes, then four of cylinders; `planar`,
    all of them are cylinders that stand on the ground.
    """
    counts = [
        per_world(settings.obstacles_per_world, settings.num_obstacles, w) // 8 * 8
        for w in range(num_worlds)
    ]
    padded = -(-max(1, *counts) // WIDTH) * WIDTH
    sizes = np.zeros((num_worlds, 2, padded), np.float32)
    origins = np.full((num_worlds, 3, padded), FAR, np.float32)
    for w, count in enumerate(counts):
        classes = np.arange(count) * 8 // max(count, 1)
        sizes[w, 0, :count] = (classes % 4 + 1) * 0.25
        sizes[w, 1, :count] = planar | (classes >= 4)
    return np.array(counts, np.int32), sizes, origins


@kernel()
def draw_world_origins(origins, count, seed, world):
    """Draw the origins of the moving obstacles of a world, spaced apart."""
    spacing = 2.0 * math.sqrt(ARENA * ARENA / max(count, 1))
    for k in range(count):
        distance, attempt = spacing, 0
        while True:
            x = (2.0 * uniform(seed, OBSTACLE_ORIGIN, world, k, 3 * attempt) - 1.0) * ARENA
            y = (2.0 * uniform(seed, OBSTACLE_ORIGIN, world, k, 3 * attempt + 1) - 1.0) * ARENA
            z = MOVING_CEILING * uniform(seed, OBSTACLE_ORIGIN, world, k, 3 * attempt + 2)
            attempt += 1
            if attempt % ORIGIN_ATTEMPTS == 0:
                distance *= 0.8
            free = True
            for other in range(k):
                dx, dy = x - origins[0, other], y - origins[1, other]
                if dx * dx + dy * dy < distance * distance:
                    free = False
                    break
            if free:
                break
        origins[0, k], origins[1, k] = x, y
        origins[2, k] = z if k < count // 2 else TALL_CENTRE


@inner
def _new_goal(moving, world, k, time, parameters):
    """Draw the next goal of an obstacle around its origin."""
    padded = moving.padded
    base, owner = world * 3 * padded, world * padded + k
    seed = parameters.seed
    x = (
        moving.origins[base + k]
        + (float32(2) * uniform(seed, OBSTACLE_GOAL, owner, time, 0) - float32(1))
        * parameters.range_x
    )
    y = moving.origins[base + padded + k]
    y += (
        float32(2) * uniform(seed, OBSTACLE_GOAL, owner, time, 1) - float32(1)
    ) * parameters.range_y
    span = parameters.range_up + parameters.range_down
    z = (
        moving.origins[base + 2 * padded + k]
        - parameters.range_down
        + span * uniform(seed, OBSTACLE_GOAL, owner, time, 2)
    )
    moving.goals[base + k] = min(max(x, float32(-ARENA)), float32(ARENA))
    moving.goals[base + padded + k] = min(max(y, float32(-ARENA)), float32(ARENA))
    tall = moving.sizes[(world * 2 + 1) * padded + k] > float32(0)
    ceiling = min(max(z, float32(0)), float32(MOVING_CEILING))
    moving.goals[base + 2 * padded + k] = float32(TALL_CENTRE) if tall else ceiling


@inner
def _new_velocity(moving, world, k, time, parameters):
    """Draw a speed for an obstacle and point it at its goal."""
    padded = moving.padded
    base = world * 3 * padded
    dx = moving.goals[base + k] - moving.positions[base + k]
    dy = moving.goals[base + padded + k] - moving.positions[base + padded + k]
    dz = moving.goals[base + 2 * padded + k] - moving.positions[base + 2 * padded + k]
    draw = uniform(parameters.seed, OBSTACLE_SPEED, world * padded + k, time, 0)
    speed = parameters.slowest + (parameters.fastest - parameters.slowest) * draw
    factor = speed / max(math.sqrt(dx * dx + dy * dy + dz * dz), float32(1e-6))
    moving.velocities[base + k] = dx * factor
    moving.velocities[base + padded + k] = dy * factor
    moving.velocities[base + 2 * padded + k] = dz * factor


@inner
def advance_world(moving, world, time, parameters, track):
    """Move the obstacles of a world by one step; write positions and velocities to `tracks` from
    `track` on.
    """
    padded, count = moving.padded, moving.counts[world]
    base = world * 3 * padded
    if count == 0:
        return
    for lane in range(0, padded, WIDTH):
        dx = load(moving.goals, base + lane) - load(moving.positions, base + lane)
        dy = load(moving.goals, base + padded + lane) - load(moving.positions, base + padded + lane)
        dz = load(moving.goals, base + 2 * padded + lane) - load(
            moving.positions, base + 2 * padded + lane
        )
        arrived = bits_of(dx * dx + dy * dy + dz * dz < ARRIVED * ARRIVED)
        while arrived:
            _new_goal(moving, world, lane + lowest_bit(arrived), time, parameters)
            arrived &= arrived - 1
    if time == 0:
        for k in range(count):
            _new_goal(moving, world, k, time, parameters)
    if time % parameters.tick == 0:
        for k in range(count):
            _new_velocity(moving, world, k, time, parameters)
    for row in range(3):
        for lane in range(0, padded, WIDTH):
            index = base + row * padded + lane
            velocity = load(moving.velocities, index)
            position = load(moving.positions, index) + velocity * parameters.dt
            store(moving.positions, index, position)
            store(moving.tracks, track + row * padded + lane, position)
            store(moving.tracks, track + (3 + row) * padded + lane, velocity)
