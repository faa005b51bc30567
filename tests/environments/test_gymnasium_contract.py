"""Gymnasium environments under our contract: continuous, discrete, pixels, dictionaries."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from navrl.environments.from_gymnasium import GymnasiumEnvironment, make_gymnasium
from navrl.errors import ConfigError
from navrl.rl.action_space import Box, Discrete
from navrl.testing import EnvironmentContract


class Bright(gymnasium.Env):
    """A picture whose brighter half must be named; an episode is four pictures."""

    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (8, 8, 1), np.uint8), "clock": spaces.Discrete(5)}
    )
    action_space = spaces.Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        reward = float(action == 1 + self.bright)
        self.time += 1
        return self._look(), reward, self.time == 4, False, {"is_success": reward > 0}

    def _look(self):
        self.bright = int(self.np_random.integers(2))
        image = self.np_random.integers(0, 100, (8, 8, 1), dtype=np.uint8)
        image[:, 4 * self.bright : 4 * self.bright + 4] += 150
        return {"camera": image, "clock": self.time}


class TestPendulum(EnvironmentContract):
    def make(self):
        return make_gymnasium("Pendulum-v1", 3)


class TestCartPole(EnvironmentContract):
    def make(self):
        return make_gymnasium("CartPole-v1", 3)


class TestPixels(EnvironmentContract):
    def make(self):
        return make_gymnasium(Bright, 3)


class TestHalfCheetah(EnvironmentContract):
    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working folder

    def make(self):
        return make_gymnasium("HalfCheetah-v5", 2, {"max_episode_steps": 50})


def test_a_box_of_actions_keeps_its_bounds():
    assert make_gymnasium("Pendulum-v1", 1).action == Box((-2.0,), (2.0,))
    assert make_gymnasium("CartPole-v1", 1).action == Discrete(2)


def test_bytes_become_an_image_from_0_to_1_and_choices_one_hot():
    env = make_gymnasium(Bright, 2)
    kinds = {part.name: (part.kind, part.shape) for part in env.observation.parts}
    assert kinds == {"camera": ("image", (8, 8, 1)), "clock": ("vector", (5,))}
    parts = env.observation.split(env.reset(seed=0))
    assert 0.5 < parts["camera"].max() <= 1
    assert parts["clock"].tolist() == [[1, 0, 0, 0, 0]] * 2


def test_success_is_what_the_info_of_the_last_step_says():
    env = make_gymnasium(Bright, 2)
    env.reset(seed=0)
    step = env.make_step()
    for _ in range(4):
        env.step(torch.tensor([0, 1]), out=step)
    assert step.terminated.all()
    last = env.statistics.index("success")
    assert sorted(step.statistics[:, last].tolist()) in ([0, 0], [0, 1], [1, 1])
    assert not step.statistics[:, last].isnan().any()


def test_success_is_nan_where_the_environment_does_not_say():
    env = make_gymnasium("CartPole-v1", 2)
    env.reset(seed=0)
    step = env.make_step()
    while not step.terminated.any():
        env.step(torch.ones(2, dtype=torch.int64), out=step)
    assert step.statistics[step.terminated, env.statistics.index("success")].isnan().all()


def test_an_unknown_id_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"env\.id is 'Nothing-v0'.*Install"):
        make_gymnasium("Nothing-v0", 1)


def test_a_vector_environment_that_resets_a_step_later_is_refused():
    env = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(ConfigError, match="SAME_STEP"):
        GymnasiumEnvironment(env)


def test_spaces_that_no_network_takes_are_refused_by_name():
    class Odd(Bright):
        observation_space = spaces.Dict({"words": spaces.Text(5)})

    with pytest.raises(ConfigError, match="'words' is a Text"):
        make_gymnasium(Odd, 1)

    class Many(Bright):
        action_space = spaces.MultiDiscrete([2, 2])

    with pytest.raises(ConfigError, match="MultiDiscrete"):
        make_gymnasium(Many, 1)
