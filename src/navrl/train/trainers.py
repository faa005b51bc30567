"""Which trainer an algorithm has."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from navrl.config import Config
from navrl.evaluate import Flights
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.sim.env import NavigationEnv
from navrl.train.distributed.team import Team


class Trainer(Protocol):
    """What the loop asks of a trainer: one process's part of a training."""

    config: Config
    network: NavigationNetwork
    env: NavigationEnv
    iteration: int
    best: dict[str, float] | None

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """What changes the parameters."""

    @property
    def frames_per_iteration(self) -> int:
        """Decisions of all drones of the team in one batch."""

    @property
    def iterations(self) -> int:
        """How many batches the whole training takes."""

    @property
    def frames(self) -> int:
        """Decisions taken so far."""

    def collect(self) -> Any:
        """Fly the next batch."""

    def learn(self, batch: Any) -> dict[str, float]:
        """Update the policy, and return what happened."""

    def evaluate(self) -> dict[str, Flights]:
        """Fly unseen worlds; the leader gets all flights by condition."""

    def own_state(self) -> dict[str, Any]:
        """Return what only this process knows."""

    def shared_state(self) -> dict[str, Any]:
        """Return what all processes have in common; live tensors."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""


def make_trainer(config: Config, team: Team) -> Trainer:
    """Return the trainer of the algorithm that the settings ask for."""
    if config.algorithm == "sac":
        from navrl.train.sac_trainer import (
            SACTrainer,
        )  # here: only it needs the kernels of the memory

        return SACTrainer(config, team)
    from navrl.train.ppo_trainer import PPOTrainer

    return PPOTrainer(config, team)
