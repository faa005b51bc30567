"""The TorchRL adapter: real checks, rollouts and collectors of TorchRL on short episodes."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.envs.utils import check_env_specs

from navrl.adapters.gymnasium import NavigationVectorEnv
from navrl.adapters.torchrl import TorchRLNavigationEnv, episodes
from navrl.errors import ActionError, ConfigError, MissingExtraError
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings

LENGTH = 50  # steps of the longest episode
NUMBER = 16
PARTS = ("state", "lidar", "direction", "dynamic_obstacle")


def small(**overrides):
    return NavigationSettings.of(
        env__num_envs=NUMBER,
        env__num_worlds=2,
        env__max_episode_length=LENGTH,
        sim__num_threads=1,
        **overrides,
    )


def random_actions(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.rand(steps, NUMBER, 3, generator=generator) - 2


class Replay:
    """A policy that plays given actions one after another."""

    def __init__(self, actions):
        self.actions, self.time = actions, 0

    def __call__(self, tensordict):
        tensordict["action"] = self.actions[self.time]
        self.time += 1
        return tensordict


def sink(tensordict):
    """Send all drones down: some leave the height bounds before the time is over."""
    tensordict["action"] = torch.tensor([0.0, 0.0, -2.0]).repeat(NUMBER, 1)
    return tensordict


def collect(environment, policy, *, batches=3, steps=40):
    collector = Collector(
        environment,
        policy,
        frames_per_batch=steps * NUMBER,
        total_frames=batches * steps * NUMBER,
        trust_policy=True,
    )
    collected = [batch.clone() for batch in collector]
    collector.shutdown()
    return collected


# ---------------------------------------------------------------------- TorchRL's own checks


@pytest.mark.parametrize("break_when_any_done", [True, False])
def test_the_environment_passes_the_check_of_specs(break_when_any_done):
    check_env_specs(TorchRLNavigationEnv(small()), break_when_any_done=break_when_any_done, seed=0)


def test_the_check_of_specs_also_passes_across_ends_of_episodes():
    settings = small()
    settings.env.max_episode_length = 2
    check_env_specs(TorchRLNavigationEnv(settings), break_when_any_done=False)


def test_the_specs_have_the_shapes_of_the_batch():
    environment = TorchRLNavigationEnv(small())
    assert environment.batch_size == (NUMBER,)
    assert environment.action_spec.shape == (NUMBER, 3)
    assert environment.reward_spec.shape == (NUMBER, 1)
    assert {
        key: environment.full_done_spec[key].shape for key in environment.done_keys
    } == dict.fromkeys(("done", "terminated", "truncated"), (NUMBER, 1))
    assert environment.observation_spec["lidar"].shape == (NUMBER, 1, 36, 4)


def test_actions_are_bounded_as_the_settings_say():
    spec = TorchRLNavigationEnv(small(env__action_limit=1.5)).action_spec
    assert (spec.low == -1.5).all()
    assert (spec.high == 1.5).all()


# ---------------------------------------------------------------------- rollouts and collectors


def test_a_rollout_stops_at_the_first_end_of_an_episode():
    data = TorchRLNavigationEnv(small()).rollout(LENGTH, sink)
    done = data["next", "done"].squeeze(-1)
    assert data.shape[1] < LENGTH
    assert done[:, -1].any()
    assert not done[:, :-1].any()


def test_a_rollout_until_all_have_ended_steps_nobody_twice():
    data = TorchRLNavigationEnv(small()).rollout(
        2 * LENGTH, sink, break_when_any_done=False, break_when_all_done=True
    )
    assert data["next", "done"][:, -1].all()
    assert data.shape[1] <= LENGTH


def test_a_rollout_goes_on_over_ends_of_episodes():
    data = TorchRLNavigationEnv(small()).rollout(3 * LENGTH, break_when_any_done=False)
    assert data.shape == (NUMBER, 3 * LENGTH)
    assert data["next", "done"].sum() >= 2 * NUMBER


def test_a_collector_gives_batches_of_the_right_shape():
    batches = collect(TorchRLNavigationEnv(small()), sink)
    assert [batch.shape for batch in batches] == [(NUMBER, 40)] * 3
    for batch in batches:
        flags = {name: batch["next", name] for name in ("done", "terminated", "truncated")}
        assert {flag.shape for flag in flags.values()} == {(NUMBER, 40, 1)}
        assert (flags["done"] == flags["terminated"] | flags["truncated"]).all()
        assert not (flags["terminated"] & flags["truncated"]).any()


def test_collected_episodes_end_by_time_and_by_leaving_the_height_bounds():
    data = torch.cat(collect(TorchRLNavigationEnv(small()), sink), dim=1)
    assert data["next", "terminated"].any()
    assert data["next", "truncated"].any()


def test_the_next_observation_is_the_last_of_an_episode_and_the_one_after_the_first_of_the_next():
    data = torch.cat(collect(TorchRLNavigationEnv(small(), seed=3), sink), dim=1)
    reference = NavigationEnv(small(), seed=3)
    reference.reset()
    for time in range(data.shape[1] - 1):
        expected = reference.step(data["action"][:, time])
        done = expected.done
        for name in PARTS:
            last = torch.where(
                _like(done, data[name][:, 0]),
                expected.final_observation[name],
                expected.observation[name],
            )
            assert (data["next", name][:, time] == last).all()
            assert (data[name][:, time + 1] == expected.observation[name]).all()


def _like(flags, tensor):
    return flags.view(-1, *[1] * (tensor.ndim - 1))


def test_the_first_observation_of_the_next_episode_is_not_marked_as_done():
    data = torch.cat(collect(TorchRLNavigationEnv(small()), sink), dim=1)
    assert not data["done"].any()


def test_statistics_of_ended_episodes_come_by_name():
    data = torch.cat(collect(TorchRLNavigationEnv(small()), sink), dim=1)
    ended = episodes(data)
    assert tuple(ended) == STATISTICS
    assert ended["length"].shape == (int(data["next", "done"].sum()),)
    assert ended["length"].min() > 0
    assert ended["length"].max() == LENGTH
    assert (data["next", "stats"][~data["next", "done"].squeeze(-1)] == 0).all()


def test_torchrls_sum_of_rewards_is_the_return_of_the_statistics():
    environment = TransformedEnv(TorchRLNavigationEnv(small()), RewardSum())
    data = torch.cat(collect(environment, sink), dim=1)
    done = data["next", "done"].squeeze(-1)
    assert torch.allclose(
        data["next", "episode_reward"][done].squeeze(-1), episodes(data)["return"], atol=1e-4
    )


def test_a_partial_reset_begins_new_episodes_only_where_asked():
    environment = TorchRLNavigationEnv(small())
    data = environment.rollout(5, break_when_any_done=False)[:, -1]["next"]
    asked = torch.zeros(NUMBER, 1, dtype=torch.bool)
    asked[::2] = True
    fresh = environment.reset(TensorDict({**data.exclude("reward"), "_reset": asked}, [NUMBER]))
    assert (fresh["state"][::2, 5:8] == 0).all()
    assert all((fresh[name][1::2] == data[name][1::2]).all() for name in PARTS)


def test_a_drone_that_is_not_reset_stays_done_without_reward():
    environment = TorchRLNavigationEnv(small())
    ended = environment.rollout(LENGTH, sink)[:, -1]["next"]
    done = ended["done"].squeeze(-1)
    after = environment.step(sink(ended.exclude("reward")))["next"]
    assert after["done"][done].all()
    assert (after["reward"][done] == 0).all()


def test_leaving_out_a_drone_that_still_flies_is_refused():
    environment = TorchRLNavigationEnv(small())
    data = sink(environment.reset())
    data["_step"] = torch.arange(NUMBER) > 0
    with pytest.raises(ActionError, match=r"drones \[0\]"):
        environment.step(data)


# ---------------------------------------------------------------------- determinism, parity, safety


def test_the_same_seed_gives_the_same_trajectory():
    def fly(environment):
        environment.set_seed(7)
        return environment.rollout(
            2 * LENGTH, Replay(random_actions(2 * LENGTH)), break_when_any_done=False
        )

    environment = TorchRLNavigationEnv(small())
    first = fly(environment)
    assert (first == fly(environment)).all()
    assert (first == fly(TorchRLNavigationEnv(small(), seed=99))).all()


def test_seeding_leaves_the_global_generators_alone():
    environment = TorchRLNavigationEnv(small())
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    environment.set_seed(7)
    environment.reset()
    assert (torch.get_rng_state() == states[0]).all()
    assert (np.random.get_state()[1] == states[1]).all()


def test_all_three_environments_give_the_same_rewards_bit_for_bit():
    actions = random_actions(3 * LENGTH)
    native = NavigationEnv(small(), seed=3)
    gymnasium = NavigationVectorEnv(small(), seed=3, autoreset_mode="SameStep")
    native.reset(), gymnasium.reset()
    data = TorchRLNavigationEnv(small(), seed=3).rollout(
        len(actions), Replay(actions), break_when_any_done=False
    )
    for time, action in enumerate(actions):
        expected = native.step(action)
        assert (gymnasium.step(action.numpy())[1] == expected.reward.numpy()).all()
        assert (data["next", "reward"][:, time, 0] == expected.reward).all()
        assert (data["next", "terminated"][:, time, 0] == expected.terminated).all()
        assert (data["next", "truncated"][:, time, 0] == expected.truncated).all()


def test_nothing_returned_changes_later():
    environment = TorchRLNavigationEnv(small())
    data = environment.reset()
    kept, copies = [data.copy()], [data.clone()]
    for action in random_actions(2 * LENGTH):
        data["action"] = action
        stepped, data = environment.step_and_maybe_reset(data)
        kept += [stepped, data.copy()]
        copies += [stepped.clone(), data.clone()]
    assert all((a == b).all() for a, b in zip(kept, copies, strict=True))


def test_gradients_do_not_flow_into_the_simulator():
    environment = TorchRLNavigationEnv(small())
    data = environment.reset()
    data["action"] = torch.zeros(NUMBER, 3, requires_grad=True)
    assert not environment.step(data)["next", "reward"].requires_grad


@pytest.mark.parametrize(
    "action", [torch.zeros(NUMBER, 2), torch.full((NUMBER, 3), torch.nan)], ids=["shape", "nan"]
)
def test_a_bad_action_is_refused(action):
    environment = TorchRLNavigationEnv(small())
    data = environment.reset()
    data["action"] = action
    with pytest.raises(ActionError):
        environment.step(data)


def test_options_of_a_reset_are_refused_by_name():
    with pytest.raises(ConfigError, match="unknown option 'wind' of reset"):
        TorchRLNavigationEnv(small()).reset(wind=3)


@pytest.mark.parametrize("seed", [-1, 2**63, "7"])
def test_a_seed_that_the_simulator_does_not_take_is_refused_at_once(seed):
    with pytest.raises(ConfigError, match="seed is"):
        TorchRLNavigationEnv(small()).set_seed(seed)


def test_without_torchrl_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl.envs", None)
    monkeypatch.delitem(sys.modules, "navrl.adapters.torchrl")
    with pytest.raises(MissingExtraError, match=r"pip install 'navrl\[torchrl\]'"):
        importlib.import_module("navrl.adapters.torchrl")
