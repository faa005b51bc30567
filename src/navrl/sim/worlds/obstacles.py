"""Moving obstacles: each wanders between goals around its origin, at a speed that changes every two
seconds.
"""

from __future__ import annotations

import math

from numba import float32

from navrl.sim.draws import OBSTACLE_GOAL, OBSTACLE_SPEED, uniform
from navrl.sim.worlds.terrain import ARENA
from navrl.sim.worlds.world_pool import MOVING_CEILING, TALL_CENTRE
from navrl.simd import WIDTH, bits_of, inner, load, lowest_bit, store

ARRIVED = 0.5  # m from the goal


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
    """Move the obstacles of a world by one step, and note in `tracks` from `track` on where they
    are.
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
