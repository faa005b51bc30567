"""What a robot would be given, taken from the simulator or made up for edge cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.deploy.tracks import TRACK
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.sim.worlds.obstacles import FLOATING_HEIGHT, TALL_HEIGHT


def inputs_of(env: NavigationEnv, observation: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a robot's inputs for every drone, by name, at the moment of an observation."""
    goal = env.target
    return {
        "position": env.position,
        "velocity": env.velocity,
        "goal": goal,
        "start": goal - observation["direction"][:, 0],
        "lidar": env.settings.sensor.lidar_range - observation["lidar"][:, 0],
        "obstacles": tracks_of(env),
    }


def tracks_of(env: NavigationEnv) -> Tensor:
    """Return the moving obstacles of each drone's world as tracks, (N, K, 8), K at least 1."""
    worlds = [tracks_in_world(env, world) for world in range(len(env.pool.worlds))]
    most = max(1, *(len(tracks) for tracks in worlds))
    padded = torch.zeros(len(worlds), most, TRACK)
    for row, tracks in zip(padded, worlds, strict=True):
        row[: len(tracks)] = tracks
    return padded[env.world]


def tracks_in_world(env: NavigationEnv, world: int) -> Tensor:
    """Return the moving obstacles of one world as tracks, (K, 8)."""
    found = env.obstacles(world)
    tall = found["tall"]
    height = torch.where(tall, TALL_HEIGHT, FLOATING_HEIGHT)
    parts = [found["position"], found["velocity"], found["width"][:, None], height[:, None]]
    return torch.cat(parts, 1)


def sampled_inputs(
    task: NavigationSettings, policy: Callable[[dict[str, Tensor]], Tensor], number: int, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs met on flights, and the commands of the torch policy, in the world, (N, 3).

    The flights mix the policy's own commands with random ones, so that the inputs include places
    where it would not go by itself.
    """
    settings = with_perfect_detector(task)
    settings.env.num_envs = min(512, number)
    settings.env.num_worlds = min(settings.env.num_worlds, 16)
    env = NavigationEnv(settings, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    observation = env.reset()
    inputs: list[dict[str, Tensor]] = []
    commands: list[Tensor] = []
    while sum(len(part) for part in commands) < number:
        for _ in range(12):
            command = policy(observation)
            noise = torch.randn(command.shape, generator=generator)
            observation = env.step(command + noise).observation
        inputs.append(inputs_of(env, observation))
        commands.append(to_world(policy(observation), env.forward))
    joined = {name: torch.cat([part[name] for part in inputs])[:number] for name in inputs[0]}
    return joined, torch.cat(commands)[:number]


def with_perfect_detector(task: NavigationSettings) -> NavigationSettings:
    """Return a copy of a task in which a robot knows what is there, so that two policies that are
    told of it in different ways can be compared.
    """
    settings = NavigationSettings.from_mapping(task.as_dict())
    sensor = settings.sensor
    sensor.detection_dropout = sensor.detection_noise = sensor.position_noise = 0.0
    sensor.observation_delay = 0
    return settings


def to_world(command: Tensor, forward: Tensor) -> Tensor:
    """Return commands of the goal frame, (N, 3), in the world frame."""
    x, y = command[:, 0], command[:, 1]
    cosine, sine = forward[:, 0], forward[:, 1]
    return torch.stack([x * cosine - y * sine, x * sine + y * cosine, command[:, 2]], 1)


def edge_cases(azimuths: int, beams: int, reach: float) -> dict[str, NDArray[np.float32]]:
    """Return inputs that are easy to get wrong, by name: one row a case.

    At the goal; a goal straight above; a goal behind; all rays free; all rays at contact; rays
    beyond the range; no obstacle; an obstacle in the robot; one just in and one just out of reach;
    more obstacles than are observed; tall and floating ones. No two obstacles of a case are
    equally far: which of them comes first is not part of the contract.
    """
    cases = _cases(reach)
    rows = {name: np.zeros((len(cases), 3), np.float32) for name in _VECTORS}
    lidar = np.full((len(cases), azimuths, beams), reach, np.float32)
    obstacles = np.zeros((len(cases), 8, TRACK), np.float32)
    for number, case in enumerate(cases):
        for name, default in _VECTORS.items():
            rows[name][number] = case.get(name, default)
        lidar[number] = case.get("lidar", reach)
        for slot, track in enumerate(case.get("obstacles", [])):
            obstacles[number, slot] = track
    return {**rows, "lidar": lidar, "obstacles": obstacles}


def _cases(reach: float) -> list[dict[str, Any]]:
    """Return what differs from a robot that hovers before its goal, alone, for each case."""
    return [
        {"goal": (0, 0, 1)},
        {"goal": (0, 0, 3), "start": (0, 0, 1)},
        {"goal": (-8, -3, 1.5), "start": (4, 1, 1)},
        {"lidar": 0.0},
        {"lidar": 2 * reach},
        {"obstacles": [(0, 0, 1, 1, 0, 0, 0.5, 5.0)]},
        {"obstacles": [(reach - 1e-3, 0, 1, -1, 0, 0, 1.0, 1.0)]},
        {"obstacles": [(reach + 1e-3, 0, 1, -1, 0, 0, 1.0, 1.0)]},
        {"obstacles": [(1.0 + 0.1 * k, 1, 2, 0, -1, 0.5, 0.25, 1.0) for k in range(8)]},
        {"obstacles": [(2, -1, 2.5, 0, 1, 0, 0.75, 5.0), (2, 1.2, 0.5, 0, 0, -0.5, 0.5, 1.0)]},
        {"velocity": (2, -2, 0.5), "position": (-19, 19, 3.9)},
        {"goal": (1e-4, -1e-4, 1.0), "velocity": (-1, 0, 0)},
    ]


_VECTORS = {
    "position": (0, 0, 1),
    "velocity": (0, 0, 0),
    "goal": (10, 2, 1.2),
    "start": (-10, -2, 1),
}
