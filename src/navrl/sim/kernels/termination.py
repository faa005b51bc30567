"""The end of an episode, and its reported statistics."""

from __future__ import annotations

from numba import float32

from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.kernels.fields import counter, statistics_of
from navrl.sim.kernels.layout import (
    DYNAMIC_COLLISION,
    FIRST_FAILURE,
    FLYING,
    GOAL,
    LENGTH,
    MEAN_SPEED,
    OUT_OF_BOUNDS,
    OUTCOME,
    PATH_LENGTH,
    STATIC_COLLISION,
    STEP,
    SUCCESS_050,
    SUCCESS_100,
    TIME_OUT,
    TIME_TO_GOAL,
)
from navrl.simd import inner

LOWEST, HIGHEST = 0.2, 4.0  # m: outside, the episode ends


@inner
def outcome_of(running, column, step, parameters, z, distance, shortest, surface, hit):
    """Return the outcome of the episode at this step, or FLYING; collisions take precedence.

    Args:
        running: sums of the episode; the first arrival at the target is written here.
        column: index of the statistics of the drone.
        step: simulated steps of the episode so far.
        parameters: of the task.
        z: m, height of the drone.
        distance: m to the target.
        shortest: m, the shortest LiDAR ray.
        surface: m², the squared distance to the nearest static surface.
        hit: whether the drone has hit a moving obstacle.
    """
    radius = parameters.collision_radius
    struck = surface < radius * radius if parameters.sphere else shortest < radius
    if struck:
        return STATIC_COLLISION
    if hit:
        return DYNAMIC_COLLISION
    if not parameters.planar and (z < float32(LOWEST) or z > float32(HIGHEST)):
        return OUT_OF_BOUNDS
    if distance < float32(1.0) and running[column + SUCCESS_100] == float32(0):
        running[column + SUCCESS_100] = float32(1)
        running[column + TIME_TO_GOAL] = float32(step) * parameters.dt
    if distance < float32(0.5):
        running[column + SUCCESS_050] = float32(1)
    if parameters.goal_ends and distance < parameters.goal_radius:
        return GOAL
    if step >= parameters.max_steps:
        return TIME_OUT
    return FLYING


@inner
def finish(drones, drone, finished, parameters):
    """Write the statistics of an ended episode to its row of `finished`."""
    column, outcome = statistics_of(drone), counter(drones, drone, OUTCOME)
    for number in range(len(STATISTICS)):
        finished[column + number] = drones.running[column + number]
    steps = float32(counter(drones, drone, STEP))
    finished[column + LENGTH] = steps
    finished[column + MEAN_SPEED] = drones.running[column + PATH_LENGTH] / (steps * parameters.dt)
    for number in range(4):
        failed = outcome == STATIC_COLLISION + number
        finished[column + FIRST_FAILURE + number] = float32(1) if failed else float32(0)
