"""Find a policy by name, file, run or registry reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from navrl.errors import ConfigError, RegistryError, nearest_name, shown
from navrl.evaluation.baselines.catalogue import BASELINES, baseline_task, make_baseline
from navrl.evaluation.flights import Act
from navrl.evaluation.names import POLICIES
from navrl.general_models import load_general_model
from navrl.models import ForeignModelError, load_model
from navrl.registry.resolve import find_model
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.networks.build import MakeFeatures
from navrl.rl.policy import NetworkPilot
from navrl.rl.scripted import ScriptedPilot
from navrl.sim.env import NavigationEnv
from navrl.sim.robots import MEASURING, ROBOT_KEYS, Robot, differences, robot_of
from navrl.sim.settings import NavigationSettings
from navrl.targets import find_target

OWN = "python:"  # before the name of a policy that the user has written
PRETRAINED = Path(__file__).parents[1] / "policies" / "pretrained.pt"  # comes with the package

# The robot of a policy, all that a robot file sets: an evaluation takes these settings from the
# policy's training, all others from the task.
INTERFACE = ROBOT_KEYS
# What decides the shape of an observation: no policy can fly with other values than its training's.
SHAPE = ("lidar.rays", "lidar.beams", "detector.obstacles")
TOLD = 6  # differences between two robots in a message


@dataclass(frozen=True)
class Policy:
    """A deterministic policy: observation parts by name in, actions out.

    In the navigation task actions are velocity commands in the goal frame.

    >>> import torch
    >>> from navrl.evaluation import Policy
    >>> at_the_goal = Policy("straight ahead", lambda seen: 2 * seen["state"][:, :3])
    >>> at_the_goal({"state": torch.zeros(4, 8)}).shape
    torch.Size([4, 3])
    """

    name: str
    act: Act
    task: NavigationSettings | None = None  # of its training, if it was trained
    card: Mapping[str, Any] = field(default_factory=dict)  # how it was made
    # called with the environment at the start of an evaluation, if the policy needs that
    begin: Callable[[NavigationEnv], None] | None = None
    # `env.*` of its training, if that was in another environment than the navigation task
    environment: Mapping[str, Any] | None = None

    @property
    def decides_alone(self) -> bool:
        """Whether it may be asked about some of the drones only; see `evaluate`."""
        return bool(getattr(self.act, "decides_alone", False))

    @property
    def robot(self) -> Robot | None:
        """The robot that it was trained for, if it was trained in the navigation task."""
        return None if self.task is None else robot_of(self.task)

    def on_robot(self, robot: Robot, *, force: bool = False) -> Policy:
        """Return the policy as it flies on a robot.

        Args:
            robot: to be flown on.
            force: fly although it was trained for another robot.

        Raises:
            ConfigError: it was trained for another robot, and it is not forced or cannot be. More
                or less noise of the sensors does not make another robot.
        """
        own = self.robot
        if own is None or self.task is None or not isinstance(self.act, NetworkPilot):
            return self
        differ = differences(own, robot)
        cannot = [each for each in differ if each.startswith(SHAPE)]
        another = [each for each in differ if not each.startswith(tuple(MEASURING))]
        if cannot or (another and not force):
            told = cannot or another
            more = f"; and {len(told) - TOLD} more" if len(told) > TOLD else ""
            advice = "" if cannot else "; `navrl eval --force` flies it all the same"
            raise ConfigError(
                f"{self.name} was trained for the robot {own.name}, not for {robot.name}: "
                f"{'; '.join(told[:TOLD])}{more}. Train a policy with robot={robot.name}{advice}"
            )
        if not differ:
            return self
        task = robot.applied_to(self.task)
        return replace(self, act=pilot_of(self.act.network, task), task=task)

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the actions for a batch of observations; velocity commands, (N, 3), in m/s."""
        return self.act(observation)


def load_policy(
    reference: str | Path,
    task: NavigationSettings | None = None,
    *,
    network: MakeFeatures | str | None = None,
) -> Policy:
    """Return a policy by name (`pretrained`, `orca`, ...), model file, run folder or registry name.

    `python:my_module:MyPolicy` is a class or function of the user's own: called without arguments
    if it is a class, it takes observation parts by name and returns actions.

    Args:
        reference: what to load.
        task: of the scripted pilot.
        network: the network of the user's own that the policy was trained with, or its
            `module:Class`. Code that a file names is not run without.

    Raises:
        ConfigError: there is no such policy, or the file holds none.
        ContainerError: the file is damaged.

    >>> import torch, navrl
    >>> policy = navrl.load_policy("pretrained")
    >>> env = navrl.NavigationEnv(navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1))
    >>> policy.act(env.reset()).shape
    torch.Size([4, 3])
    """
    name = str(reference)
    if name == "scripted":
        return _scripted(task or NavigationSettings())
    if name in BASELINES:
        return _baseline(name, task or NavigationSettings())
    if name.startswith(OWN):
        return _own(name.removeprefix(OWN))
    path = PRETRAINED if name == "pretrained" else _found(reference)
    try:
        applied, trained, card = load_model(path)
    except ForeignModelError:
        target, make = (network, None) if isinstance(network, str) else ("", network)
        model = load_general_model(path, make, target=target)
        return Policy(name, model.policy, card=model.card, environment=model.environment)
    return Policy(name, pilot_of(applied, trained), trained, card)


def pilot_of(
    network: AppliedNetwork, task: NavigationSettings, *, likeliest: bool = False
) -> NetworkPilot:
    """Return the pilot that flies a network on the robot of a task; see `NetworkPilot`."""
    limit = task.env.action_limit
    climb = 0.0 if task.env.planar else min(task.drone.vertical_speed or limit, limit)
    return NetworkPilot(network, limit, vertical_limit=climb, likeliest=likeliest)


def _own(target: str) -> Policy:
    """Return a policy that the user has written."""
    found = find_target("the policy", target)
    act = found() if isinstance(found, type) else found
    if not callable(act):
        raise ConfigError(
            f"{target} is {shown(act)}; expected a function, or a class whose instances are "
            "called, from observation parts by name to actions"
        )
    return Policy(target, act)


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
    return Policy("scripted pilot", ScriptedPilot(task.env.action_limit, task.sensor.lidar_range))
