"""The observation row of the navigation task: what the simulator writes, networks read, and
adapters, files and exports describe.

Frames: the world frame has z up. The goal frame has its origin at the drone, x along the horizontal
direction from the start to the target of the episode, and z up. A LiDAR scan turns with the yaw of
the drone, which starts in the direction of the goal frame's x.
"""

from __future__ import annotations

import math

from navrl.observation import ObservationLayout, Part

__all__ = [
    "GOAL_DIRECTION",
    "GOAL_DISTANCE",
    "GOAL_HEIGHT",
    "OBSTACLE",
    "OBSTACLE_DIRECTION",
    "OBSTACLE_DISTANCE",
    "OBSTACLE_FLOATS",
    "OBSTACLE_HEIGHT",
    "OBSTACLE_VELOCITY",
    "OBSTACLE_WIDTH",
    "STATE",
    "VELOCITY",
    "WIDTH_STEP",
    "navigation_layout",
    "reflection",
]

STATE = (
    "goal_direction_x",
    "goal_direction_y",
    "goal_direction_z",
    "goal_distance_horizontal",
    "goal_height_difference",
    "velocity_x",
    "velocity_y",
    "velocity_z",
)
STATE_UNITS = ("", "", "", "m", "m", "m/s", "m/s", "m/s")
GOAL_DIRECTION = slice(0, 3)
GOAL_DISTANCE = STATE.index("goal_distance_horizontal")
GOAL_HEIGHT = STATE.index("goal_height_difference")
VELOCITY = slice(STATE.index("velocity_x"), STATE.index("velocity_z") + 1)

OBSTACLE = (
    "direction_x",
    "direction_y",
    "direction_z",
    "distance_horizontal",
    "height_difference",
    "velocity_x",
    "velocity_y",
    "velocity_z",
    "width_class",
    "floats",
)
OBSTACLE_DIRECTION = slice(0, 3)
OBSTACLE_DISTANCE = OBSTACLE.index("distance_horizontal")
OBSTACLE_HEIGHT = OBSTACLE.index("height_difference")
OBSTACLE_VELOCITY = slice(OBSTACLE.index("velocity_x"), OBSTACLE.index("velocity_z") + 1)
OBSTACLE_WIDTH = OBSTACLE.index("width_class")  # width = (class + 1) * WIDTH_STEP
OBSTACLE_FLOATS = OBSTACLE.index("floats")
WIDTH_STEP = 0.25  # m
OBSTACLE_UNITS = ("", "", "", "m", "m", "m/s", "m/s", "m/s", "", "")

ROUNDING = 1e-5  # by which float32 arithmetic may leave a bound


def navigation_layout(
    azimuths: int = 36,
    beams: int = 4,
    observed: int = 5,
    *,
    lidar_range: float = math.inf,
    obstacle_speed: float = math.inf,
    padding: int = 0,
) -> ObservationLayout:
    """Return the layout of the rows of the navigation task.

    Args:
        azimuths: LiDAR rays around the circle.
        beams: LiDAR rays above each other.
        observed: moving obstacles in a row, the nearest first.
        lidar_range: m; moving obstacles further away are not observed either.
        obstacle_speed: m/s, of the fastest moving obstacle.
        padding: numbers after the parts.
    """
    lidar = Part("lidar", (1, azimuths, beams), "scan", 0.0, lidar_range, "m")
    obstacles = _obstacles(observed, lidar_range * (1 + ROUNDING), obstacle_speed * (1 + ROUNDING))
    return ObservationLayout((lidar, obstacles, _state(), _direction()), padding)


def _obstacles(observed: int, reach: float, speed: float) -> Part:
    infinity, unit = math.inf, 1 + ROUNDING
    return Part(
        "dynamic_obstacle",
        (1, observed, len(OBSTACLE)),
        "set",
        (-unit, -unit, -unit, 0.0, -infinity, -speed, -speed, -speed, 0.0, 0.0),
        (unit, unit, unit, reach, infinity, speed, speed, speed, 3.0, 1.0),
        OBSTACLE_UNITS,
        OBSTACLE,
    )


def _state() -> Part:
    infinity, unit = math.inf, 1 + ROUNDING
    return Part(
        "state",
        (len(STATE),),
        "vector",
        (-unit, -unit, -unit, 0.0, -infinity, -infinity, -infinity, -infinity),
        (unit, unit, unit, infinity, infinity, infinity, infinity, infinity),
        STATE_UNITS,
        STATE,
    )


def _direction() -> Part:
    """Return the part from start to target in the world frame, z = 0.

    It is for those who turn commands into that frame. Its z has bounds of their own, since
    Gymnasium warns of equal ones.
    """
    low, high = (-math.inf, -math.inf, -1.0), (math.inf, math.inf, 1.0)
    return Part("direction", (1, 3), "vector", low, high, "m", ("x", "y", "z"))


def reflection(layout: ObservationLayout) -> tuple[list[int], list[float]]:
    """Return how a row of the navigation task is reflected left to right: order and signs.

    Number i of the reflected row is `row[order[i]] * signs[i]`. Ray i of a scan, which points at
    i / azimuths of a turn to the left, changes places with the one as far to the right; what is
    named `..._y` changes its sign. `direction`, from start to target in the world frame, is along
    the mirror and stays.
    """
    order, signs = [*range(layout.width)], [1.0] * layout.width
    lidar, start = layout["lidar"], layout.slices["lidar"].start
    azimuths, beams = lidar.shape[-2:]
    for ray in range(azimuths):
        for beam in range(beams):
            order[start + ray * beams + beam] = start + (-ray % azimuths) * beams + beam
    for name in ("dynamic_obstacle", "state"):
        part, start = layout[name], layout.slices[name].start
        for number in range(part.size):
            if part.features[number % len(part.features)].endswith("_y"):
                signs[start + number] = -1.0
    return order, signs
