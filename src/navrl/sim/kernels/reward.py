"""The reward of a step, its sums over an episode, and whether the episode ends with it."""

from __future__ import annotations

import math

from numba import float32

from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.kernels.layout import (
    ACTIVE,
    AT_GOAL,
    COUNTERS,
    FIELDS,
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
from navrl.simd import WIDTH, inner

HEIGHT_MARGIN = 0.2  # m beyond the heights of start and target that cost nothing


@inner
def judge(
    drones, drone, parameters, has_moving, shortest, static_term, surface, dynamic_term, least, hit
):
    """Pay one step of a drone, count it in the statistics, end the episode if it must; return the
    reward.
    """
    state, base = drones.state, drone // WIDTH * FIELDS * WIDTH + drone % WIDTH
    running, counters = drones.running, drones.counters
    count, column = drone * COUNTERS, drone * len(STATISTICS)
    z = state[base + (POSITION + 2) * WIDTH]
    vx, vy = state[base + VELOCITY * WIDTH], state[base + (VELOCITY + 1) * WIDTH]
    vz = state[base + (VELOCITY + 2) * WIDTH]
    dx = state[base + TARGET * WIDTH] - state[base + POSITION * WIDTH]
    dy = state[base + (TARGET + 1) * WIDTH] - state[base + (POSITION + 1) * WIDTH]
    dz = state[base + (TARGET + 2) * WIDTH] - z
    distance = math.sqrt(dx * dx + dy * dy + dz * dz)
    jump_x = vx - state[base + PREVIOUS_VELOCITY * WIDTH]
    jump_y = vy - state[base + (PREVIOUS_VELOCITY + 1) * WIDTH]
    jump_z = vz - state[base + (PREVIOUS_VELOCITY + 2) * WIDTH]
    over = max(z - state[base + HEIGHT_HIGH * WIDTH] - float32(HEIGHT_MARGIN), float32(0))
    under = max(state[base + HEIGHT_LOW * WIDTH] - float32(HEIGHT_MARGIN) - z, float32(0))
    terms = (
        parameters.weight_progress * (vx * dx + vy * dy + vz * dz) / max(distance, float32(1e-6)),
        parameters.weight_alive,
        parameters.weight_static * (static_term - parameters.log_reference),
        parameters.weight_dynamic * (dynamic_term - parameters.log_reference)
        if has_moving
        else float32(0),
        -parameters.weight_smoothness
        * math.sqrt(jump_x * jump_x + jump_y * jump_y + jump_z * jump_z),
        -parameters.weight_height * (over * over + under * under),
    )
    reward = float32(0)
    for number in range(6):
        reward += terms[number]
        running[column + FIRST_REWARD + number] += terms[number]
    running[column + PATH_LENGTH] += parameters.dt * math.sqrt(vx * vx + vy * vy + vz * vz)
    running[column + MIN_CLEARANCE] = min(running[column + MIN_CLEARANCE], min(shortest, least))
    outcome = outcome_of(
        running, column, counters[count + STEP], parameters, z, distance, shortest, surface, hit
    )
    if outcome == GOAL:
        reward += parameters.reward_goal
        running[column + REWARD_GOAL] += parameters.reward_goal
    elif STATIC_COLLISION <= outcome <= OUT_OF_BOUNDS:
        reward -= parameters.reward_collision
        running[column + REWARD_COLLISION] -= parameters.reward_collision
    running[column + RETURN] += reward
    if outcome:
        counters[count + OUTCOME] = outcome
        state[base + ACTIVE * WIDTH] = float32(0)
        running[column + AT_GOAL] = float32(1) if distance < parameters.goal_radius else float32(0)
    return reward
