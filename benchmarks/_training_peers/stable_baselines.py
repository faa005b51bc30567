"""PPO of Stable-Baselines3, with the network as its policy.

Chosen for speed: flat observations, so that a minibatch is one gather; one pass of the network for
policy and value; fused Adam; no Monitor, no logger output. Its value loss is the squared error,
which costs no more than the others' Huber loss.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import Tensor, nn

from _training_peers.task import (
    Task,
    beta_parameters,
    entropy,
    log_probability,
    make_network,
    sample,
    velocity,
)
from navrl.adapters.stable_baselines3 import NavigationVecEnv


class NavigationPolicy(ActorCriticPolicy):
    """The network with its Beta distribution, in the form that PPO asks for."""

    def __init__(self, *words: Any, network: nn.Module | None = None, **named: Any) -> None:
        self._given = [network or make_network()]  # in a list: it becomes a part in `_build`
        super().__init__(*words, **named)

    def _build(self, lr_schedule: Any) -> None:
        self.network = self._given.pop()
        self.limit = float(self.action_space.high[0])
        self.optimizer = self.optimizer_class(
            self.network.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.network(obs)
        alpha, beta = beta_parameters(heads)
        action = sample(alpha, beta)
        return velocity(action, self.limit), heads[:, 6:], log_probability(alpha, beta, action)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.network(obs)
        alpha, beta = beta_parameters(heads)
        inside = ((actions + self.limit) / (2 * self.limit)).clamp(1e-6, 1 - 1e-6)
        return heads[:, 6:], log_probability(alpha, beta, inside), entropy(alpha, beta)

    def predict_values(self, obs: Tensor) -> Tensor:
        return self.network(obs)[:, 6:]


class Quiet(BaseCallback):
    """A callback that does nothing."""

    def _on_step(self) -> bool:
        return True


class StableBaselines:
    """PPO's own two halves of an iteration, called in turn as its `learn` does."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.model = PPO(
            NavigationPolicy,
            NavigationVecEnv(task.settings(), flat=True),
            n_steps=task.steps,
            batch_size=task.minibatch,
            n_epochs=task.epochs,
            learning_rate=task.learning_rate,
            clip_range=task.clip,
            clip_range_vf=task.clip,
            ent_coef=task.entropy,
            vf_coef=1.0,
            max_grad_norm=task.gradient_norm,
            gamma=task.discount,
            gae_lambda=task.trace,
            policy_kwargs={"optimizer_kwargs": {"fused": True}},
            device="cpu",
            verbose=0,
        )
        _, self.callback = self.model._setup_learn(2**62, Quiet())

    def iterate(self) -> tuple[float, float]:
        model = self.model
        start = time.perf_counter()
        model.collect_rollouts(
            model.env, self.callback, model.rollout_buffer, n_rollout_steps=self.task.steps
        )
        collected = time.perf_counter()
        model.train()
        return collected - start, time.perf_counter() - collected


def make(task: Task) -> StableBaselines:
    torch.distributions.Distribution.set_default_validate_args(False)
    return StableBaselines(task)
