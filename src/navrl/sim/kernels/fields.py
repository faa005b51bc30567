"""Named access to the state, counters and statistics of one drone.

`layout.py` names the fields. The functions are inlined, so a call costs no more than an index.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.kernels.layout import COUNTERS, FIELDS
from navrl.simd import WIDTH, inner


class Vector(NamedTuple):
    """A vector in three dimensions."""

    x: Any
    y: Any
    z: Any


@inner
def length_of(vector):
    """Return the length of a vector."""
    return math.sqrt(vector.x * vector.x + vector.y * vector.y + vector.z * vector.z)


@inner
def fields_of(drone):
    """Return the index in `state` of the first field of a drone: `base` of the functions below."""
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
    """Return one of the counters of a drone."""
    return drones.counters[drone * COUNTERS + name]


@inner
def set_counter(drones, drone, name, value):
    """Write one of the counters of a drone."""
    drones.counters[drone * COUNTERS + name] = value


@inner
def statistics_of(drone):
    """Return the index of the statistics of a drone in `running` and `finished`."""
    return drone * len(STATISTICS)
