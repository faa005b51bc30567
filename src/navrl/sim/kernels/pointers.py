"""The arguments of an entry point: addresses and settings as groups of pointers.

Arrays reach the kernels as addresses, in the order `layout.ARRAYS`. The addresses of a group are
neighbours, in the order of its fields.
"""

from __future__ import annotations

from navrl.sim.kernels.layout import (
    DRONES_AT,
    LIDAR_AT,
    MOVING_AT,
    WORLDS_AT,
    Drones,
    Lidar,
    Moving,
    Outputs,
    Worlds,
)
from navrl.simd import flags_at, floats_at, inner, integers_at


@inner
def drones_at(at):
    """Return the drones."""
    return Drones(
        floats_at(at[DRONES_AT]),
        integers_at(at[DRONES_AT + 1]),
        floats_at(at[DRONES_AT + 2]),
        floats_at(at[DRONES_AT + 3]),
        floats_at(at[DRONES_AT + 4]),
        floats_at(at[DRONES_AT + 5]),
        floats_at(at[DRONES_AT + 6]),
    )


@inner
def worlds_at(at, parameters):
    """Return the worlds."""
    return Worlds(
        floats_at(at[WORLDS_AT]),
        integers_at(at[WORLDS_AT + 1]),
        integers_at(at[WORLDS_AT + 2]),
        floats_at(at[WORLDS_AT + 3]),
        integers_at(at[WORLDS_AT + 4]),
        floats_at(at[WORLDS_AT + 5]),
        parameters.worlds,
    )


@inner
def moving_at(at, parameters):
    """Return the moving obstacles."""
    return Moving(
        integers_at(at[MOVING_AT]),
        floats_at(at[MOVING_AT + 1]),
        floats_at(at[MOVING_AT + 2]),
        floats_at(at[MOVING_AT + 3]),
        floats_at(at[MOVING_AT + 4]),
        floats_at(at[MOVING_AT + 5]),
        floats_at(at[MOVING_AT + 6]),
        parameters.moving,
    )


@inner
def lidar_at(at, parameters):
    """Return the tables of the LiDAR."""
    return Lidar(
        floats_at(at[LIDAR_AT]),
        floats_at(at[LIDAR_AT + 1]),
        parameters.azimuths,
        parameters.padded_azimuths,
        parameters.beams,
    )


@inner
def outputs_at(at, parameters):
    """Return the arrays that a step writes."""
    return Outputs(
        floats_at(at[0]),
        floats_at(at[1]),
        floats_at(at[2]),
        flags_at(at[3]),
        flags_at(at[4]),
        floats_at(at[5]),
        parameters.row,
    )
