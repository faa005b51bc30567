"""Our environments as rsl_rl's `VecEnv`: its runner trains them."""

from __future__ import annotations

import pytest
import torch

from navrl import NavigationSettings
from point_environment import Point

pytest.importorskip("rsl_rl")

from rsl_rl.runners import OnPolicyRunner

from navrl.adapters.rsl_rl import RslRlVecEnv, navigation_vec_env
from navrl.environments.from_gymnasium import make_gymnasium
from navrl.errors import ConfigError


def runner_settings(groups, steps=24):
    model = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "elu"}
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0}
    return {
        "num_steps_per_env": steps,
        "save_interval": 1000,
        "obs_groups": {"actor": groups, "critic": groups},
        "actor": {**model, "distribution_cfg": noise},
        "critic": dict(model),
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": 4,
            "num_mini_batches": 4,
            "learning_rate": 3e-3,
            "schedule": "fixed",
            "entropy_coef": 0.0,
        },
    }


def mean_reward(env, policy, steps=100):
    total, seen = 0.0, env.reset()[0]
    with torch.inference_mode():
        for _ in range(steps):
            seen, reward, *_ = env.step(policy(seen))
            total += reward.mean().item() / steps
    return total


@pytest.mark.slow
def test_the_runner_of_rsl_rl_learns_in_one_of_our_environments():
    torch.manual_seed(0)
    env = RslRlVecEnv(Point(32), max_episode_length=20)
    runner = OnPolicyRunner(env, runner_settings(["position", "goal"]), log_dir=None, device="cpu")
    before = mean_reward(env, runner.get_inference_policy())
    runner.learn(20)
    assert mean_reward(env, runner.get_inference_policy()) > before + 0.2


def test_the_runner_of_rsl_rl_trains_our_drones():
    settings = NavigationSettings.of(
        env__num_envs=16, env__num_worlds=2, env__num_obstacles=20, env__max_episode_length=50
    )
    env = navigation_vec_env(settings, seed=1)
    groups = ["lidar", "dynamic_obstacle", "state"]
    runner = OnPolicyRunner(env, runner_settings(groups, steps=8), log_dir=None, device="cpu")
    before = [parameter.clone() for parameter in runner.alg.get_policy().parameters()]
    runner.learn(2)
    after = list(runner.alg.get_policy().parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_ended_episodes_tell_time_outs_and_their_statistics():
    env = RslRlVecEnv(Point(2, time_limit=3), max_episode_length=3)
    env.reset()
    for _ in range(3):
        _, _, done, extras = env.step(torch.zeros(2, 1))
    assert done.all()
    assert extras["time_outs"].tolist() == [True, True]
    assert extras["log"]["/episode/length"] == 3


def test_actions_are_clipped_to_the_bounds():
    env, same = (RslRlVecEnv(Point(2), max_episode_length=20) for _ in range(2))
    first, second = env.step(torch.full((2, 1), 50.0)), same.step(torch.ones(2, 1))
    assert torch.equal(first[1], second[1])


def test_choices_are_refused():
    with pytest.raises(ConfigError, match="continuous"):
        RslRlVecEnv(make_gymnasium("CartPole-v1", 2), max_episode_length=500)
