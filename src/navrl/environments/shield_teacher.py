"""The teachers of the navigation task: the shield, asked about other commands than the policy's.

They are given the policy's observations and the true height and yaw. `straight` flies straight at
the goal behind the shield: a policy that imitates it at first (`algo.imitation`) crosses a field of
obstacles long before rewards alone would have taught it to. `own` flies where the policy wants to,
at full speed and behind the shield: it corrects a policy that is already good. A model as teacher
flies that model behind the shield: a policy that imitates it needs the shield less.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from navrl.deploy.shield import NO_CLEAN_VELOCITY, REASONS
from navrl.deploy.shielded_pilot import ShieldedPilot, settings_for
from navrl.errors import ConfigError, RegistryError, nearest_name
from navrl.evaluation.baselines.simple import Straight
from navrl.evaluation.policy_lookup import PRETRAINED, load_policy, pilot_of
from navrl.navigation_observation import GOAL_DISTANCE
from navrl.registry.resolve import find_model
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.policy import NetworkPilot
from navrl.sim.env import NavigationEnv
from navrl.sim.robots import MEASURING, differences, robot_of
from navrl.sim.settings import NavigationSettings

__all__ = [
    "TEACHERS",
    "MakeTeacher",
    "ModelTeacher",
    "OwnTeacher",
    "StraightTeacher",
    "find_teacher",
]

Teacher = Callable[[Tensor, Tensor], Tensor]
MakeTeacher = Callable[[NavigationEnv], Teacher]

ARRIVING = 2.0  # m from the goal: nearer, a policy may be slow
STANDING = 0.3  # m/s: a slower command is not brought to full speed
TOLD = 6  # differences between two robots in a message
CONTACTS = [REASONS.index(f"{kind} obstacle") for kind in ("static", "moving")]


class StraightTeacher:
    """Says what the shield makes of flying straight at the goal.

    Args:
        simulator: the drones that are taught.
    """

    def __init__(self, simulator: NavigationEnv) -> None:
        self._layout = simulator.layout
        self._straight = Straight(simulator.settings)
        self._shield = ShieldedPilot(self._straight, simulator)

    def __call__(self, rows: Tensor, action: Tensor) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3), for packed observations."""
        observation = self._layout.split(rows)
        result = self._shield.filtered(observation, self._straight(observation))
        return torch.from_numpy(result.velocity).float()


class OwnTeacher:
    """Says what the shield makes of the policy's direction at full speed, where it hits something.

    At full speed, because a policy that is corrected at its own speed learns to stand still where
    it is corrected often.

    Args:
        simulator: the drones that are taught.
    """

    def __init__(self, simulator: NavigationEnv) -> None:
        self._layout = simulator.layout
        limits = settings_for(simulator)
        self._limit, self._climb = limits.speed_limit, min(limits.climb_limit, limits.speed_limit)
        self._shield = ShieldedPilot(Straight(simulator.settings), simulator)

    def __call__(self, rows: Tensor, action: Tensor) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3), or NaN where there is no advice."""
        observation = self._layout.split(rows)
        wanted = action.clone()
        wanted[:, 2].clamp_(-self._climb, self._climb)
        speed = wanted.norm(dim=1, keepdim=True)
        slow = (observation["state"][:, GOAL_DISTANCE, None] < ARRIVING) | (speed < STANDING)
        wanted *= torch.where(slow, 1.0, (self._limit / speed).clamp_min(1.0))
        result = self._shield.filtered(observation, wanted)
        advice = torch.from_numpy(result.velocity).float()
        advice[~torch.from_numpy(np.isin(result.reason, [*CONTACTS, NO_CLEAN_VELOCITY]))] = math.nan
        return advice


class ModelTeacher:
    """Says what the shield makes of a model's command.

    The likeliest command, not the mean, which stays short of the robot's top speed.

    Args:
        simulator: the drones that are taught.
        network: of the model.
    """

    def __init__(self, simulator: NavigationEnv, network: AppliedNetwork) -> None:
        self._layout = simulator.layout
        self._pilot = pilot_of(network, simulator.settings, likeliest=True)
        self._shield = ShieldedPilot(self._pilot, simulator)
        self.identity = _digest(network)

    def __call__(self, rows: Tensor, action: Tensor) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3), for packed observations."""
        observation = self._layout.split(rows)
        result = self._shield.filtered(observation, self._pilot(observation))
        return torch.from_numpy(result.velocity).float()


TEACHERS: dict[str, MakeTeacher] = {"straight": StraightTeacher, "own": OwnTeacher}


def find_teacher(name: str, task: NavigationSettings) -> MakeTeacher:
    """Return what makes a teacher for drones: one of `TEACHERS`, or a model by file or name.

    Args:
        name: as in `teacher=NAME`.
        task: of the drones that are taught.

    Raises:
        ConfigError: there is no such teacher, or its model was trained for another robot.
    """
    if name in TEACHERS:
        return TEACHERS[name]
    try:
        path = PRETRAINED if name == "pretrained" else find_model(name)
    except RegistryError as error:
        known = [*TEACHERS, "pretrained"]
        raise ConfigError(
            f"teacher is {name!a:.200}; expected {', '.join(known)}, or a model by file, run "
            f"folder or name ({error}).{nearest_name(name, known)}"
        ) from error
    policy = load_policy(path)
    if policy.robot is None or not isinstance(policy.act, NetworkPilot):
        raise ConfigError(f"teacher {name!a:.200}: {path} is no policy of the navigation task")
    differ = differences(policy.robot, robot_of(task))
    differ = [each for each in differ if not each.startswith(tuple(MEASURING))]
    if differ:
        raise ConfigError(
            f"teacher {name!a:.200} was trained for another robot: {'; '.join(differ[:TOLD])}; "
            "expected the same robot and control rate"
        )
    return partial(ModelTeacher, network=policy.act.network)


def _digest(network: AppliedNetwork) -> str:
    """Return what tells a network from any other of other weights."""
    digest = hashlib.sha256()
    for name, value in sorted(network.network.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
