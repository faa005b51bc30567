"""Batches that an older policy collected, made ready for the update of the present one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.collect import Rollout
from navrl.rl.distributions.action_distribution import ActionDistribution

__all__ = ["join_rollouts", "reweighted"]


@torch.no_grad()
def reweighted(
    batch: Rollout,
    network: AppliedNetwork,
    distribution: ActionDistribution,
    value_mean: float,
    value_std: float,
) -> Rollout:
    """Return a batch with the values and log-probabilities of the present policy pi.

        importance = min(1, pi(a|s) / mu(a|s)),  mu: the policy that acted

    PPO's ratio then starts at 1 for every sample, and the weight multiplies its advantage. This is
    decoupled PPO (Hilton et al., 2021) with truncated weights. `log_prob` of the argument must be
    that of mu; its values are not read.

    Args:
        batch: of mu. It is not changed; tensors are shared.
        network: of pi.
        distribution: of the actions.
        value_mean: the critic's output times `value_std` plus this is in units of the reward.
        value_std: see `value_mean`.
    """
    log_prob, value = torch.empty_like(batch.log_prob), batch.reward.new_empty(batch.rows.shape[:2])
    for t, rows in enumerate(batch.rows):  # by steps, as they were collected: the same buffers fit
        heads = network.infer(rows)
        value[t] = heads[:, -1]
        if t < len(log_prob):
            log_prob[t], _ = distribution.log_prob_and_entropy(heads, batch.action[t])
    truncated_value = torch.zeros_like(batch.reward)
    if len(batch.final_rows):
        final = network.infer(batch.final_rows)[:, -1]
        truncated_value.view(-1)[batch.final_places] = final * value_std + value_mean
    return Rollout(
        rows=batch.rows,
        action=batch.action,
        log_prob=log_prob,
        value=value * value_std + value_mean,
        reward=batch.reward,
        done=batch.done,
        truncated_value=truncated_value,
        episodes=batch.episodes,
        final_rows=batch.final_rows,
        final_places=batch.final_places,
        importance=(log_prob - batch.log_prob).clamp(max=0).exp(),
        advice=batch.advice,
    )


def join_rollouts(parts: Sequence[Rollout]) -> Rollout:
    """Return batches of equally many steps side by side, as one of all their environments."""
    first = 0
    places = []
    count = sum(part.reward.shape[1] for part in parts)
    for part in parts:
        own = part.reward.shape[1]
        step, env = part.final_places // own, part.final_places % own
        places.append(step * count + first + env)
        first += own

    def joined(name: str, axis: int) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], axis)

    def joined_if_all_have(name: str) -> Tensor | None:
        return None if any(getattr(part, name) is None for part in parts) else joined(name, 1)

    return Rollout(
        rows=joined("rows", 1),
        action=joined("action", 1),
        log_prob=joined("log_prob", 1),
        value=joined("value", 1),
        reward=joined("reward", 1),
        done=joined("done", 1),
        truncated_value=joined("truncated_value", 1),
        episodes=joined("episodes", 0),
        final_rows=joined("final_rows", 0),
        final_places=torch.cat(places),
        importance=joined_if_all_have("importance"),
        advice=joined_if_all_have("advice"),
    )
