"""Task: what a training is about. It makes environments and evaluates policies in others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import nn

from navrl.evaluation.flights import Act, Flights
from navrl.rl.environment import Environment
from navrl.rl.networks.build import MakeFeatures

__all__ = ["Task"]


class Task(ABC):
    """An entry of the table of environments: all that training asks beside the contract itself.

    A team of `size` processes trains together; each makes its own share of the environments.
    """

    name: str  # what the display calls it
    units: str = "environments"  # what they are called: `2048 drones`
    exact: bool = True  # whether a training resumes bit for bit
    compiles: bool = False  # whether there are kernels that `compile` runs

    @abstractmethod
    def make(self, rank: int, size: int) -> Environment:
        """Return the environments that one process trains in."""

    @property
    @abstractmethod
    def conditions(self) -> list[str]:
        """Labels of the conditions a policy is evaluated under, the hardest last."""

    @abstractmethod
    def evaluate(self, act: Act, env: Environment, rank: int, size: int) -> dict[str, Flights]:
        """Return the episodes of one process's share of an evaluation, by condition.

        Args:
            act: the policy's deterministic actions.
            env: the environment that is trained in. It is used only where there can be no other,
                and then `restarts` is True.
            rank: of this process.
            size: processes.
        """

    restarts: bool = False  # whether an evaluation ends all episodes of the training

    @abstractmethod
    def summary(self, episodes: Flights) -> dict[str, Any]:
        """Return the numbers of an evaluation for files and logs."""

    def headline(self, row: Mapping[str, Any]) -> tuple[str, float]:
        """Return the number of a summary that a person looks at first, and its name.

        It is the `success` rate, 0 to 1, or the mean `return` where an environment knows none.
        """
        rate = row.get("success_rate")
        if isinstance(rate, int | float):
            return "success", float(rate)
        return "return", float(row["mean_return"])

    @abstractmethod
    def record(self, env: Environment) -> dict[str, Any]:
        """Return what a model file says about the task."""

    @abstractmethod
    def new_network(self, make: MakeFeatures | None = None) -> nn.Module:
        """Return a network with random weights; `make` replaces the features of the settings."""

    def rollout_metadata(self) -> dict[str, Any]:
        """Return what a file of experience says about the task."""
        return {}

    def compile(self) -> None:
        """Run every compiled kernel once, if there are any."""
        return
