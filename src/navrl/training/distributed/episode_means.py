"""Episode statistics, reduced over all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from navrl.training.distributed.team import Team


def episode_means(episodes: Tensor, names: Sequence[str], team: Team) -> dict[str, float]:
    """Return the number of ended episodes over all processes, and the mean of each statistic.

    The result is the same on every rank. Statistics that an environment does not know are left out.
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
