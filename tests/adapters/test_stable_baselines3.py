"""The Stable-Baselines3 adapter: real algorithms on short episodes."""

from __future__ import annotations

import copy
import importlib
import sys

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from navrl.adapters.gymnasium import NavigationSingleEnv
from navrl.adapters.stable_baselines3 import NavigationVecEnv
from navrl.errors import ActionError, ConfigError, MissingExtraError
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings

LENGTH = 50  # steps of the longest episode
TINY = {
    "policy_kwargs": {"net_arch": [8]},
    "n_steps": 16,
    "batch_size": 64,
    "n_epochs": 1,
    "device": "cpu",
}


def small(**overrides):
    return NavigationSettings.of(
        env__num_envs=16,
        env__num_worlds=2,
        env__max_episode_length=LENGTH,
        sim__num_threads=1,
        **overrides,
    )


def random_actions(steps, seed=0):
    return np.random.default_rng(seed).uniform(-2, 2, (steps, 16, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def few_threads():
    """Keep torch from filling a shared machine with threads for tiny networks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_ppo_learns_on_dictionaries():
    model = PPO("MultiInputPolicy", NavigationVecEnv(small()), seed=0, **TINY)
    model.learn(16 * 16 * 6)
    assert model.num_timesteps == 16 * 16 * 6


def test_ppo_learns_on_flat_observations():
    model = PPO("MlpPolicy", NavigationVecEnv(small(), flat=True), seed=0, **TINY)
    model.learn(16 * 16 * 6)
    assert model.num_timesteps == 16 * 16 * 6


def test_ppo_hears_of_returns_lengths_and_successes_without_a_monitor():
    model = PPO("MultiInputPolicy", NavigationVecEnv(small()), seed=0, **TINY)
    model.learn(16 * 16 * 6)
    assert max(episode["l"] for episode in model.ep_info_buffer) == LENGTH
    assert len(model.ep_success_buffer) == len(model.ep_info_buffer)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_single_environment_passes_the_checker_of_stable_baselines3():
    check_env(NavigationSingleEnv(small(), seed=0))


def test_the_end_of_an_episode_is_told_as_stable_baselines3_expects():
    environment, simulator = NavigationVecEnv(small(), seed=3), NavigationEnv(small(), seed=3)
    environment.reset(), simulator.reset()
    endings = set()
    for action in random_actions(2 * LENGTH) - np.float32([0, 0, 1.5]):
        observation, reward, done, infos = environment.step(action)
        expected = simulator.step(action)
        assert (reward == expected.reward.numpy()).all()
        assert all(
            (observation[name] == part.numpy()).all() for name, part in expected.observation.items()
        )
        for drone, info in enumerate(infos):
            assert bool(info) == done[drone]
            if done[drone]:
                endings.add(info["TimeLimit.truncated"])
                final = {
                    name: part[drone].numpy() for name, part in expected.final_observation.items()
                }
                assert data_equivalence(info["terminal_observation"], final, exact=True)
                assert info["TimeLimit.truncated"] == expected.truncated[drone]
                assert {*STATISTICS, "r", "l"} == set(info["episode"])
                assert info["is_success"] == (
                    expected.statistics[drone, STATISTICS.index("success_050")] > 0
                )
    assert endings == {True, False}


def test_a_monitor_around_it_agrees_with_its_statistics():
    inner = NavigationVecEnv(small())
    outer = VecMonitor(inner)
    outer.reset()
    lengths = [
        info["episode"]["l"]
        for a in random_actions(LENGTH)
        for info in outer.step(a)[3]
        if "episode" in info
    ]
    assert max(lengths) == LENGTH


WRAPPERS = {
    "normalise": (VecNormalize, {}),
    "stack": (lambda environment: VecFrameStack(environment, 3), {"flat": True}),
    "check for NaN": (lambda environment: VecCheckNan(environment, raise_exception=True), {}),
}


@pytest.mark.parametrize(("wrap", "options"), WRAPPERS.values(), ids=WRAPPERS)
def test_it_flies_in_the_wrappers_of_stable_baselines3(wrap, options):
    environment = wrap(NavigationVecEnv(small(), **options))
    environment.reset()
    ended = sum(int(environment.step(action)[2].sum()) for action in random_actions(LENGTH))
    assert ended >= 16


def test_the_single_environment_flies_in_a_monitor_and_a_vector_of_stable_baselines3():
    environment = DummyVecEnv([lambda: Monitor(NavigationSingleEnv(small(), seed=1))])
    environment.reset()
    infos = [environment.step(action[:1])[3][0] for action in random_actions(LENGTH)]
    ended = [info for info in infos if "episode" in info]
    assert ended[0]["episode"]["l"] == ended[0]["flight"]["length"]


def test_options_of_a_reset_are_refused_by_name():
    environment = NavigationVecEnv(small())
    environment.set_options({"reset_mask": None})
    with pytest.raises(ConfigError, match="unknown option 'reset_mask'"):
        environment.reset()
    environment.reset()


def test_a_seed_is_used_by_the_next_reset():
    environment = NavigationVecEnv(small(), seed=1)
    environment.seed(7)
    first, second = environment.reset(), environment.reset()
    environment.seed(7)
    assert data_equivalence(environment.reset(), first, exact=True)
    assert not data_equivalence(first, second, exact=True)


def test_nothing_returned_changes_later():
    environment = NavigationVecEnv(small())
    kept = [environment.reset()]
    copies = copy.deepcopy(kept)
    for action in random_actions(2 * LENGTH):
        kept.append(environment.step(action))
        copies.append(copy.deepcopy(kept[-1]))
    assert data_equivalence(kept, copies, exact=True)


@pytest.mark.parametrize(
    "action", [np.zeros((15, 3)), np.full((16, 3), np.nan)], ids=["one row short", "nan"]
)
def test_a_bad_action_is_refused(action):
    environment = NavigationVecEnv(small())
    environment.reset()
    with pytest.raises(ActionError):
        environment.step(action)


def test_methods_reach_the_simulator_that_all_drones_share():
    environment = NavigationVecEnv(small())
    assert environment.env_method("set_world_probabilities", [1.0, 0.0]) == [None] * 16
    assert [
        settings.env.num_worlds for settings in environment.get_attr("settings", indices=[0, 3])
    ] == [2, 2]
    assert not environment.has_attr("no_such_thing")


def test_a_method_for_some_drones_only_is_refused():
    with pytest.raises(ConfigError, match="share one simulator"):
        NavigationVecEnv(small()).env_method("set_world_probabilities", [1.0, 0.0], indices=[0])


def test_without_stable_baselines3_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    monkeypatch.delitem(sys.modules, "navrl.adapters.stable_baselines3")
    with pytest.raises(
        MissingExtraError, match=r"pip install 'navrl\[gymnasium\]' stable-baselines3"
    ):
        importlib.import_module("navrl.adapters.stable_baselines3")
