"""A policy with a memory of moving obstacles, flown in the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from navrl.deploy.track_memory import Array, TrackMemory
from navrl.deploy.tracks import observed_rows, observed_tracks
from navrl.evaluation.flights import Act, flying_commands
from navrl.evaluation.policy_lookup import Policy
from navrl.navigation_observation import VELOCITY
from navrl.sim.env import NavigationEnv


class CoastingPilot:
    """Flies by a policy whose observed moving obstacles are completed from memory first.

    It is told what a robot has: the observed rows and the drone's own velocity, by which it keeps
    track of where the drone has moved. With a perfect detector it changes nothing.

    >>> import navrl
    >>> from navrl.deploy import CoastingPilot
    >>> env = navrl.NavigationEnv(navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1))
    >>> pilot = CoastingPilot(navrl.load_policy("pretrained").act, env)
    >>> pilot(env.reset()).shape
    torch.Size([4, 3])
    """

    def __init__(self, act: Act, env: NavigationEnv | None = None, *, keep: float = 0.5) -> None:
        self.act, self.keep = act, keep
        if env is not None:
            self.begin(env)

    def begin(self, env: NavigationEnv) -> None:
        """Forget everything, and fly this environment from now on, one episode a drone."""
        self.env, task = env, env.settings
        self._seconds = task.sim.dt * task.env.action_repeat
        self._reach = task.sensor.detection_range or task.sensor.lidar_range
        self._memory = TrackMemory(self.keep)
        self._place = np.zeros((env.num_envs, 3))  # of the drones, m, from where they started
        self._velocity: Array | None = None
        begin = getattr(self.act, "begin", None)
        if begin is not None:
            begin(env)

    def __call__(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the commands, (N, 3), for observations completed from memory."""
        rows = observation["dynamic_obstacle"]
        velocity = observation["state"][:, VELOCITY].double().numpy()
        if self._velocity is not None:
            self._place += self._seconds / 2 * (self._velocity + velocity)
        self._velocity = velocity
        detected = observed_tracks(rows[:, 0].double().numpy(), self._place[:, 2])
        detected[..., :2] += self._place[:, None, :2]
        tracks = self._memory(detected, self._seconds)
        complete = observed_rows(tracks, self._place, rows.shape[2], self._reach)
        known = {**observation, "dynamic_obstacle": torch.from_numpy(complete[:, None])}
        return flying_commands(self.act, known, self.env.flying)


def coasting(policy: Policy, keep: float = 0.5) -> Policy:
    """Return a policy that remembers what its detector misses."""
    pilot = CoastingPilot(policy, keep=keep)
    return replace(policy, name=f"{policy.name} + memory", act=pilot, begin=pilot.begin)
