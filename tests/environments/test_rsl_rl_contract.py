"""Environments of rsl_rl under our contract."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from navrl.environments.from_rsl_rl import RslRlEnvironment
from navrl.environments.recognise import as_environment
from navrl.errors import ConfigError
from navrl.testing import EnvironmentContract

VecEnv = pytest.importorskip("rsl_rl.env").VecEnv


class Line(VecEnv):
    """Points that are pushed along a line, in the manner of Isaac Lab: resets by itself."""

    def __init__(self, num_envs=3):
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 20
        self.device, self.cfg = "cpu", {}
        self.generator = torch.Generator()
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.position = torch.zeros(num_envs)
        self.reset()

    def seed(self, seed):
        self.generator.manual_seed(seed)

    def reset(self):
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))
        return self.get_observations()

    def get_observations(self):
        seen = {"policy": self.position[:, None], "critic": torch.zeros(self.num_envs, 5)}
        return TensorDict({name: part.clone() for name, part in seen.items()}, [self.num_envs])

    def step(self, actions):
        self.position += 0.3 * actions[:, 0].clamp(-1, 1)
        self.episode_length_buf += 1
        late = self.episode_length_buf >= self.max_episode_length
        done = late | (self.position.abs() > 2)
        reward = 1 - self.position.abs()
        self._begin(done)
        return self.get_observations(), reward, done.long(), {"time_outs": late}

    def _begin(self, mask):
        drawn = torch.rand(self.num_envs, generator=self.generator) * 2 - 1
        self.position = torch.where(mask, drawn, self.position)
        self.episode_length_buf[mask] = 0


class TestLine(EnvironmentContract):
    def make(self):
        return RslRlEnvironment(Line())


def test_a_policy_does_not_see_what_is_for_the_critic():
    assert [part.name for part in as_environment(Line()).observation.parts] == ["policy"]


def test_groups_can_be_chosen():
    env = RslRlEnvironment(Line(), groups=["policy", "critic"])
    assert env.observation.width == 6
    with pytest.raises(ConfigError, match=r"\['camera'\].*policy, critic"):
        RslRlEnvironment(Line(), groups=["camera"])


def test_time_outs_truncate_and_other_ends_terminate():
    env = RslRlEnvironment(Line(2))
    env.reset(seed=0)
    env.env.position = torch.tensor([0.0, 1.9])
    env.env.episode_length_buf[:] = torch.tensor([19, 3])
    step = env.step(torch.tensor([[0.0], [1.0]]), out=env.make_step())
    assert step.truncated.tolist() == [True, False]
    assert step.terminated.tolist() == [False, True]
