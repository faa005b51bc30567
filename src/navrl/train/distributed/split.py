"""How a task is split over processes, and how episode statistics are reduced over them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from navrl.config import Config
from navrl.errors import ConfigError
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings
from navrl.train.distributed.team import Team


def split_task(task: NavigationSettings, team: Team) -> NavigationSettings:
    """Return the settings of this rank's part of a task: its drones, its worlds."""
    own = copy.deepcopy(task)
    if own.env.num_envs % team.size:
        raise ConfigError(
            f"env.num_envs is {own.env.num_envs}; expected a multiple of the {team.size} processes"
        )
    own.env.num_envs //= team.size
    own.sim.num_threads = 1 if team.size > 1 else own.sim.num_threads
    own.env.action_frame = "goal"
    if not own.env.same_map and own.env.num_worlds >= team.size:
        first, last = (
            own.env.num_worlds * rank // team.size for rank in (team.rank, team.rank + 1)
        )
        own.env.num_worlds = last - first
        own.env.map_seed += first
        for counts in (
            own.env.obstacles_per_world,
            own.env_dyn.obstacles_per_world,
            own.env.world_files,
        ):
            _rotate(counts, first)
    return own


def frames_per_iteration(config: Config) -> int:
    """Return the steps of all drones in one iteration, over all processes."""
    steps = (
        config.sac.training_frame_num
        if config.algorithm == "sac"
        else config.algo.training_frame_num
    )
    return config.env.num_envs * steps


def total_iterations(config: Config) -> int:
    """Return the number of iterations of the whole training."""
    return max(1, -(-config.max_frame_num // frames_per_iteration(config)))


def _rotate(values: list[Any], places: int) -> None:
    """Rotate a list that is cycled over the worlds, so that it starts at this rank's first."""
    if values:
        places %= len(values)
        values[:] = values[places:] + values[:places]


def collision_penalty(config: Config, progress: float) -> float:
    """Return the collision penalty of the curriculum at a progress from 0 to 1."""
    ramp, first = config.curriculum, config.reward.collision
    last = first if ramp.final_collision is None else ramp.final_collision
    return first + min(1.0, progress / ramp.collision_until) * (last - first)


def episode_means(episodes: Tensor, team: Team) -> dict[str, float]:
    """Return the number of ended episodes over all processes, and the mean of each statistic."""
    sums = torch.zeros(len(STATISTICS) + 1, dtype=torch.float64)
    sums[:-1], sums[-1] = episodes.double().sum(0), len(episodes)
    team.all_reduce(sums)
    count = sums[-1].item()
    means = {
        name: value / count if count else float("nan")
        for name, value in zip(STATISTICS, sums.tolist(), strict=False)
    }
    return {"episodes": count} | {
        f"episode/{name}": value for name, value in means.items() if name != "world"
    }
