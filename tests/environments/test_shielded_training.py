"""Training behind the shield: changed actions are flown, and cost a reward."""

from __future__ import annotations

import pytest
import torch

from navrl.config import load_config
from navrl.environments.navigation_task import NavigationTask, ShieldedTraining, TrainingEnvironment
from navrl.errors import ConfigError

SMALL = ["env.num_envs=32", "env.num_worlds=2", "env.layout=navrl_eval", "processes=1"]


def made(*overrides):
    return NavigationTask(load_config([*SMALL, *overrides])).make(0, 1)


def flown(env, steps=60):
    """Fly straight ahead, whatever is there; return the rewards, (steps, N)."""
    out, ahead = env.make_step(), torch.tensor([[2.0, 0.0, 0.0]]).expand(32, 3)
    return torch.stack([env.step(ahead, out=out).reward.clone() for _ in range(steps)])


def test_the_shield_is_off_unless_asked_for():
    assert type(made()) is TrainingEnvironment
    assert type(made("shield=true")) is ShieldedTraining


@pytest.mark.slow
def test_it_changes_actions_near_obstacles_and_each_change_costs_the_penalty():
    free = made("shield=true", "shield_penalty=0.0")
    costly = made("shield=true", "shield_penalty=0.25")
    without, with_penalty = flown(free), flown(costly)
    lost = without - with_penalty
    changed = lost > 0.1
    assert 0 < changed.float().mean() < 0.9
    assert torch.allclose(lost[changed], torch.tensor(0.25), atol=1e-5)
    assert torch.allclose(lost[~changed], torch.tensor(0.0), atol=1e-5)
    assert not torch.equal(without, flown(made()))


def test_it_resumes_bit_for_bit():
    first, second = made("shield=true"), made("shield=true")
    flown(first, 20)
    second.load_state_dict(first.state_dict())
    assert torch.equal(flown(first, 20), flown(second, 20))


def test_an_impossible_use_is_refused():
    with pytest.raises(ConfigError, match="shield_penalty is -1"):
        load_config(["shield=true", "shield_penalty=-1"])
    with pytest.raises(ConfigError, match="only the navigation task has one, not gymnasium"):
        load_config(["env=gymnasium", "env.id=CartPole-v1", "shield=true"])
