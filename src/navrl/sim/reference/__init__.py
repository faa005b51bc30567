"""A readable torch version of the navigation task, which the compiled kernels are tested against.

Pure functions over a batch of N drones: they modify no arguments, draw no random numbers and have
no state. Every function follows the dtype and device of its tensors. SI units, radians, world frame
with z up unless a name says otherwise. "Choice:" marks what the task description leaves open.
"""

from __future__ import annotations

from navrl.sim.reference.rays import LIDAR_RANGE, Scene, cast_rays
from navrl.sim.reference.robot_body import held, hits_cylinder, within_view
from navrl.sim.reference.rules import (
    FLOATING_HEIGHT,
    ORIGINAL_WEIGHTS,
    TALL_HEIGHT,
    MovingObstacles,
    advance_obstacles,
    delayed,
    detected,
    facing_yaw,
    from_goal_frame,
    observe,
    reward_terms,
    start_height_range,
    terminations,
    to_goal_frame,
    total_reward,
)
from navrl.sim.reference.vehicle import (
    HUMMINGBIRD,
    Airframe,
    Drone,
    first_order,
    hover,
    lee_controller,
    limited,
    rotation_matrix,
    step_rigid_body,
    yaw_of,
)

__all__ = [
    "FLOATING_HEIGHT",
    "HUMMINGBIRD",
    "LIDAR_RANGE",
    "ORIGINAL_WEIGHTS",
    "TALL_HEIGHT",
    "Airframe",
    "Drone",
    "MovingObstacles",
    "Scene",
    "advance_obstacles",
    "cast_rays",
    "delayed",
    "detected",
    "facing_yaw",
    "first_order",
    "from_goal_frame",
    "held",
    "hits_cylinder",
    "hover",
    "lee_controller",
    "limited",
    "observe",
    "reward_terms",
    "rotation_matrix",
    "start_height_range",
    "step_rigid_body",
    "terminations",
    "to_goal_frame",
    "total_reward",
    "within_view",
    "yaw_of",
]
