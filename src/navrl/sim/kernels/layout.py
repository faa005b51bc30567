"""Layout of the arrays that the kernels read and write, and the groups in which they are passed.

Drones are stored in blocks of WIDTH, field by field, so that one instruction moves a whole block:
element `lane` of field `f` of block `b` is `state[(b * FIELDS + f) * WIDTH + lane]`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import REWARD_TERMS

# Fields of a drone; a vector takes as many fields as it has components.
POSITION, ATTITUDE, VELOCITY, RATE, THROTTLE, PREVIOUS_VELOCITY = 0, 3, 7, 10, 13, 17
TARGET, DIRECTION, FORWARD, HEIGHT_LOW, HEIGHT_HIGH = 20, 23, 26, 28, 29
MASS_SCALE, THRUST_SCALE, WIND, COMMAND, ACTIVE = 30, 31, 32, 34, 37
FIELDS = 38

# Integers of a drone.
STEP, EPISODE, WORLD, OUTCOME, DELAY = range(5)
COUNTERS = 5

# How an episode ends.
FLYING, GOAL, STATIC_COLLISION, DYNAMIC_COLLISION, OUT_OF_BOUNDS, TIME_OUT = range(6)

# Columns of the statistics. While an episode runs they hold sums; `termination.finish` turns these
# into the reported values.
RETURN, LENGTH, SUCCESS_050, SUCCESS_100, FIRST_FAILURE, AT_GOAL = (
    STATISTICS.index(name)
    for name in ("return", "length", "success_050", "success_100", "static_collision", "at_goal")
)
PATH_LENGTH, MEAN_SPEED, MIN_CLEARANCE, TIME_TO_GOAL, DISTANCE, WORLD_NUMBER = (
    STATISTICS.index(name)
    for name in ("path_length", "mean_speed", "min_clearance", "time_to_goal", "distance", "world")
)
FIRST_REWARD = STATISTICS.index(f"reward_{REWARD_TERMS[0].name}")
REWARD_GOAL, REWARD_COLLISION = map(STATISTICS.index, ("reward_goal", "reward_collision"))

# The settings as one record, which compiled code reads by name.
PARAMETERS = np.dtype(
    [
        (name, np.float32)
        for name in (
            "dt",
            "gravity",
            "keep",
            "response",
            "reach",
            "action_limit",
            "goal_radius",
            "collision_radius",
            *(f"weight_{term.name}" for term in REWARD_TERMS),
            "log_reference",
            "log_reach",
            "noise",
            "dropout",
            "mass_variation",
            "thrust_variation",
            "wind",
            "slowest",
            "fastest",
            "range_x",
            "range_y",
            "range_down",
            "range_up",
            "shortest_trip",
            "crossing_share",
            "midway_share",
            "detection_dropout",
            "detection_noise",
            "position_noise",
            "perfect_share",
            "detection_reach",
            "vertical_limit",
            "vertical_margin",
            "half_height",
            "ride_height",
            "hover_load",
            "acceleration",
        )
    ]
    + [
        (name, np.int64)
        for name in (
            "seed",
            "num_envs",
            "max_steps",
            "action_repeat",
            "world_frame",
            "goal_ends",
            "sphere",
            "first_order",
            "own_motion",
            "planar",
            "lidar_interval",
            "blind_first",
            "blind_last",
            "observed",
            "delay",
            "observation_delay",
            "change_world",
            "eval_layout",
            "visible",
            "tick",
            "auto_reset",
            "worlds",
            "moving",
            "azimuths",
            "padded_azimuths",
            "beams",
            "row",
            "scratch",
        )
    ],
    align=True,
)


# Arrays are passed as addresses, in the order ARRAYS; `pointers.py` turns them into these groups
# of pointers, with their sizes.


class Drones(NamedTuple):
    """The drones and their episodes."""

    state: Any  # (blocks, FIELDS, WIDTH) float32
    counters: Any  # (N, COUNTERS) int32
    running: Any  # (N, len(STATISTICS)) float32
    history: Any  # (N, delay + 1, 3) float32, past commands
    observed: Any  # (N, delay + 1, row) float32, past observations if delayed, else (1,)
    scans: Any  # (N, rays) float32, the last scan if scans are rarer than decisions, else (1,)
    airframe: Any  # (32,) float32, `quadrotor.airframe_constants`


class Worlds(NamedTuple):
    """The pool of worlds."""

    shapes: Any  # (B, SHAPE) float32
    near: Any  # (K,) int32
    near_start: Any  # (W, CELLS + 1) int32
    points: Any  # (P, 3) float32
    point_ranges: Any  # (W, 4) int32
    chances: Any  # (W,) float32, cumulative probabilities of being drawn at a reset
    number: Any  # int, W


class Moving(NamedTuple):
    """The moving obstacles, and their positions at the substeps of this step and the next."""

    counts: Any  # (W,) int32
    sizes: Any  # (W, 2, D) float32: widths, then 1 for the tall ones
    origins: Any  # (W, 3, D) float32, as the next three
    positions: Any
    velocities: Any
    goals: Any
    # (2, K, W, 2, 3, D) float32: positions, velocities; one half is read, the other is written
    tracks: Any
    padded: Any  # int, D


class Lidar(NamedTuple):
    """The LiDAR's tables."""

    azimuths: Any  # (2, P) float32: cosines, then sines
    beams: Any  # (V, BEAM) float32
    count: Any  # int, azimuths
    padded: Any  # int, P: azimuths, padded to whole groups
    number: Any  # int, V: beams


class Scene(NamedTuple):
    """Everything that a step of a block of drones reads, and its scratch memory."""

    drones: Any
    worlds: Any
    moving: Any
    lidar: Any
    parameters: Any  # a record of PARAMETERS
    half: Any  # int, of `tracks`: the one that is read
    scratch: Any  # floats of the chunk's own


class Outputs(NamedTuple):
    """The arrays that a step writes."""

    observation: Any  # (N, row) float32
    final_observation: Any  # (N, row) float32
    reward: Any  # (N,) float32
    terminated: Any  # (N,) bool
    truncated: Any  # (N,) bool
    finished: Any  # (N, len(STATISTICS)) float32
    row: Any  # int


# Addresses of a group are neighbours, in the order of its fields.
ARRAYS = (
    *("state", "counters", "running", "history", "observed", "scans", "airframe"),
    *("shapes", "near", "near_start", "points", "point_ranges", "chances"),
    *("counts", "sizes", "origins", "positions", "velocities", "goals", "tracks"),
    *("azimuths", "beams"),
    "scratch",
)
DRONES_AT, WORLDS_AT, MOVING_AT, LIDAR_AT, SCRATCH_AT = (
    ARRAYS.index(name) for name in ("state", "shapes", "counts", "azimuths", "scratch")
)
