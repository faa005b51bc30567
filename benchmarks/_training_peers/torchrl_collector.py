"""TorchRL's Collector with its GAE, replay buffer and ClipPPOLoss.

Chosen for speed: one pass of the network for policy and value, in collection and in the loss;
values of the next step shifted from those of this one instead of a second pass; smooth L1 as the
value loss; what the loss does not need is left out of the buffer; the same tensors for every batch;
fused Adam. Nothing is compiled.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import ExplorationType
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from _training_peers.task import Task, beta_parameters, make_network
from navrl.adapters.torchrl import TorchRLNavigationEnv

SEEN = ("lidar", "dynamic_obstacle", "state")


class Heads(nn.Module):
    """The network over the named parts of an observation, of any batch shape."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, lidar: Tensor, dynamic: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        lead = state.shape[:-1]
        rows = torch.cat([part.reshape(lead.numel(), -1) for part in (lidar, dynamic, state)], 1)
        heads = self.network(rows)
        alpha, beta = beta_parameters(heads)
        return alpha.view(*lead, 3), beta.view(*lead, 3), heads[:, 6:].view(*lead, 1)


class ScaledBeta(torch.distributions.TransformedDistribution):
    """A Beta distribution over velocity commands, its axes independent."""

    limit = 2.0

    def __init__(self, alpha: Tensor, beta: Tensor) -> None:
        base = torch.distributions.Independent(torch.distributions.Beta(alpha, beta), 1)
        super().__init__(
            base, torch.distributions.AffineTransform(-self.limit, 2 * self.limit, event_dim=1)
        )

    def log_prob(self, value: Tensor) -> Tensor:
        inside = ((value + self.limit) / (2 * self.limit)).clamp(1e-6, 1 - 1e-6)
        return self.base_dist.log_prob(inside)  # without the scale's constant, which no ratio sees

    def entropy(self) -> Tensor:
        return self.base_dist.entropy()


class TakenValue(nn.Module):
    """The value that the policy's pass has written."""

    def forward(self, value: Tensor) -> Tensor:
        return value


def make_policy(network: nn.Module) -> ProbabilisticTensorDictSequential:
    """Return the network as TorchRL's policy: actions drawn, their log-probabilities, and the
    value.
    """
    heads = TensorDictModule(Heads(network), list(SEEN), ["alpha", "beta", "passed_value"])
    choice = ProbabilisticTensorDictModule(
        in_keys=["alpha", "beta"],
        out_keys=["action"],
        distribution_class=ScaledBeta,
        return_log_prob=True,
        log_prob_key="action_log_prob",
        default_interaction_type=ExplorationType.RANDOM,
    )
    return ProbabilisticTensorDictSequential(heads, choice)


def make_collector(
    task: Task, network: nn.Module
) -> tuple[Collector, ProbabilisticTensorDictSequential, float]:
    """Return a collector that flies with the network, the policy inside, and the limit of its
    actions.
    """
    env = TorchRLNavigationEnv(task.settings(), seed=0)
    ScaledBeta.limit = env.simulator.settings.env.action_limit
    policy = make_policy(network)
    collector = Collector(
        env,
        policy,
        frames_per_batch=task.frames,
        total_frames=-1,
        exploration_type=ExplorationType.RANDOM,
        return_same_td=True,
    )
    return collector, policy, ScaledBeta.limit


class CollectorLoop:
    """The collector, and the objects around it that its examples use."""

    def __init__(self, task: Task) -> None:
        self.task, self.network = task, make_network()
        collector, policy, _ = make_collector(task, self.network)
        self.batches = iter(collector)
        self._make_learner(
            policy, TensorDictModule(TakenValue(), ["passed_value"], ["state_value"])
        )

    def _make_learner(self, policy: Any, value: Any) -> None:
        task = self.task
        self.advantage = GAE(
            gamma=task.discount, lmbda=task.trace, value_network=None, average_gae=True
        )
        self.loss = ClipPPOLoss(
            policy,
            value,
            clip_epsilon=task.clip,
            entropy_coeff=task.entropy,
            critic_coeff=1.0,
            loss_critic_type="smooth_l1",
            clip_value=task.clip,
            normalize_advantage=False,
        )
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=task.learning_rate, fused=True
        )
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(task.frames),
            sampler=SamplerWithoutReplacement(),
            batch_size=task.minibatch,
        )

    @torch.no_grad()
    def estimate(self, data: TensorDictBase) -> None:
        """Write advantages and targets. Values of the next step are this step's, but for the last
        one and for time-outs.
        """
        value = data["passed_value"]
        following = torch.empty_like(value)
        following[:, :-1] = value[:, 1:]
        following[:, -1] = self._value(data["next"][:, -1])
        cut = data["next", "truncated"].squeeze(-1)
        if cut.any():
            following[cut] = self._value(data["next"][cut])
        data["state_value"] = value
        data["next", "state_value"] = following
        self.advantage(data)

    def _value(self, data: TensorDictBase) -> Tensor:
        rows = torch.cat([data[name].flatten(1) for name in SEEN], 1)
        return self.network(rows)[:, 6:]

    def learn(self, data: TensorDictBase) -> None:
        self.estimate(data)
        needed = data.select(
            *SEEN, "action", "action_log_prob", "advantage", "value_target", "state_value"
        )
        self.buffer.empty()
        self.buffer.extend(needed.reshape(-1))
        for _ in range(self.task.epochs):
            for batch in self.buffer:
                losses = self.loss(batch)
                self.optimizer.zero_grad()
                (
                    losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                ).backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), self.task.gradient_norm)
                self.optimizer.step()

    def iterate(self) -> tuple[float, float]:
        start = time.perf_counter()
        data = next(self.batches)
        collected = time.perf_counter()
        self.learn(data)
        return collected - start, time.perf_counter() - collected


def make(task: Task) -> CollectorLoop:
    warnings.filterwarnings("ignore")
    torch.distributions.Distribution.set_default_validate_args(False)
    return CollectorLoop(task)
