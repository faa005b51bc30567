"""How much of a training one iteration is, and the means of episodes over all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from navrl.config import Config
from navrl.train.distributed.team import Team


def frames_per_iteration(config: Config) -> int:
    """Return how many decisions the whole team takes in one iteration."""
    steps = (
        config.sac.training_frame_num
        if config.algorithm == "sac"
        else config.algo.training_frame_num
    )
    return config.env.num_envs * steps


def total_iterations(config: Config) -> int:
    """Return how many iterations the whole training takes."""
    return max(1, -(-config.max_frame_num // frames_per_iteration(config)))


def episode_means(episodes: Tensor, names: Sequence[str], team: Team) -> dict[str, float]:
    """Return how many episodes ended in all processes, and the mean of each of their statistics.

    The same in every process. A statistic that an environment does not know is left out.
    """
    sums = torch.zeros(len(names) + 1, dtype=torch.float64)
    sums[:-1], sums[-1] = episodes.double().sum(0), len(episodes)
    team.all_reduce(sums)
    count = sums[-1].item()
    means = {
        name: value / count if count else float("nan")
        for name, value in zip(names, sums.tolist(), strict=False)
        if not (count and value != value)
    }
    return {"episodes": count} | {
        f"episode/{name}": value for name, value in means.items() if name != "world"
    }
