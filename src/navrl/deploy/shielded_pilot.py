"""A policy behind a shield, flown in the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.deploy.contract import velocity_lag
from navrl.deploy.shield import Shield, ShieldCounts, ShieldResult, ShieldSettings
from navrl.deploy.tracks import horizontal_offset, observed_tracks
from navrl.evaluation.flights import Act, flying_commands
from navrl.evaluation.policy_lookup import Policy
from navrl.navigation_observation import GOAL_DIRECTION, GOAL_DISTANCE, GOAL_HEIGHT, VELOCITY
from navrl.sim.env import NavigationEnv


class ShieldedPilot:
    """Flies an environment by a policy whose commands pass a shield first.

    The shield is given what a robot has: the scan, the observed tracks, its own velocity and
    height, all with the noise and delay of the environment's sensors. `counts` has how often it
    intervened in the flights that were still under way.

    >>> import navrl
    >>> from navrl.deploy import ShieldedPilot
    >>> env = navrl.NavigationEnv(navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1))
    >>> pilot = ShieldedPilot(navrl.load_policy("pretrained").act, env)
    >>> pilot(env.reset()).shape
    torch.Size([4, 3])
    """

    def __init__(
        self, act: Act, env: NavigationEnv | None = None, shield: Shield | None = None
    ) -> None:
        self.act, self.shield = act, shield
        self.counts = ShieldCounts()
        if env is not None:
            self.begin(env)

    def begin(self, env: NavigationEnv) -> None:
        """Fly this environment from now on; the shield is made for it unless one was given."""
        self.env = env
        self._filter = self.shield or Shield(settings_for(env))
        begin = getattr(self.act, "begin", None)
        if begin is not None:
            begin(env)

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the commands that the shield lets pass, in the goal frame, (N, 3) in m/s."""
        desired = flying_commands(self.act, observation, self.env.flying)
        result = self.filtered(observation, desired)
        return torch.from_numpy(result.velocity.astype(np.float32))

    def filtered(self, observation: dict[str, Tensor], desired: Tensor) -> ShieldResult:
        """Return what the shield makes of commands in the goal frame, (N, 3) in m/s."""
        flying = self.env.flying.numpy()
        chosen = np.flatnonzero(flying)  # those that have ended need no command
        forward = self.env.forward[chosen]
        bearing = self.env.yaw[chosen] - torch.atan2(forward[:, 1], forward[:, 0])
        state = observation["state"][chosen].double().numpy()
        height = self.env.position[chosen, 2].double().numpy()
        scan = observation["lidar"][chosen, 0].double().numpy()
        tracks = observation["dynamic_obstacle"][chosen, 0].double().numpy()
        place = np.zeros((len(state), 3))
        place[:, 2] = height
        result = self._filter(
            desired[chosen],
            position=place,
            velocity=state[:, VELOCITY],
            lidar=self._filter.settings.lidar_range - scan,
            bearing=bearing.double().numpy(),
            obstacles=observed_tracks(tracks, height),
            goal=_goals(state, place),
        )
        self.counts.add(result)
        return result if len(chosen) == len(flying) else _spread(result, flying)


def shielded(policy: Policy) -> tuple[Policy, ShieldedPilot]:
    """Return a policy behind a shield, and the pilot that counts what the shield does."""
    pilot = ShieldedPilot(policy)
    return replace(policy, name=f"{policy.name} + shield", act=pilot, begin=pilot.begin), pilot


def _spread(result: ShieldResult, flying: NDArray[np.bool_]) -> ShieldResult:
    """Return results of the drones that fly as those of all; the others are told to stop."""
    number = len(flying)
    whole = ShieldResult(np.zeros((number, 3)), np.zeros(number, bool), np.zeros(number, np.int64))
    whole.velocity[flying] = result.velocity
    whole.intervened[flying] = result.intervened
    whole.reason[flying] = result.reason
    return whole


def settings_for(env: NavigationEnv) -> ShieldSettings:
    """Return the shield's settings that fit an environment's robot: body, LiDAR and limits."""
    task, sensor, usual = env.settings.env, env.settings.sensor, ShieldSettings()
    radius, climb = task.collision_radius, env.settings.drone.vertical_speed
    low, high = sensor.lidar_vfov
    elevations = np.linspace(low, high, sensor.lidar_vbeams)
    return ShieldSettings(
        speed_limit=task.action_limit,
        climb_limit=0.0 if task.planar else climb or usual.climb_limit,
        lag=velocity_lag(env.settings.drone),
        body_radius=radius,
        static_radius=max(usual.static_radius, radius + 0.04),
        moving_margin=max(usual.moving_margin, radius + 0.2),
        lowest=0.0 if task.planar else usual.lowest,
        lidar_range=sensor.lidar_range,
        elevations=tuple(float(angle) for angle in elevations),
    )


def _goals(state: NDArray[np.float64], place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the goals in the goal frame around the drones."""
    goals = place.copy()
    goals[:, :2] += horizontal_offset(state[:, GOAL_DIRECTION], state[:, GOAL_DISTANCE])
    goals[:, 2] += state[:, GOAL_HEIGHT]
    return goals
