"""Generalised advantage estimation (GAE) that stops at the end of every episode."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    done: Tensor,
    truncated_value: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return the advantages of a rollout, (T, N).

        delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)
        A_t     = delta_t + gamma * lambda * (1 - done_t) * A_{t+1}

    V(s_{t+1}) is 0 after a termination, and the value of the final observation after a truncation.

    Args:
        reward: (T, N).
        value: (T + 1, N), of every observation and of the one after the last step.
        done: (T, N), 1 where the episode ended with this step, terminated or truncated.
        truncated_value: (T, N), the value of the final observation where the episode was truncated,
            elsewhere 0.
        gamma: discount.
        gae_lambda: 0 is the one-step TD error, 1 the Monte Carlo return minus the value.
    """
    not_done = 1.0 - done
    next_value = value[1:] * not_done + truncated_value
    delta = reward + gamma * next_value - value[:-1]
    advantage = torch.empty_like(reward)
    running = torch.zeros_like(reward[0])
    for t in range(len(reward) - 1, -1, -1):
        running = delta[t] + gamma * gae_lambda * not_done[t] * running
        advantage[t] = running
    return advantage
