"""Counter-based random numbers: functions of a key, the same for any thread count, order and batch
size.
"""

from __future__ import annotations

import math

from numba import float32, njit, uint64

# What a draw is for; part of its key, so that two uses never share a number.
RESET, OBSTACLE_GOAL, OBSTACLE_SPEED, OBSTACLE_ORIGIN, LIDAR_NOISE, LIDAR_DROPOUT = range(6)
DETECTION_DROPOUT, DETECTION_NOISE, POSITION_NOISE, PERFECT_EPISODE = range(6, 10)


@njit(nogil=True)
def _mix(value):
    """Return the 64 bits of `value` scattered so that every input bit reaches every output bit."""
    value ^= value >> uint64(30)
    value *= uint64(0xBF58476D1CE4E5B9)
    value ^= value >> uint64(27)
    value *= uint64(0x94D049BB133111EB)
    return value ^ (value >> uint64(31))


@njit(nogil=True)
def uniform(seed, purpose, owner, moment, number):
    """Return a float32 in [0, 1) for a key: the purpose, who draws (`owner`), when (`moment`), and
    the index of the draw (`number`).
    """
    key = _mix(uint64(seed) + uint64(0x9E3779B97F4A7C15) * uint64(purpose + 1))
    key = _mix(key + uint64(0xD1342543DE82EF95) * uint64(owner + 1))
    key = _mix(key + uint64(0xA0761D6478BD642F) * uint64(moment + 1))
    key = _mix(key + uint64(0xE7037ED1A0B428DB) * uint64(number + 1))
    return float32(key >> uint64(40)) * float32(1.0 / 16777216.0)


@njit(nogil=True)
def normal(seed, purpose, owner, moment, number):
    """Return a standard normal float32 for a key."""
    first = uniform(seed, purpose, owner, moment, 2 * number)
    second = uniform(seed, purpose, owner, moment, 2 * number + 1)
    radius = math.sqrt(-2.0 * math.log(1.0 - first))
    return float32(radius * math.cos(2.0 * math.pi * second))
