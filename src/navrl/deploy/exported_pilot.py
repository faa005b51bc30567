"""An exported file as a policy of the simulator: given what a robot has, in the world frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.deploy.exported_folder import read_contract
from navrl.deploy.robot_inputs import inputs_of
from navrl.evaluation.policy_lookup import Policy
from navrl.sim.env import NavigationEnv
from navrl.sim.robots.robot_file import robot_from
from navrl.sim.settings import NavigationSettings

Arrays = Mapping[str, NDArray[np.float32]]
Command = Callable[[Arrays], NDArray[np.float32]]  # a robot's inputs -> velocities in the world


class ExportedPilot:
    """Flies an environment by a function of a robot's inputs."""

    def __init__(self, command: Command, env: NavigationEnv | None = None) -> None:
        self.command = command
        if env is not None:
            self.begin(env)

    def begin(self, env: NavigationEnv) -> None:
        """Fly this environment from now on."""
        self.env = env

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return commands in the goal frame, (N, 3) in m/s."""
        inputs = inputs_of(self.env, observation)
        world = self.command({name: value.numpy() for name, value in inputs.items()})
        return to_goal_frame(torch.from_numpy(world), self.env.forward)


def to_goal_frame(world: Tensor, forward: Tensor) -> Tensor:
    """Return commands of the world frame, (N, 3), in goal frames with the x axes `forward`."""
    x, y = world[:, 0], world[:, 1]
    cosine, sine = forward[:, 0], forward[:, 1]
    return torch.stack([x * cosine + y * sine, y * cosine - x * sine, world[:, 2]], 1)


def task_of(contract: Mapping[str, Any]) -> NavigationSettings:
    """Return the settings of a simulation of the contract's robot."""
    if "file" in contract["robot"]:
        return robot_from(contract["robot"]["file"]).applied_to(NavigationSettings())
    task, lidar = NavigationSettings(), contract["lidar"]  # written before robots had files
    elevations = lidar["elevations_degrees"]
    task.env.action_repeat = max(1, round(contract["rate"]["decision_s"] / task.sim.dt))
    task.env.action_limit = float(contract["robot"]["speed_limit_m_per_s"])
    task.sensor.lidar_range = float(lidar["range_m"])
    task.sensor.lidar_hres = 360 / lidar["azimuths"]
    task.sensor.lidar_vbeams = int(lidar["beams"])
    task.sensor.lidar_vfov = [float(elevations[0]), float(elevations[-1])]
    return task


def exported_policy(folder: str | Path, command: Command) -> Policy:
    """Return an exported file as a policy that can be evaluated."""
    pilot = ExportedPilot(command)
    contract = read_contract(folder)
    return Policy(str(folder), pilot, task_of(contract), contract["training"], pilot.begin)
