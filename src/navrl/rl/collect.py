"""On-policy collection: steps a batch of environments with the current policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.distributions.action_distribution import ActionDistribution
from navrl.rl.environment import Environment, check_action

ADVICE_INTERVAL = 4  # steps between two questions to a teacher, which may cost more than a step


@dataclass
class Rollout:
    """A batch of (T, N) steps; the collector reuses its buffers for the next batch."""

    rows: Tensor  # (T + 1, N, width) observations; the last one has no action yet
    action: Tensor  # (T, N, A) as the distribution drew them: of a bounded box in the unit cube
    log_prob: Tensor  # (T, N) of the actions under the policy that drew them
    value: Tensor  # (T + 1, N) in units of the reward
    reward: Tensor  # (T, N)
    done: Tensor  # (T, N) 1 where an episode ended, terminated or truncated
    # (T, N) value of the final observation where the episode was truncated, else 0
    truncated_value: Tensor
    # (E, K) statistics of the episodes that ended in the batch
    episodes: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    # (F, width) final observations of the truncated episodes, and where they were: t * N + n, (F,)
    final_rows: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    final_places: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    # (T, N) min(1, pi / mu) where an older policy mu acted; None: the policy that learns did
    importance: Tensor | None = None
    # (T, N, A) what a teacher would have done, drawn like the actions, NaN where it was not asked
    # or had no advice; None: no teacher
    advice: Tensor | None = None


class Collector:
    """Steps an environment with the current policy, `steps` steps per batch.

    Args:
        env: see `navrl.rl.environment.Environment`.
        rows: its current observations, (N, width).
        network: returns heads for packed observations.
        steps: T.
        distribution: of the actions.
        generator: draws the actions; the buffers are on its device.
    """

    def __init__(
        self,
        env: Environment,
        rows: Tensor,
        network: AppliedNetwork,
        steps: int,
        distribution: ActionDistribution,
        generator: torch.Generator,
    ) -> None:
        self.env = env
        self.network = network
        self.steps = steps
        self.distribution = distribution
        self.generator = generator
        (count, width), device = rows.shape, generator.device
        self._step = env.make_step()
        self._rollout = Rollout(
            rows=torch.zeros(steps + 1, count, width, device=device),
            action=torch.zeros(steps, count, distribution.size, device=device),
            log_prob=torch.zeros(steps, count, device=device),
            value=torch.zeros(steps + 1, count, device=device),
            reward=torch.zeros(steps, count, device=device),
            done=torch.zeros(steps, count, device=device),
            truncated_value=torch.zeros(steps, count, device=device),
        )
        self._rollout.rows[steps] = rows

    def restart(self, rows: Tensor) -> None:
        """Start the next batch from other observations: the environment was reset."""
        self._rollout.rows[self.steps] = rows

    def go_on_from(self, batch: Rollout) -> None:
        """Start the next batch where another collector's batch of the same environment ended."""
        self._rollout.rows[self.steps] = batch.rows[-1]

    @torch.no_grad()
    def collect(self, value_mean: float, value_std: float, *, advised: bool = False) -> Rollout:
        """Return the next batch.

        The critic's output times `value_std` plus `value_mean` is in units of the reward. With
        `advised` the environment's teacher is asked now and then.
        """
        batch, step = self._rollout, self._step
        batch.rows[0] = batch.rows[self.steps]
        batch.truncated_value.zero_()
        batch.advice = torch.full_like(batch.action, math.nan) if advised else None
        final_rows, final_places, episodes = [], [], []
        for t in range(self.steps):
            heads = self.network.infer(batch.rows[t])
            action, batch.log_prob[t] = self.distribution.sample(heads, self.generator)
            batch.action[t] = action
            batch.value[t] = heads[:, -1]
            if batch.advice is not None and t % ADVICE_INTERVAL == 0:
                self._ask(heads, batch.rows[t], out=batch.advice[t])
            self.env.step(self.distribution.to_environment(action).cpu(), out=step)
            batch.rows[t + 1] = step.packed
            batch.reward[t] = step.reward
            done = step.terminated | step.truncated
            batch.done[t] = done
            if done.any():
                episodes.append(step.statistics[done])
                truncated = torch.nonzero(step.truncated & ~step.terminated)[:, 0]
                final_rows.append(step.final_packed[truncated])
                final_places.append(t * len(done) + truncated)
        batch.value[self.steps] = self.network.infer(batch.rows[self.steps])[:, -1]
        batch.value.mul_(value_std).add_(value_mean)
        self._value_truncated(final_rows, final_places, value_mean, value_std)
        batch.episodes = (
            torch.cat(episodes) if episodes else torch.zeros(0, step.statistics.shape[1])
        )
        return batch

    def _value_truncated(
        self, rows: list[Tensor], places: list[Tensor], value_mean: float, value_std: float
    ) -> None:
        """Store the last observations of truncated episodes, and their values."""
        batch = self._rollout
        batch.final_rows, batch.final_places = batch.rows[0, :0], torch.zeros(0, dtype=torch.int64)
        if rows and len(final := torch.cat(rows).to(batch.rows.device)):
            batch.final_rows, batch.final_places = final, torch.cat(places)
            batch.truncated_value.view(-1)[batch.final_places] = (
                self.network.infer(final)[:, -1] * value_std + value_mean
            )

    def _ask(self, heads: Tensor, rows: Tensor, *, out: Tensor) -> None:
        """Write what the environment's teacher would do, as the distribution draws actions."""
        mean = self.distribution.to_environment(self.distribution.mean(heads))
        advice = self.env.advise(rows.cpu(), mean.cpu())
        if advice is not None:
            check_action(self.env, advice)
            out.copy_(self.distribution.from_environment(advice.to(out.device)))
