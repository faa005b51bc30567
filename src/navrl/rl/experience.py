"""Transitions for off-policy learning: many environments flown side by side, what they saw before
and after each decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.collect import Environment
from navrl.rl.distributions import gaussian


@dataclass
class Transitions:
    """A batch of transitions, (T, N); buffers are used again for the next batch."""

    rows: Tensor  # (T, N, width) observations
    # (T, N, width) those after the decision; at the end of an episode its last, not the next one's
    # first
    next_rows: Tensor
    action: Tensor  # (T, N, 3) in the unit cube
    reward: Tensor  # (T, N)
    terminated: Tensor  # (T, N) bool; a time limit does not count: what comes after it has a value
    ended: Tensor  # (T, N) bool, by whatever
    # (E, K) statistics of those that ended
    episodes: Tensor = field(default_factory=lambda: torch.zeros(0, 0))


class TransitionCollector:
    """Flies an environment with the present policy, or at random, `steps` steps a batch.

    Args:
        env: see `Environment`; `rows` are its present observations.
        actor: gives seven heads for packed observations; see `navrl.rl.distributions.gaussian`.
        steps: T.
        scale: makes an action of the environment from one in the unit cube.
        generator: of the random actions; its device is where the policy is.
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
        self._present = rows.clone()
        self._batch = Transitions(
            rows=torch.zeros(steps, count, width),
            next_rows=torch.zeros(steps, count, width),
            action=torch.zeros(steps, count, gaussian.AXES),
            reward=torch.zeros(steps, count),
            terminated=torch.zeros(steps, count, dtype=torch.bool),
            ended=torch.zeros(steps, count, dtype=torch.bool),
        )

    @torch.no_grad()
    def collect(self, *, at_random: bool = False) -> Transitions:
        """Return the next batch; `at_random` draws the actions from all of the cube."""
        batch, step, episodes = self._batch, self._step, []
        device = self.generator.device
        for t in range(self.steps):
            shape = (len(self._present), gaussian.AXES)
            if at_random:
                action = torch.rand(shape, generator=self.generator, device=device)
            else:
                noise = torch.randn(shape, generator=self.generator, device=device)
                action, _ = gaussian.sample(self.actor.forward(self._present.to(device)), noise)
            batch.rows[t], batch.action[t] = self._present, action
            self.env.step(self.scale(action), out=step)
            ended = step.terminated | step.truncated
            batch.reward[t] = step.reward
            batch.terminated[t] = step.terminated
            batch.ended[t] = ended
            batch.next_rows[t] = step.packed
            if ended.any():
                batch.next_rows[t, ended] = step.final_packed[ended]
                episodes.append(step.statistics[ended])
            self._present.copy_(step.packed)
        batch.episodes = (
            torch.cat(episodes) if episodes else torch.zeros(0, step.statistics.shape[1])
        )
        return batch


def look_ahead(
    reward: Tensor, terminated: Tensor, ended: Tensor, known: Tensor, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what decisions and those after them bring together, what the value that follows counts
    for, and from where.

    Every row of the (B, n) arguments is a decision and the n - 1 after it; `known` tells which of
    them are there to be looked at. They are taken together up to the one that ends the episode or
    is the last known: their discounted rewards, (B,); the discount of the value that follows, 0
    where there is none, (B,); which of them is the last, (B,).
    """
    before = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1)
    taken = (known & ~before).long().cumprod(1)
    powers = gamma ** torch.arange(reward.shape[1], device=reward.device)
    last = taken.sum(1) - 1
    finished = terminated.gather(1, last[:, None])[:, 0]
    return (reward * powers * taken).sum(1), gamma ** (last + 1) * (~finished), last
