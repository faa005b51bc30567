"""A tiny environment of our own for tests: a point on a line that must stay near its middle."""

from __future__ import annotations

import torch

from navrl.observation import ObservationLayout, Part
from navrl.rl.action_space import Box
from navrl.rl.environment import TorchEnvironment


class Point(TorchEnvironment):
    """The action moves the point; reward is closeness to 0; beyond 2 the episode ends."""

    def __init__(self, num_envs: int = 4, seed: int = 0, time_limit: int = 20) -> None:
        observation = ObservationLayout((Part("position", (1,)), Part("goal", (1,))))
        super().__init__(num_envs, observation, Box.of(1), time_limit=time_limit, seed=seed)
        self.position = torch.zeros(num_envs)

    def begin(self, mask):
        drawn = torch.rand(self.num_envs, generator=self.generator) * 2 - 1
        self.position = torch.where(mask, drawn, self.position)

    def advance(self, action):
        self.position = self.position + 0.3 * action[:, 0]
        return 1 - self.position.abs(), self.position.abs() > 2

    def look(self):
        return {"position": self.position, "goal": torch.zeros(self.num_envs)}


def make_point(num_envs: int, seed: int = 0) -> Point:
    """Return a point; for `env.target=point_environment:make_point`."""
    return Point(num_envs, seed)
