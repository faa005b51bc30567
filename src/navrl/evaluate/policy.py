"""Find a policy by name, file, run or registry reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from navrl.errors import ConfigError, RegistryError, nearest_name
from navrl.evaluate.baselines.catalogue import BASELINES, baseline_task, make_baseline
from navrl.evaluate.flights import Act
from navrl.evaluate.names import POLICIES
from navrl.models import load_model
from navrl.registry.resolve import find_model
from navrl.rl.policy import NetworkPilot
from navrl.rl.scripted import scripted_pilot
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

PRETRAINED = Path(__file__).parents[1] / "policies" / "pretrained.pt"  # comes with the package

# What a policy sees and how its commands are applied: an evaluation takes these settings from the
# policy's training, all others from the task.
INTERFACE = (
    "env.action_repeat",
    "env.action_limit",
    "env.num_observed",
    "sensor.lidar_range",
    "sensor.lidar_vfov",
    "sensor.lidar_vbeams",
    "sensor.lidar_hres",
)


@dataclass(frozen=True)
class Policy:
    """A deterministic policy: observations in, velocity commands in the goal frame out."""

    name: str
    act: Act
    task: NavigationSettings | None = None  # of its training, if it was trained
    card: Mapping[str, Any] = field(default_factory=dict)  # how it was made
    # called with the environment at the start of an evaluation, if the policy needs that
    begin: Callable[[NavigationEnv], None] | None = None

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the velocity commands for a batch of observations, (N, 3), in m/s."""
        return self.act(observation)


def load_policy(reference: str | Path, task: NavigationSettings | None = None) -> Policy:
    """Return a policy by name (`pretrained`, `orca`, ...), model file, run folder or registry name.

    Raises:
        ConfigError: there is no such policy, or the file holds none.
        ContainerError: the file is damaged.
    """
    name = str(reference)
    if name == "scripted":
        return _scripted(task or NavigationSettings())
    if name in BASELINES:
        return _baseline(name, task or NavigationSettings())
    path = PRETRAINED if name == "pretrained" else _found(reference)
    network, trained, card = load_model(path)
    return Policy(name, NetworkPilot(network, trained.env.action_limit), trained, card)


def _found(reference: str | Path) -> Path:
    """Return the file of a model, by its path, its run, or its name in the registry."""
    try:
        return find_model(reference)
    except RegistryError as error:
        near = nearest_name(str(reference), POLICIES)
        raise ConfigError(
            f"no policy {str(reference)!a:.200}; expected a model file, a run's folder, "
            f"{', '.join(POLICIES)}, or a name in the registry ({error}).{near}"
        ) from error


def _baseline(name: str, task: NavigationSettings) -> Policy:
    own = baseline_task(task)
    act = make_baseline(name, own)
    return Policy(name, act, own, begin=getattr(act, "begin", None))


def _scripted(task: NavigationSettings) -> Policy:
    limit, reach = task.env.action_limit, task.sensor.lidar_range
    return Policy("scripted pilot", lambda observation: scripted_pilot(observation, limit, reach))
