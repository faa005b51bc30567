"""Transitions for off-policy learning: many environments flown side by side, what they saw before and after each decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navrl.rl import gaussian
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.collect import Environment


@dataclass
class Transitions:
    """A batch of transitions, (N, T): all of one environment together, in order; buffers are used again for the next batch."""

    rows: Tensor  # (N, T, width) observations
    next_rows: Tensor  # (N, T, width) those after the decision; at the end of an episode its last, not the next one's first
    action: Tensor  # (N, T, 3) in the unit cube
    reward: Tensor  # (N, T)
    terminated: Tensor  # (N, T) bool; a time limit does not count: what comes after it has a value
    ended: Tensor  # (N, T) bool, by whatever
    episodes: Tensor = field(default_factory=lambda: torch.zeros(0, 0))  # (E, K) statistics of those that ended


class TransitionCollector:
    """Flies an environment with the present policy, or at random, `steps` steps a batch.

    Args:
        env: see `Environment`; `rows` are its present observations.
        actor: gives seven heads for packed observations; see `navrl.rl.gaussian`.
        steps: T.
        scale: makes an action of the environment from one in the unit cube.
        generator: of the random actions; its device is where the policy is.
    """

    def __init__(
        self, env: Environment, rows: Tensor, actor: AppliedNetwork, steps: int,
        scale: Callable[[Tensor], Tensor], generator: torch.Generator,
    ) -> None:  # fmt: skip
        self.env, self.actor, self.steps, self.scale, self.generator = env, actor, steps, scale, generator
        count, width = rows.shape
        self._step = env.make_step()
        self._present = rows.clone()
        self._batch = Transitions(
            rows=torch.zeros(count, steps, width),
            next_rows=torch.zeros(count, steps, width),
            action=torch.zeros(count, steps, gaussian.AXES),
            reward=torch.zeros(count, steps),
            terminated=torch.zeros(count, steps, dtype=torch.bool),
            ended=torch.zeros(count, steps, dtype=torch.bool),
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
            batch.rows[:, t], batch.action[:, t] = self._present, action
            self.env.step(self.scale(action), out=step)
            ended = step.terminated | step.truncated
            batch.reward[:, t], batch.terminated[:, t], batch.ended[:, t] = step.reward, step.terminated, ended
            batch.next_rows[:, t] = step.packed
            if ended.any():
                batch.next_rows[ended, t] = step.final_packed[ended]
                episodes.append(step.statistics[ended])
            self._present.copy_(step.packed)
        batch.episodes = torch.cat(episodes) if episodes else torch.zeros(0, step.statistics.shape[1])
        return batch


def look_ahead(batch: Transitions, gamma: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the next decisions bring together, what the value after them counts for, and what is seen then.

    Up to `steps` decisions are taken together, fewer where the episode or the batch ends first: discounted rewards, (N, T);
    the discount of the value that follows, 0 where there is none, (N, T); which decision is the last of each, (N, T).
    """
    count = batch.reward.shape[1]
    reward, discount = batch.reward.clone(), gamma * (~batch.terminated)
    last = torch.arange(count).expand_as(reward).clone()
    open_ = ~batch.ended
    for ahead in range(1, min(steps, count)):
        going = open_[:, : count - ahead]  # nothing has ended on the way to the decision `ahead` of this one
        reward[:, :-ahead] += torch.where(going, gamma**ahead * batch.reward[:, ahead:], 0.0)
        discount[:, :-ahead] = torch.where(going, gamma ** (ahead + 1) * (~batch.terminated[:, ahead:]), discount[:, :-ahead])
        last[:, :-ahead] += going.long()
        open_ = torch.cat([going & ~batch.ended[:, ahead:], torch.zeros_like(going[:, :1]).expand(-1, ahead)], 1)
    return reward, discount, last
