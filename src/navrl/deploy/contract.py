"""What an exported policy expects and returns, as data: for people (YAML) and for the runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from navrl.deploy.robot_policy import RobotPolicy
from navrl.deploy.tracks import COLUMNS, TRACK, UNITS
from navrl.sim.robots import as_built
from navrl.sim.settings import DroneSettings, NavigationSettings

VERSION = 1
MAX_AGE_S = 0.5  # of inputs; older ones must stop the robot

PICTURE = r"""# The LiDAR's azimuths from above; azimuth 0 is the bearing of `goal - start`:
#
#                 0        goal
#                 ^         *
#       (left) 9 <+> 27 (right)         counter-clockwise, {azimuths} azimuths of {step:g} degrees
#                 v
#                18
#
# lidar[n, azimuth, beam]: metres to the first hit, {reach:g} where nothing is hit.
# Beams are {elevations} degrees of elevation, upwards positive. The scan is level: it turns with
# the bearing, never with roll or pitch.
"""


def contract_of(
    policy: RobotPolicy, task: NavigationSettings, card: Mapping[str, Any], checksum: str
) -> dict[str, Any]:
    """Return the contract as plain values."""
    decision = task.sim.dt * task.env.action_repeat
    return {
        "contract": VERSION,
        "policy_sha256": checksum,
        "inputs": _inputs(policy),
        "outputs": {"velocity_world": _command(policy)},
        "lidar": _lidar(policy, task),
        "rate": {"decision_s": decision, "max_input_age_s": MAX_AGE_S},
        "robot": _robot(policy, task),
        "training": {str(key): value for key, value in card.items()},
    }


def _inputs(policy: RobotPolicy) -> dict[str, Any]:
    vector = {"shape": ["N", 3], "type": "float32", "frame": "world"}
    return {
        "position": vector | {"unit": "m", "meaning": "of the robot; z is above the ground"},
        "velocity": vector | {"unit": "m/s", "meaning": "of the robot, not in its body frame"},
        "goal": vector | {"unit": "m"},
        "start": vector | {"unit": "m", "meaning": "where the flight to this goal began"},
        "lidar": {
            "shape": ["N", policy.azimuths, policy.beams],
            "type": "float32",
            "unit": "m",
            "meaning": "ranges, counter-clockwise from the bearing of goal - start; hits on "
            "the ground count",
        },
        "obstacles": _obstacles(policy),
    }


def _obstacles(policy: RobotPolicy) -> dict[str, Any]:
    return {
        "shape": ["N", "K", TRACK],
        "type": "float32",
        "frame": "world",
        "columns": [*COLUMNS],
        "unit": [*UNITS],
        "meaning": "moving obstacles, K >= 1, in any order; x, y, z of the middle; "
        "absolute velocities; the width is a diameter, 0 or less is an empty slot; what "
        "is higher than 1 m is taken to reach from the ground up; the policy looks at the "
        f"nearest {policy.observed} within {policy.detection_reach:g} m",
    }


def _command(policy: RobotPolicy) -> dict[str, Any]:
    return {
        "shape": ["N", 3],
        "type": "float32",
        "frame": "world",
        "unit": "m/s",
        "meaning": "velocity command; at most "
        f"{policy.limit:g} m/s along each axis of the goal frame, "
        f"{policy.climb:g} m/s up and down",
    }


def _lidar(policy: RobotPolicy, task: NavigationSettings) -> dict[str, Any]:
    low, high = task.sensor.lidar_vfov
    return {
        "azimuths": policy.azimuths,
        "beams": policy.beams,
        "step_degrees": 360 / policy.azimuths,
        "elevations_degrees": [float(e) for e in np.linspace(low, high, policy.beams)],
        "range_m": policy.reach,
        "order": "azimuth-major, counter-clockwise, azimuth 0 along goal - start",
        "sees_moving_obstacles": bool(task.env_dyn.visible_to_lidar),
    }


def _robot(policy: RobotPolicy, task: NavigationSettings) -> dict[str, Any]:
    return {
        "collision_radius_m": task.env.collision_radius,
        "model": task.drone.model_name,
        "speed_limit_m_per_s": policy.limit,
        "vertical_speed_limit_m_per_s": policy.climb,
        "planar": policy.planar,
        "velocity_lag_s": velocity_lag(task.drone),
        "turning_delay_s": turning_delay(task.drone),
        "damping_per_s": damping(task.drone),
        "file": as_built(task).as_dict(),
    }


def velocity_lag(drone: DroneSettings) -> float:
    """Return the time constant in s with which a robot's velocity follows its command."""
    if drone.model_name == "first_order":
        return drone.time_constant
    return 1 / drone.velocity_gain


def turning_delay(drone: DroneSettings) -> float:
    """Return the s that a robot takes to tilt before its velocity answers a command."""
    if drone.model_name == "first_order":
        return 0.0
    return drone.rate_gain[0] / drone.attitude_gain[0]


def damping(drone: DroneSettings) -> float:
    """Return the share of its speed in 1/s that a robot loses to the air, in spite of a command."""
    return 0.0 if drone.model_name == "first_order" else drone.damping


def picture_of(contract: Mapping[str, Any]) -> str:
    """Return the order of the rays as a drawing in comments."""
    lidar = contract["lidar"]
    return PICTURE.format(
        azimuths=lidar["azimuths"],
        step=lidar["step_degrees"],
        reach=lidar["range_m"],
        elevations=", ".join(f"{angle:g}" for angle in lidar["elevations_degrees"]),
    )
