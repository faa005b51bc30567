"""Off-policy collection: transitions from a batch of environments, and n-step returns from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.distributions import gaussian
from navrl.rl.environment import Environment


@dataclass
class Transitions:
    """A batch of (T, N) transitions; the collector reuses its buffers for the next batch."""

    rows: Tensor  # (T, N, width) observations
    # (T, N, width) observations after the action; where an episode ended its final observation, not
    # the first of the next episode
    next_rows: Tensor
    action: Tensor  # (T, N, 3) in the unit cube
    reward: Tensor  # (T, N)
    terminated: Tensor  # (T, N) bool; False where a time limit truncated the episode
    done: Tensor  # (T, N) bool, terminated or truncated
    # (E, K) statistics of the episodes that ended in the batch
    episodes: Tensor = field(default_factory=lambda: torch.zeros(0, 0))


class TransitionCollector:
    """Steps an environment with the current policy or at random, `steps` steps per batch.

    Args:
        env: see `navrl.rl.environment.Environment`.
        rows: its current observations, (N, width).
        actor: returns the heads of `navrl.rl.distributions.gaussian` for packed observations.
        steps: T.
        scale: maps an action from the unit cube to the environment's units.
        generator: draws the actions; the policy is on its device.
    """

    def __init__(
        self,
        env: Environment,
        rows: Tensor,
        actor: AppliedNetwork,
        steps: int,
        scale: Callable[[Tensor], Tensor],
        generator: torch.Generator,
    ) -> None:
        self.env = env
        self.actor = actor
        self.steps = steps
        self.scale = scale
        self.generator = generator
        count, width = rows.shape
        self._step = env.make_step()
        self._current = rows.clone()
        self._batch = Transitions(
            rows=torch.zeros(steps, count, width),
            next_rows=torch.zeros(steps, count, width),
            action=torch.zeros(steps, count, gaussian.AXES),
            reward=torch.zeros(steps, count),
            terminated=torch.zeros(steps, count, dtype=torch.bool),
            done=torch.zeros(steps, count, dtype=torch.bool),
        )

    @torch.no_grad()
    def collect(self, *, at_random: bool = False) -> Transitions:
        """Return the next batch; `at_random` draws actions uniformly from the unit cube."""
        batch, step, episodes = self._batch, self._step, []
        device = self.generator.device
        for t in range(self.steps):
            shape = (len(self._current), gaussian.AXES)
            if at_random:
                action = torch.rand(shape, generator=self.generator, device=device)
            else:
                noise = torch.randn(shape, generator=self.generator, device=device)
                action, _ = gaussian.sample(self.actor.infer(self._current.to(device)), noise)
            batch.rows[t], batch.action[t] = self._current, action
            self.env.step(self.scale(action), out=step)
            done = step.terminated | step.truncated
            batch.reward[t] = step.reward
            batch.terminated[t] = step.terminated
            batch.done[t] = done
            batch.next_rows[t] = step.packed
            if done.any():
                batch.next_rows[t, done] = step.final_packed[done]
                episodes.append(step.statistics[done])
            self._current.copy_(step.packed)
        batch.episodes = (
            torch.cat(episodes) if episodes else torch.zeros(0, step.statistics.shape[1])
        )
        return batch


def n_step_return(
    reward: Tensor, terminated: Tensor, done: Tensor, known: Tensor, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the n-step return, the bootstrap discount and the index of the last step, (B,) each.

        G = r_0 + gamma * r_1 + ... + gamma^k * r_k,    target = G + discount * V(s_{k+1})

    k is the last step before the episode ends, before `known` ends, or n - 1. The discount is
    gamma^(k+1), or 0 if step k terminated the episode.

    Args:
        reward: (B, n), a step and the n - 1 steps after it.
        terminated: (B, n) bool.
        done: (B, n) bool, terminated or truncated.
        known: (B, n) bool, False for steps that are not stored.
        gamma: discount.
    """
    done_before = torch.cat([torch.zeros_like(done[:, :1]), done[:, :-1]], 1)
    counted = (known & ~done_before).long().cumprod(1)
    powers = gamma ** torch.arange(reward.shape[1], device=reward.device)
    last = counted.sum(1) - 1
    finished = terminated.gather(1, last[:, None])[:, 0]
    return (reward * powers * counted).sum(1), gamma ** (last + 1) * (~finished), last
