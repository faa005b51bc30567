"""The interface of a trainer, and which one an algorithm has."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from navrl.config import Config
from navrl.evaluate import Flights
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.sim.env import NavigationEnv
from navrl.train.distributed.team import Team


class Trainer(Protocol):
    """One rank's part of a training, as the loop uses it."""

    config: Config
    network: NavigationNetwork
    env: NavigationEnv
    iteration: int
    best: dict[str, float] | None

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimisers that change the parameters, for the checkpoint saver."""

    @property
    def frames_per_iteration(self) -> int:
        """Steps of all drones, over all processes, in one batch."""

    @property
    def iterations(self) -> int:
        """Number of iterations of the whole training."""

    @property
    def frames(self) -> int:
        """Steps of all drones so far."""

    def collect(self) -> Any:
        """Return the next batch."""

    def learn(self, batch: Any) -> dict[str, float]:
        """Update the policy from a batch and return metrics."""

    def evaluate(self) -> dict[str, Flights]:
        """Fly unseen worlds; return all flights by condition on rank 0."""

    def own_state(self) -> dict[str, Any]:
        """Return the state of this rank alone."""

    def shared_state(self) -> dict[str, Any]:
        """Return the state that all ranks have in common; live tensors."""

    def load(self, state: dict[str, Any]) -> None:
        """Load a saved state."""


def make_trainer(config: Config, team: Team) -> Trainer:
    """Return the trainer of the algorithm in the settings."""
    if config.algorithm == "sac":
        from navrl.train.sac_trainer import SACTrainer  # here: it loads the replay's kernels

        return SACTrainer(config, team)
    from navrl.train.ppo_trainer import PPOTrainer

    return PPOTrainer(config, team)
