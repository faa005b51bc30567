"""The settings as the one record that compiled code reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.sim.kernels.layout import PARAMETERS
from navrl.sim.kernels.quadrotor import hover_load
from navrl.sim.settings import CROSSING_LAYOUTS, REWARD_TERMS, NavigationSettings


def make_parameters(
    settings: NavigationSettings, seed: int, auto_reset: bool, sizes: Mapping[str, int]
) -> NDArray[Any]:
    """Return the record of `layout.PARAMETERS` for these settings."""
    env = settings.env
    moving = settings.env_dyn
    sensor = settings.sensor
    drone = settings.drone
    reward = settings.reward
    sim = settings.sim
    scale = sim.dt if reward.per_second else 1.0
    weights = {
        f"weight_{term.name}": getattr(reward, term.name) * (1.0 if term.once else scale)
        for term in REWARD_TERMS
    }
    down = moving.local_range[1] if moving.asymmetric_goals else moving.local_range[2]
    values = {
        "dt": sim.dt,
        "gravity": sim.gravity,
        "keep": 1 - drone.damping * sim.dt,
        "response": 1 - math.exp(-sim.dt / drone.time_constant),
        "reach": sensor.lidar_range,
        "action_limit": env.action_limit,
        "goal_radius": env.goal_radius,
        "collision_radius": env.collision_radius,
        **weights,
        "log_reference": math.log(reward.log_reference),
        "log_reach": math.log(sensor.lidar_range),
        "noise": sensor.noise,
        "dropout": sensor.dropout,
        "mass_variation": drone.mass_variation,
        "thrust_variation": drone.thrust_variation,
        "wind": drone.wind,
        "slowest": moving.vel_range[0],
        "fastest": moving.vel_range[1],
        "range_x": moving.local_range[0],
        "range_y": moving.local_range[1],
        "range_down": down,
        "range_up": 2 * moving.local_range[2] - down,
        "shortest_trip": env.min_trip_length,
        "crossing_share": env.crossing_share,
        "midway_share": env.midway_share,
        "detection_dropout": sensor.detection_dropout,
        "detection_noise": sensor.detection_noise,
        "position_noise": sensor.position_noise,
        "perfect_share": sensor.perfect_share,
        "seed": seed,
        "num_envs": env.num_envs,
        "max_steps": env.max_episode_length,
        "action_repeat": env.action_repeat,
        "world_frame": env.action_frame == "world",
        "goal_ends": env.goal_ends_episode,
        "sphere": env.collision in ("sphere", "cylinder"),
        "first_order": drone.model_name == "first_order",
        **_robot(settings),
        "observed": env.num_observed,
        "delay": drone.delay,
        "observation_delay": sensor.observation_delay,
        "change_world": env.change_world_at_reset,
        "eval_layout": env.layout in CROSSING_LAYOUTS,
        "visible": moving.visible_to_lidar,
        "tick": max(1, int(2.0 / sim.dt)),
        "auto_reset": auto_reset,
        **sizes,
    }
    record = np.zeros(1, PARAMETERS)
    for name in PARAMETERS.names or ():
        record[name] = values[name]
    return record


def _robot(settings: NavigationSettings) -> dict[str, float]:
    """Return what a robot file can change beside the task's own numbers."""
    env, sensor, drone = settings.env, settings.sensor, settings.drone
    cylinder = env.collision == "cylinder"
    climb = min(drone.vertical_speed or env.action_limit, env.action_limit)
    azimuths = round(360.0 / sensor.lidar_hres)
    blind = min(math.floor(sensor.lidar_hfov / 2 / sensor.lidar_hres + 1e-9) + 1, azimuths)
    return {
        "detection_reach": sensor.detection_range or sensor.lidar_range,
        "vertical_limit": 0.0 if env.planar else climb,
        "vertical_margin": env.collision_height / 2 if cylinder else env.collision_radius,
        "half_height": env.collision_height / 2 if cylinder else 0.0,
        "ride_height": env.collision_height / 2 if cylinder else env.collision_radius,
        "hover_load": hover_load(drone),
        "acceleration": drone.max_acceleration,
        "own_motion": drone.model_name == "quadrotor" or drone.max_acceleration > 0,
        "planar": env.planar,
        "lidar_interval": lidar_interval(settings),
        "blind_first": blind if sensor.lidar_hfov < 360 else azimuths,
        "blind_last": azimuths - blind if sensor.lidar_hfov < 360 else -1,
    }


def lidar_interval(settings: NavigationSettings) -> int:
    """Return the decisions from one LiDAR scan to the next, at least 1."""
    decision = settings.sim.dt * settings.env.action_repeat  # s
    rate = settings.sensor.lidar_rate
    return max(1, round(1 / (rate * decision))) if rate > 0 else 1
