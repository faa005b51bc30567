"""Our simulator under the contract."""

from __future__ import annotations

import torch

from navrl import NavigationEnv, NavigationSettings
from navrl.adapters.navigation_environment import NavigationEnvironment
from navrl.testing import EnvironmentContract


def settings(**changes):
    return NavigationSettings.of(
        env__num_envs=4,
        env__num_worlds=2,
        env__num_obstacles=40,
        env_dyn__num_obstacles=8,
        env__max_episode_length=60,
        **changes,
    )


class TestNavigation(EnvironmentContract):
    def make(self):
        return NavigationEnvironment(NavigationEnv(settings(), seed=5))


def test_a_step_is_the_simulators_own():
    env = NavigationEnvironment(NavigationEnv(settings(), seed=5))
    simulator = NavigationEnv(settings(), seed=5)
    env.reset(seed=1)
    simulator.reset(seed=1)
    step = env.make_step()
    for number in range(70):
        action = torch.randn(4, 3, generator=torch.Generator().manual_seed(number)).clamp(-2, 2)
        env.step(action, out=step)
        expected = simulator.step(action)
        assert torch.equal(step.packed, expected.packed)
        assert torch.equal(step.reward, expected.reward)


def test_parts_are_those_of_the_simulator():
    env = NavigationEnvironment(NavigationEnv(settings(), seed=5))
    parts = env.observation.split(env.reset(seed=1))
    for name, part in env.simulator.observe().items():
        assert torch.equal(parts[name], part)
