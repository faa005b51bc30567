"""A plain PyTorch loop with conv2d, written well: buffers made once, minibatches of one packed
matrix, fused Adam.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from _training_peers.task import (
    Batch,
    Task,
    beta_parameters,
    log_probability,
    loss,
    make_network,
    sample,
    velocity,
)
from navrl.sim.env import NavigationEnv


class PlainUpdate:
    """The update alone: advantages, then epochs of minibatches."""

    def __init__(self, task: Task) -> None:
        self.task, self.network = task, make_network()
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=task.learning_rate, fused=True
        )

    def advantages(self, reward: Tensor, done: Tensor, value: Tensor) -> Tensor:
        """Return generalised advantages, (T, N), of rewards and endings (T, N) and values (T + 1,
        N).
        """
        result, running = torch.empty_like(reward), torch.zeros_like(reward[0])
        going = 1.0 - done.float()
        for step in reversed(range(len(reward))):
            error = reward[step] + self.task.discount * going[step] * value[step + 1] - value[step]
            running = error + self.task.discount * self.task.trace * going[step] * running
            result[step] = running
        return result

    def learn(
        self,
        rows: Tensor,
        action: Tensor,
        log_probability: Tensor,
        advantage: Tensor,
        value: Tensor,
    ) -> None:
        """Improve the network on all decisions: rows (F, width), actions (F, 3), the rest (F,)."""
        target = advantage + value
        advantage = (advantage - advantage.mean()) / advantage.std().clamp(min=1e-7)
        parts = [
            rows,
            action,
            *(column.unsqueeze(1) for column in (log_probability, advantage, value, target)),
        ]
        packed = torch.cat(parts, 1)
        widths = [part.shape[1] for part in parts]
        for _ in range(self.task.epochs):
            for chosen in torch.randperm(len(packed)).view(self.task.minibatches, -1):
                views = packed.index_select(0, chosen).split(widths, 1)
                batch = Batch(views[0], views[1], *(view.squeeze(1) for view in views[2:]))
                self.optimizer.zero_grad()
                loss(self.network(batch.rows), batch, self.task).backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), self.task.gradient_norm)
                self.optimizer.step()


class PlainLoop:
    """Collection straight from the simulator, and the plain update."""

    def __init__(self, task: Task) -> None:
        self.task, self.update = task, PlainUpdate(task)
        self.env = NavigationEnv(task.settings(), seed=0)
        self.env.reset()
        self.step = self.env.step(torch.zeros(task.drones, 3))
        self.limit = self.env.settings.env.action_limit
        shape = (task.steps, task.drones)
        self.rows = torch.empty(*shape, self.env.layout.width)
        self.action = torch.empty(*shape, 3)
        self.log_probability, self.reward = torch.empty(shape), torch.empty(shape)
        self.value = torch.empty(task.steps + 1, task.drones)
        self.done = torch.empty(shape, dtype=torch.bool)

    @torch.no_grad()
    def collect(self) -> None:
        network, step = self.update.network, self.step
        for time_step in range(self.task.steps):
            self.rows[time_step] = step.packed
            heads = network(self.rows[time_step])
            alpha, beta = beta_parameters(heads)
            action = sample(alpha, beta)
            self.action[time_step], self.value[time_step] = action, heads[:, 6]
            self.log_probability[time_step] = log_probability(alpha, beta, action)
            self.env.step(velocity(action, self.limit), out=step)
            self.reward[time_step], self.done[time_step] = step.reward, step.done
            if step.truncated.any():  # the episode was cut: what would have come is estimated
                cut = step.truncated
                self.reward[time_step, cut] += (
                    self.task.discount * network(step.final_packed[cut])[:, 6]
                )
        self.value[-1] = network(step.packed)[:, 6]

    def iterate(self) -> tuple[float, float]:
        start = time.perf_counter()
        self.collect()
        collected = time.perf_counter()
        with torch.no_grad():
            advantage = self.update.advantages(self.reward, self.done, self.value)
        self.update.learn(
            self.rows.flatten(0, 1),
            self.action.flatten(0, 1),
            self.log_probability.flatten(),
            advantage.flatten(),
            self.value[:-1].flatten(),
        )
        return collected - start, time.perf_counter() - collected


def make(task: Task) -> PlainLoop:
    return PlainLoop(task)
