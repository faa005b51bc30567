"""The simulator as a robot: it measures, and flies the velocity it was last told."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch

from navrl.deploy.exported_pilot import to_goal_frame
from navrl.deploy.node_messages import Array, Goal, Message, Odometry, Scan, Tracks
from navrl.deploy.robot_inputs import tracks_in_world
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import FAILURES, STATISTICS
from navrl.sim.settings import NavigationSettings


class SimulatedRobot:
    """One drone at a time of a batch, in steps of the simulator.

    Episode i is the one that drone i of an evaluation with equal settings and seed flies.
    """

    def __init__(self, task: NavigationSettings, seed: int) -> None:
        settings = copy.deepcopy(task)
        self.repeat = settings.env.action_repeat  # simulated steps of a decision
        settings.env.action_repeat = 1
        settings.env.action_frame = "goal"
        self.dt = settings.sim.dt
        self.reach = settings.sensor.lidar_range
        self._env, self._seed = NavigationEnv(settings, seed=seed, auto_reset=False), seed
        self._step = self._env.make_step()
        self._action = torch.zeros(self._env.num_envs, 3)
        self.episodes = self._env.num_envs

    def begin(self, episode: int) -> None:
        """Put everything back to the start, to fly this episode."""
        self.drone = episode
        self._ranges = self._lidar(self._env.reset(seed=self._seed))
        self.goal: Array = self._env.target[episode].double().numpy()
        self.world = int(self._env.world[episode])
        self._forward = self._env.forward
        self.ending = ""  # how the episode ended; empty while it goes on

    def _lidar(self, observation: dict[str, torch.Tensor]) -> Array:
        scan: Array = self.reach - observation["lidar"][self.drone, 0].double().numpy()
        return scan

    @property
    def position(self) -> Array:
        """Where the robot is, (3,) m."""
        place: Array = self._env.position[self.drone].double().numpy()
        return place

    def measured(self, stamp: float) -> list[Message]:
        """Return what the robot's sensors say now."""
        drone = self.drone
        velocity = self._env.velocity[drone].double().numpy()
        yaw = float(self._env.yaw[drone])
        attitude = np.array([math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)])
        position = self.position
        tracks = tracks_in_world(self._env, self.world).double().numpy()
        near = np.hypot(*(tracks[:, :2] - position[:2]).T) <= self.reach
        return [
            Odometry(stamp, position, velocity, attitude),
            Scan(stamp, self._ranges, yaw),
            Tracks(stamp, tracks[near]),
        ]

    def goal_message(self, stamp: float) -> Goal:
        """Return where to fly."""
        return Goal(stamp, self.goal)

    def fly(self, velocity: Array) -> None:
        """Fly one simulated step with a velocity command in the world frame, (3,) m/s."""
        row = torch.from_numpy(np.asarray(velocity, np.float32))[None]
        forward = self._forward[self.drone : self.drone + 1]
        self._action[self.drone] = to_goal_frame(row, forward)[0]
        self._env.step(self._action, out=self._step)
        self._ranges = self._lidar(self._step.observation)
        if bool(self._step.done[self.drone]):
            row = self._step.statistics[self.drone]
            found = {name: float(row[column]) for column, name in enumerate(STATISTICS)}
            failed = [name for name in FAILURES if found[name] > 0]
            self.ending = "success" if found["success_100"] > 0 else failed[0]
        elif np.linalg.norm(self.goal - self.position) < 1.0:
            self.ending = "success"
