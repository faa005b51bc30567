"""Generalised advantage estimation that stops at the end of every episode."""

from __future__ import annotations

import torch
from torch import Tensor


def advantages(
    reward: Tensor, value: Tensor, ended: Tensor, cut_value: Tensor, gamma: float, decay: float
) -> Tensor:
    """Return the advantages of a rollout, (T, N).

    Args:
        reward: (T, N).
        value: (T + 1, N), of every observation and of the one after the last.
        ended: (T, N), 1 where an episode ended with this step: what comes after belongs to another
            one.
        cut_value: (T, N), where an episode was cut by its time limit the value of its last
            observation, elsewhere 0.
        gamma: the discount.
        decay: lambda: how much farther looks count less.
    """
    goes_on = 1.0 - ended
    error = reward + gamma * (value[1:] * goes_on + cut_value) - value[:-1]
    result = torch.empty_like(reward)
    following = torch.zeros_like(reward[0])
    for step in range(len(reward) - 1, -1, -1):
        following = error[step] + gamma * decay * goes_on[step] * following
        result[step] = following
    return result
