"""The teachers of the navigation task: the shield, asked about other commands than the policy's.

They are given the policy's observations and the true height and yaw. `straight` flies straight at
the goal behind the shield: a policy that imitates it at first (`algo.imitation`) crosses a field of
obstacles long before rewards alone would have taught it to. `own` flies where the policy wants to,
at full speed and behind the shield: it corrects a policy that is already good. A model as teacher
flies that model behind the shield: a policy that imitates it needs the shield less.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from navrl.deploy.shield import NO_CLEAN_VELOCITY, REASONS
from navrl.deploy.shielded_pilot import ShieldedPilot, settings_for
from navrl.errors import ConfigError
from navrl.evaluation.baselines.simple import Straight
from navrl.evaluation.policy_lookup import load_policy, pilot_of
from navrl.navigation_observation import GOAL_DISTANCE
from navrl.rl.networks.navigation import INPUTS
from navrl.rl.policy import NetworkPilot
from navrl.sim.env import NavigationEnv

__all__ = ["TEACHERS", "ModelTeacher", "OwnTeacher", "StraightTeacher", "make_teacher"]

Teacher = Callable[[Tensor, Tensor], Tensor]

ARRIVING = 2.0  # m from the goal: nearer, a policy may be slow
STANDING = 0.3  # m/s: a slower command is not brought to full speed
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
        model: file, run folder, or name in the registry; `pretrained`.

    Raises:
        ConfigError: there is no such model, or it takes other observations than the drones make.
    """

    def __init__(self, simulator: NavigationEnv, model: str) -> None:
        self._layout = simulator.layout
        try:
            policy = load_policy(model)
        except ConfigError as error:
            raise ConfigError(f"teacher: {error}") from error
        if not isinstance(policy.act, NetworkPilot):
            raise ConfigError(
                f"teacher: {model} is no trained policy of the navigation task; expected "
                f"{', '.join(TEACHERS)}, or a model by file, run folder or name"
            )
        width = sum(math.prod(self._layout.shapes[name]) for name in INPUTS)
        if policy.act.width != width:
            raise ConfigError(
                f"teacher: {model} takes {policy.act.width} numbers; these drones observe {width}: "
                "use the sensor.lidar_* and env.num_observed of its training"
            )
        self._pilot = pilot_of(policy.act.network, simulator.settings, likeliest=True)
        self._shield = ShieldedPilot(self._pilot, simulator)

    def __call__(self, rows: Tensor, action: Tensor) -> Tensor:
        """Return velocity commands in the goal frame, (N, 3), for packed observations."""
        observation = self._layout.split(rows)
        result = self._shield.filtered(observation, self._pilot(observation))
        return torch.from_numpy(result.velocity).float()


TEACHERS: dict[str, type[StraightTeacher] | type[OwnTeacher]] = {
    "straight": StraightTeacher,
    "own": OwnTeacher,
}


def make_teacher(name: str, simulator: NavigationEnv) -> Teacher:
    """Return a teacher for drones: one of `TEACHERS`, or a model by its file or name."""
    kind = TEACHERS.get(name)
    return ModelTeacher(simulator, name) if kind is None else kind(simulator)
