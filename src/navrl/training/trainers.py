"""The interface of a trainer, and which one an algorithm has."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from navrl.conf.collect_settings import RAY
from navrl.config import Config
from navrl.environments.task import Task
from navrl.evaluation import Flights
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.environment import Environment
from navrl.rl.networks.build import MakeFeatures
from navrl.training.distributed.team import Team


class Trainer(Protocol):
    """One rank's part of a training, as the loop uses it."""

    config: Config
    task: Task
    network: nn.Module
    applied: AppliedNetwork
    env: Environment
    iteration: int
    best: dict[str, float] | None

    @property
    def policy_network(self) -> nn.Module:
        """The network that is evaluated and kept as the model."""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimisers that change the parameters, for the checkpoint saver."""

    @property
    def frames_per_iteration(self) -> int:
        """Decisions of the whole team in one batch."""

    @property
    def iterations(self) -> int:
        """Number of iterations of the whole training."""

    @property
    def frames(self) -> int:
        """Steps of all drones so far."""

    @property
    def collection(self) -> str:
        """The state of remote workers in one line; empty: there are none."""

    def news(self) -> list[str]:
        """Return sentences for the display, once each."""

    def close(self) -> None:
        """End what the trainer has started."""

    def collect(self) -> Any:
        """Return the next batch."""

    def learn(self, batch: Any) -> dict[str, float]:
        """Update the policy from a batch and return metrics."""

    def evaluate(self) -> dict[str, Flights]:
        """Play episodes; the leader gets all of them by condition."""

    def own_state(self) -> dict[str, Any]:
        """Return the state of this rank alone."""

    def shared_state(self) -> dict[str, Any]:
        """Return the state that all ranks have in common; live tensors."""

    def load(self, state: dict[str, Any]) -> None:
        """Load a saved state."""


def make_trainer(
    config: Config, team: Team, task: Task | None = None, network: MakeFeatures | None = None
) -> Trainer:
    """Return the trainer of the algorithm that the settings ask for.

    Args:
        config: the settings.
        team: the processes that train together.
        task: what is trained; None: the one that the settings name.
        network: makes the features of the policy's network; None: as the settings say.
    """
    if config.algorithm == "sac":
        from navrl.training.sac_trainer import (
            SACTrainer,  # here: only it needs the replay's kernels
        )

        return SACTrainer(config, team, task)
    if config.collect.name == RAY:
        from navrl.training.remote.remote_trainer import RemoteTrainer

        return RemoteTrainer(config, team, task, network)
    from navrl.training.ppo_trainer import PPOTrainer

    return PPOTrainer(config, team, task, network)
