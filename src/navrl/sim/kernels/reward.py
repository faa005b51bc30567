"""The reward of a simulated step, its sums over the episode, and the end of the episode.

`navrl.sim.settings.RewardSettings` is the table of terms; `step_terms` computes them.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

from numba import float32, njit

from navrl.sim.kernels.fields import (
    Vector,
    counter,
    fields_of,
    length_of,
    number,
    set_counter,
    set_number,
    statistics_of,
    vector,
)
from navrl.sim.kernels.layout import (
    ACTIVE,
    AT_GOAL,
    FIRST_REWARD,
    GOAL,
    HEIGHT_HIGH,
    HEIGHT_LOW,
    MIN_CLEARANCE,
    OUT_OF_BOUNDS,
    OUTCOME,
    PATH_LENGTH,
    POSITION,
    PREVIOUS_VELOCITY,
    RETURN,
    REWARD_COLLISION,
    REWARD_GOAL,
    STATIC_COLLISION,
    STEP,
    TARGET,
    VELOCITY,
)
from navrl.sim.kernels.termination import outcome_of
from navrl.sim.settings import REWARD_TERMS
from navrl.simd import inner

HEIGHT_MARGIN = 0.2  # m beyond the heights of start and target without penalty

# The terms of a step, in the order of the settings. A term that only one of `step_terms` and the
# settings has does not compile.
_namedtuple: Any = collections.namedtuple  # mypy requires the fields of a namedtuple as literals
StepTerms = _namedtuple("StepTerms", [term.name for term in REWARD_TERMS if not term.once])


class Motion(NamedTuple):
    """The motion of a drone at a step, in the world frame."""

    position: Any  # Vector, m
    velocity: Any  # Vector, m/s
    previous_velocity: Any  # Vector, m/s, one simulated step before
    to_target: Any  # Vector, m
    target_distance: Any  # m
    height_low: Any  # m, the lower of start and target
    height_high: Any


@inner
def motion_of(drones, drone):
    """Return the current motion of a drone."""
    state, base = drones.state, fields_of(drone)
    position, target = vector(state, base, POSITION), vector(state, base, TARGET)
    to_target = Vector(target.x - position.x, target.y - position.y, target.z - position.z)
    return Motion(
        position,
        vector(state, base, VELOCITY),
        vector(state, base, PREVIOUS_VELOCITY),
        to_target,
        length_of(to_target),
        number(state, base, HEIGHT_LOW),
        number(state, base, HEIGHT_HIGH),
    )


@inner
def step_terms(motion, sensed, has_moving, parameters):
    """Return the weighted terms of one simulated step.

    `weight_x` is the setting `reward.x`, times the time step if `reward.per_second`.
    """
    velocity, before, ahead = motion.velocity, motion.previous_velocity, motion.to_target
    jump = Vector(velocity.x - before.x, velocity.y - before.y, velocity.z - before.z)
    over = max(motion.position.z - motion.height_high - float32(HEIGHT_MARGIN), float32(0))
    under = max(motion.height_low - float32(HEIGHT_MARGIN) - motion.position.z, float32(0))
    return StepTerms(
        progress=parameters.weight_progress
        * (velocity.x * ahead.x + velocity.y * ahead.y + velocity.z * ahead.z)
        / max(motion.target_distance, float32(1e-6)),
        alive=parameters.weight_alive,
        static=parameters.weight_static * (sensed.mean_log_ray - parameters.log_reference),
        dynamic=parameters.weight_dynamic * (sensed.mean_log_clearance - parameters.log_reference)
        if has_moving
        else float32(0),
        smoothness=-parameters.weight_smoothness * length_of(jump),
        height=-parameters.weight_height * (over * over + under * under),
    )


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def add(total, term):
    """Return the sum of two numbers, never reordered: a term of weight 0 changes no bit of the
    reward.
    """
    return total + term


@inner
def reward_of_step(drones, drone, parameters, has_moving, sensed):
    """Return the reward of a simulated step; add it to the statistics, and end the episode if it is
    over.
    """
    running, column = drones.running, statistics_of(drone)
    motion = motion_of(drones, drone)
    terms = step_terms(motion, sensed, has_moving, parameters)
    reward = float32(0)
    for term in range(len(terms)):
        reward = add(reward, terms[term])
        running[column + FIRST_REWARD + term] += terms[term]
    running[column + PATH_LENGTH] += parameters.dt * length_of(motion.velocity)
    clearance = min(sensed.shortest_ray, sensed.least_clearance)
    running[column + MIN_CLEARANCE] = min(running[column + MIN_CLEARANCE], clearance)
    outcome = outcome_of(
        running,
        column,
        counter(drones, drone, STEP),
        parameters,
        motion.position.z,
        motion.target_distance,
        sensed.shortest_ray,
        sensed.surface_squared,
        sensed.hits_moving,
    )
    if outcome == GOAL:
        reward += parameters.weight_goal
        running[column + REWARD_GOAL] += parameters.weight_goal
    elif STATIC_COLLISION <= outcome <= OUT_OF_BOUNDS:
        reward -= parameters.weight_collision
        running[column + REWARD_COLLISION] -= parameters.weight_collision
    running[column + RETURN] += reward
    if outcome:
        set_counter(drones, drone, OUTCOME, outcome)
        set_number(drones.state, fields_of(drone), ACTIVE, float32(0))
        at_goal = motion.target_distance < parameters.goal_radius
        running[column + AT_GOAL] = float32(1) if at_goal else float32(0)
    return reward
