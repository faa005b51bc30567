"""TorchRL environments under our contract."""

from __future__ import annotations

import pytest
from torchrl.envs import GymEnv, PendulumEnv, SerialEnv, StepCounter, TransformedEnv

from navrl.environments.from_torchrl import TorchRLEnvironment
from navrl.environments.recognise import call_factory
from navrl.errors import ConfigError
from navrl.rl.action_space import Box, Discrete
from navrl.testing import EnvironmentContract


def make_pendulum():
    return TransformedEnv(PendulumEnv(), StepCounter(max_steps=20))


class TestPendulum(EnvironmentContract):
    def make(self):
        return call_factory(make_pendulum, 3, 0, {})


class TestCartPole(EnvironmentContract):
    def make(self):
        return TorchRLEnvironment(SerialEnv(2, lambda: GymEnv("CartPole-v1")))


def test_leaves_of_the_observation_are_parts_by_name():
    env = call_factory(make_pendulum, 2, 0, {})
    assert {"th", "thdot", "params.g", "step_count"} <= {p.name for p in env.observation.parts}
    assert env.action == Box((-2.0,), (2.0,))


def test_one_hot_actions_are_choices():
    assert TorchRLEnvironment(SerialEnv(2, lambda: GymEnv("CartPole-v1"))).action == Discrete(2)


def test_an_environment_without_a_batch_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="SerialEnv"):
        TorchRLEnvironment(PendulumEnv())
