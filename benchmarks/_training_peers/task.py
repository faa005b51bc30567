"""What every contestant does: the task, the network, the policy's distribution, the loss."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from navrl.rl.networks.navigation import NavigationNetwork
from navrl.sim.settings import NavigationSettings


@dataclass(frozen=True)
class Task:
    """One iteration: `steps` decisions of all drones, then `epochs` passes in `minibatches`
    parts.
    """

    drones: int = 1024
    steps: int = 32
    epochs: int = 4
    minibatches: int = 16
    worlds: int = 64
    threads: int = 2
    clip: float = 0.1
    entropy: float = 1e-3
    huber: float = 10.0
    discount: float = 0.99
    trace: float = 0.95
    learning_rate: float = 5e-4
    gradient_norm: float = 5.0

    @property
    def frames(self) -> int:
        """Decisions in an iteration."""
        return self.drones * self.steps

    @property
    def minibatch(self) -> int:
        """Decisions in a minibatch."""
        return self.frames // self.minibatches

    def as_json(self) -> str:
        """Return the task as a contestant's argument."""
        return json.dumps(asdict(self))

    def settings(self) -> NavigationSettings:
        """Return the environment: 350 static and 80 moving obstacles in each world."""
        return NavigationSettings.of(
            env__num_envs=self.drones,
            env__num_worlds=self.worlds,
            env__action_repeat=1,
            sim__num_threads=self.threads,
        )


def make_network() -> NavigationNetwork:
    """Return the network of all contestants."""
    return NavigationNetwork()


def beta_parameters(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Return alpha and beta, (N, 3) each, from the raw heads."""
    both = 1.0 + functional.softplus(heads[:, :6]) + 1e-6
    return both[:, :3], both[:, 3:]


def sample(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return actions between 0 and 1, (N, 3)."""
    drawn = torch._standard_gamma(torch.cat([alpha, beta], 1))
    return (drawn[:, :3] / (drawn[:, :3] + drawn[:, 3:])).clamp(1e-6, 1 - 1e-6)


def velocity(action: Tensor, limit: float) -> Tensor:
    """Return the velocity command of actions between 0 and 1."""
    return (2 * limit) * action - limit


def _log_normaliser(alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)


def log_probability(alpha: Tensor, beta: Tensor, action: Tensor) -> Tensor:
    """Return the logarithm of the density of actions between 0 and 1, (N,)."""
    exponents = (alpha - 1) * torch.log(action) + (beta - 1) * torch.log1p(-action)
    return (exponents - _log_normaliser(alpha, beta)).sum(1)


def entropy(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the entropy of the distribution, (N,)."""
    both = alpha + beta
    slopes = (
        (both - 2) * torch.digamma(both)
        - (alpha - 1) * torch.digamma(alpha)
        - (beta - 1) * torch.digamma(beta)
    )
    return (_log_normaliser(alpha, beta) + slopes).sum(1)


@dataclass(frozen=True)
class Batch:
    """Decisions to learn from, of one minibatch."""

    rows: Tensor  # (B, width)
    action: Tensor  # (B, 3) between 0 and 1
    log_probability: Tensor  # (B,)
    advantage: Tensor  # (B,)
    value: Tensor  # (B,)
    target: Tensor  # (B,)


def loss(heads: Tensor, batch: Batch, task: Task) -> Tensor:
    """Return the clipped surrogate, the clipped Huber loss of the value, and the entropy bonus,
    together.
    """
    alpha, beta = beta_parameters(heads)
    ratio = torch.exp(log_probability(alpha, beta, batch.action) - batch.log_probability)
    clipped = ratio.clamp(1 - task.clip, 1 + task.clip)
    surrogate = -torch.min(batch.advantage * ratio, batch.advantage * clipped).mean()
    value = heads[:, 6]
    near = batch.value + (value - batch.value).clamp(-task.clip, task.clip)
    plain = functional.huber_loss(value, batch.target, delta=task.huber)
    critic = torch.max(plain, functional.huber_loss(near, batch.target, delta=task.huber))
    return surrogate + critic - task.entropy * entropy(alpha, beta).mean()
