"""Collection: many environments flown side by side for a few steps, into buffers that are made
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.distributions import beta


class StepResult(Protocol):
    """What a step gives; rows of `final_packed` and `statistics` are valid where an episode
    ended.
    """

    packed: Tensor  # (N, width) observations
    final_packed: Tensor  # (N, width) last observations of ended episodes
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool
    statistics: Tensor  # (N, K)


class Environment(Protocol):
    """A batch of environments that begin a new episode by themselves where one ends."""

    num_envs: int

    def make_step(self) -> Any:
        """Return buffers for `step`."""

    def step(self, action: Tensor, *, out: Any) -> Any:
        """Take one step everywhere and write what comes of it into `out`."""


@dataclass
class Rollout:
    """A batch of experience, (T, N) steps; the collector reuses its buffers for the next one."""

    rows: Tensor  # (T + 1, N, width) observations, the last one not yet acted upon
    action: Tensor  # (T, N, 3) in the unit cube
    log_density: Tensor  # (T, N) of the actions when they were drawn
    value: Tensor  # (T + 1, N) in units of the reward
    reward: Tensor  # (T, N)
    ended: Tensor  # (T, N) 1 where an episode ended
    # (T, N) value of the last observation where a time limit cut the episode, else 0
    cut_value: Tensor
    # (E, K) statistics of those that ended
    episodes: Tensor = field(default_factory=lambda: torch.zeros(0, 0))


class Collector:
    """Flies an environment with the present policy, `steps` steps a batch.

    Args:
        env: see `Environment`; `rows` are its present observations.
        network: gives heads for packed observations.
        steps: T.
        scale: makes an action of the environment from one in the unit cube.
        generator: of the random actions; its device is where the buffers are.
    """

    def __init__(
        self,
        env: Environment,
        rows: Tensor,
        network: AppliedNetwork,
        steps: int,
        scale: Callable[[Tensor], Tensor],
        generator: torch.Generator,
    ) -> None:
        self.env = env
        self.network = network
        self.steps = steps
        self.scale = scale
        self.generator = generator
        (count, width), device = rows.shape, generator.device
        self._step = env.make_step()
        self._rollout = Rollout(
            rows=torch.zeros(steps + 1, count, width, device=device),
            action=torch.zeros(steps, count, beta.AXES, device=device),
            log_density=torch.zeros(steps, count, device=device),
            value=torch.zeros(steps + 1, count, device=device),
            reward=torch.zeros(steps, count, device=device),
            ended=torch.zeros(steps, count, device=device),
            cut_value=torch.zeros(steps, count, device=device),
        )
        self._rollout.rows[steps] = rows

    def go_on_from(self, batch: Rollout) -> None:
        """Begin the next batch where another collector's batch, of the same environment, ended."""
        self._rollout.rows[self.steps] = batch.rows[-1]

    @torch.no_grad()
    def collect(self, value_mean: float, value_spread: float) -> Rollout:
        """Return the next batch; `value_mean` and `value_spread` turn the critic's output into
        units of the reward.
        """
        batch, step = self._rollout, self._step
        batch.rows[0] = batch.rows[self.steps]
        batch.cut_value.zero_()
        cut_rows, cut_places, episodes = [], [], []
        for t in range(self.steps):
            heads = self.network.forward(batch.rows[t])
            batch.action[t], batch.log_density[t] = beta.sample(heads, self.generator)
            batch.value[t] = heads[:, -1]
            self.env.step(self.scale(batch.action[t]), out=step)
            batch.rows[t + 1] = step.packed
            batch.reward[t] = step.reward
            ended = step.terminated | step.truncated
            batch.ended[t] = ended
            if ended.any():
                episodes.append(step.statistics[ended])
                cut = torch.nonzero(step.truncated & ~step.terminated)[:, 0]
                cut_rows.append(step.final_packed[cut])
                cut_places.append(t * len(ended) + cut)
        batch.value[self.steps] = self.network.forward(batch.rows[self.steps])[:, -1]
        batch.value.mul_(value_spread).add_(value_mean)
        if cut_rows and len(last := torch.cat(cut_rows).to(batch.rows.device)):
            batch.cut_value.view(-1)[torch.cat(cut_places)] = (
                self.network.forward(last)[:, -1] * value_spread + value_mean
            )
        batch.episodes = (
            torch.cat(episodes) if episodes else torch.zeros(0, step.statistics.shape[1])
        )
        return batch
