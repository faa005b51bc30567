"""PPO of skrl under its SequentialTrainer, with the network as its model and a Beta distribution.

Chosen for speed: packed observations; one model for policy and value, whose value comes from the
pass that the policy has just made; fused Adam; no tracking, no checkpoints, no progress bar. skrl
has no Beta policy, so the model brings the one that the plain loop uses. Its value loss is the
squared error, which costs no more than the others' Huber loss.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import Wrapper
from skrl.memories.torch import RandomMemory
from skrl.models.torch import Model
from skrl.trainers.torch import SequentialTrainer
from torch import Tensor, nn
from torch.distributions import Beta

from _training_peers.task import (
    Task,
    beta_parameters,
    entropy,
    log_probability,
    make_network,
    sample,
    velocity,
)
from navrl.sim.env import NavigationEnv


class DroneWrapper(Wrapper):
    """The simulator as skrl wants it. `reset` goes on where the last iteration stopped."""

    def __init__(self, simulator: NavigationEnv) -> None:
        super().__init__(simulator)
        simulator.reset()
        self.result = simulator.step(torch.zeros(simulator.num_envs, 3))
        self.limit = simulator.settings.env.action_limit
        self.spaces = (
            Box(-np.inf, np.inf, (simulator.layout.width,), np.float32),
            Box(0, 1, (3,), np.float32),
        )

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        return self.result.packed, {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        # new tensors: skrl needs the old ones
        result = self.result = self._env.step(velocity(actions, self.limit))
        columns = (result.reward, result.terminated, result.truncated)
        return result.packed, *(column.unsqueeze(1) for column in columns), {}

    def state(self) -> None:
        return None

    def render(self, *args: Any, **kwargs: Any) -> None:
        return None

    def close(self) -> None:
        return None

    observation_space = property(lambda self: self.spaces[0])
    action_space = property(lambda self: self.spaces[1])
    state_space = property(lambda self: None)


class NavigationModel(Model):
    """Policy and value of one network: the policy's pass leaves the value behind."""

    def __init__(self, env: DroneWrapper, network: nn.Module | None = None) -> None:
        super().__init__(
            observation_space=env.observation_space, action_space=env.action_space, device="cpu"
        )
        self.network = network or make_network()
        self.seen: Any = None
        self.heads = torch.empty(0)

    def act(self, inputs: dict[str, Any], *, role: str = "") -> tuple[Tensor, dict[str, Any]]:
        rows = inputs["observations"]
        if role == "value":
            return (self.heads if rows is self.seen else self.network(rows))[:, 6:], {}
        self.seen, self.heads = rows, self.network(rows)
        self.parameters_now = alpha, beta = beta_parameters(self.heads)
        action = inputs.get("taken_actions")
        action = sample(alpha, beta) if action is None else action
        return action, {"log_prob": log_probability(alpha, beta, action).unsqueeze(1)}

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Return what `act` does; skrl asks its models for both."""
        return self.act(inputs, role=role)

    def get_entropy(self, *, role: str = "") -> Tensor:
        return entropy(*self.parameters_now).unsqueeze(1)

    def distribution(self, *, role: str = "") -> Beta:
        return Beta(*self.parameters_now, validate_args=False)


class Trainer:
    """One iteration is one run of the trainer, as long as a rollout; the agent's update is timed
    inside.
    """

    def __init__(self, task: Task) -> None:
        env = DroneWrapper(NavigationEnv(task.settings(), seed=0))
        model = NavigationModel(env)
        configuration = {
            "rollouts": task.steps,
            "learning_epochs": task.epochs,
            "mini_batches": task.minibatches,
            "learning_rate": task.learning_rate,
            "grad_norm_clip": task.gradient_norm,
            "ratio_clip": task.clip,
            "value_clip": task.clip,
            "entropy_loss_scale": task.entropy,
            "value_loss_scale": 1.0,
            "discount_factor": task.discount,
            "gae_lambda": task.trace,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        }
        agent = PPO(
            models={"policy": model, "value": model},
            memory=RandomMemory(memory_size=task.steps, num_envs=task.drones),
            observation_space=env.observation_space,
            action_space=env.action_space,
            device="cpu",
            cfg=configuration,
        )
        agent.optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rate, fused=True)
        self.update, self.update_seconds = agent.update, 0.0
        agent.update = self._timed_update
        options = {
            "timesteps": task.steps,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        }
        self.trainer = SequentialTrainer(env=env, agents=agent, cfg=options)

    def _timed_update(self, **arguments: Any) -> None:
        start = time.perf_counter()
        self.update(**arguments)
        self.update_seconds = time.perf_counter() - start

    def iterate(self) -> tuple[float, float]:
        start = time.perf_counter()
        self.trainer.train()
        return time.perf_counter() - start - self.update_seconds, self.update_seconds


def make(task: Task) -> Trainer:
    return Trainer(task)
