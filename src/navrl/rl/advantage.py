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
    importance: Tensor | None = None,
) -> Tensor:
    """Return the advantages of a rollout, (T, N).

        delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)
        A_t     = delta_t + gamma * lambda * (1 - done_t) * rho_{t+1} * A_{t+1}

    V(s_{t+1}) is 0 after a termination, and the value of the final observation after a truncation.
    rho is 1 for a rollout of the policy that learns. For one of another policy it is the truncated
    importance weight, and V(s_t) + rho_t * A_t is the value target of V-trace (Espeholt et al.,
    2018) with c_t = lambda * rho_t.

    Args:
        reward: (T, N).
        value: (T + 1, N), of every observation and of the one after the last step.
        done: (T, N), 1 where the episode ended with this step, terminated or truncated.
        truncated_value: (T, N), the value of the final observation where the episode was truncated,
            elsewhere 0.
        gamma: discount.
        gae_lambda: 0 is the one-step TD error, 1 the Monte Carlo return minus the value.
        importance: (T, N), rho; None: 1.
    """
    not_done = 1.0 - done
    next_value = value[1:] * not_done + truncated_value
    delta = reward + gamma * next_value - value[:-1]
    advantage = torch.empty_like(reward)
    running = torch.zeros_like(reward[0])
    for t in range(len(reward) - 1, -1, -1):
        running = delta[t] + gamma * gae_lambda * not_done[t] * running
        advantage[t] = running
        if importance is not None:
            running = importance[t] * running
    return advantage
