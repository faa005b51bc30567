"""Fields of a drone by name: how kernels read and write the state, counters and statistics of one
drone.

`layout.py` names the fields. These functions are inlined: a call costs what the index costs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.kernels.layout import COUNTERS, FIELDS
from navrl.simd import WIDTH, inner


class Vector(NamedTuple):
    """Three numbers of a drone."""

    x: Any
    y: Any
    z: Any


@inner
def length_of(vector):
    """Return the length of a vector."""
    return math.sqrt(vector.x * vector.x + vector.y * vector.y + vector.z * vector.z)


@inner
def fields_of(drone):
    """Return where the fields of a drone begin in `state`: the `base` of the functions below."""
    return drone // WIDTH * FIELDS * WIDTH + drone % WIDTH


@inner
def number(state, base, field):
    """Return a field that is one number."""
    return state[base + field * WIDTH]


@inner
def vector(state, base, field):
    """Return a field that is a vector."""
    return Vector(
        state[base + field * WIDTH],
        state[base + (field + 1) * WIDTH],
        state[base + (field + 2) * WIDTH],
    )


@inner
def set_number(state, base, field, value):
    """Write a field that is one number."""
    state[base + field * WIDTH] = value


@inner
def set_vector(state, base, field, x, y, z):
    """Write a field that is a vector."""
    state[base + field * WIDTH] = x
    state[base + (field + 1) * WIDTH] = y
    state[base + (field + 2) * WIDTH] = z


@inner
def counter(drones, drone, name):
    """Return one of the integers of a drone."""
    return drones.counters[drone * COUNTERS + name]


@inner
def set_counter(drones, drone, name, value):
    """Write one of the integers of a drone."""
    drones.counters[drone * COUNTERS + name] = value


@inner
def statistics_of(drone):
    """Return where the statistics of a drone begin in `running` and `finished`."""
    return drone * len(STATISTICS)
