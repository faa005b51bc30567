"""The Gymnasium adapters: real Gymnasium, its own checkers and wrappers, short episodes."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.utils import env_checker
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from navrl.adapters.gymnasium import (
    ENVIRONMENT_ID,
    PACKED_ORDER,
    NavigationSingleEnv,
    NavigationVectorEnv,
    register,
)
from navrl.errors import ActionError, ConfigError, MissingExtraError
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings

MODES = list(AutoresetMode)
LENGTH = 50  # steps of the longest episode
SINKING = (0.0, 0.0, -2.0)  # m/s: some drones leave the height bounds before the time is over


def small(**overrides):
    """Return settings that are quick to build and end episodes soon."""
    return NavigationSettings.of(
        env__num_envs=16,
        env__num_worlds=2,
        env__max_episode_length=LENGTH,
        sim__num_threads=1,
        **overrides,
    )


def vector(mode=AutoresetMode.NEXT_STEP, *, settings=None, **arguments):
    return NavigationVectorEnv(settings or small(), autoreset_mode=mode, **arguments)


def random_actions(steps, drones=16, seed=0):
    return np.random.default_rng(seed).uniform(-2, 2, (steps, drones, 3)).astype(np.float32)


def sinking(drones=16):
    return np.tile(np.float32(SINKING), (drones, 1))


def step_until_some_end(environment, action):
    """Return what the first step gives in which some, but not all, episodes end."""
    for _ in range(LENGTH):
        result = environment.step(action)
        done = result[2] | result[3]
        if done.any():
            assert not done.all()
            return (*result, done)
    raise AssertionError("no episode ended")


def same(first, second):
    return env_checker.data_equivalence(first, second, exact=True)


# ---------------------------------------------------------------------- Gymnasium's own checks


@pytest.mark.filterwarnings(
    "ignore:.*(is.*infinity|render modes|symmetric and normalized space):UserWarning"
)
@pytest.mark.filterwarnings("error:.*WARN:UserWarning")
@pytest.mark.parametrize("flat", [False, True])
def test_the_single_environment_passes_gymnasiums_checker(flat):
    register()
    environment = gymnasium.make(
        ENVIRONMENT_ID, settings=small(), flat=flat, disable_env_checker=True
    )
    env_checker.check_env(environment.unwrapped)


@pytest.mark.parametrize("mode", MODES)
def test_the_vector_environment_passes_the_checks_of_reset(mode):
    environment = vector(mode)
    env_checker.check_reset_return_type(environment)
    env_checker.check_reset_seed_determinism(environment)
    env_checker.check_reset_options(environment)


@pytest.mark.parametrize("mode", MODES)
def test_the_vector_environment_passes_the_check_that_no_data_is_reused(mode):
    env_checker.check_returned_data_not_reused(vector(mode, num_envs=1))


@pytest.mark.parametrize("flat", [False, True])
def test_everything_seen_on_the_way_into_obstacles_is_within_the_observation_space(flat):
    settings = small(env_dyn__num_obstacles=400, env_dyn__visible_to_lidar=True)
    settings.env.max_episode_length = 500
    environment = vector(AutoresetMode.SAME_STEP, settings=settings, flat=flat)
    observation, _ = environment.reset(seed=1)
    assert observation in environment.observation_space
    ended = 0
    for action in random_actions(500) * np.float32([0, 1, 0.2]) + np.float32([2, 0, 0]):
        observation, _, terminated, _, info = environment.step(action)
        ended += int(terminated.sum())
        assert observation in environment.observation_space
        for final in [row for row in info.get("final_obs", []) if row is not None]:
            assert final in environment.single_observation_space
    assert ended > 0


def test_the_bounds_of_actions_are_those_of_the_settings():
    space = vector(settings=small(env__action_limit=1.5)).single_action_space
    assert (space.low == -1.5).all()
    assert (space.high == 1.5).all()
    assert space.shape == (3,)


# ---------------------------------------------------------------------- the modes of Gymnasium


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_one_drone_lives_as_in_gymnasiums_own_vector_environment(mode, flat):
    settings = small(env_dyn__num_obstacles=0)
    ours = vector(mode, settings=settings, num_envs=1, seed=5, flat=flat)
    theirs = SyncVectorEnv(
        [lambda: NavigationSingleEnv(settings, seed=5, flat=flat)], autoreset_mode=mode
    )
    assert same(ours.reset()[0], theirs.reset()[0])
    ended = 0
    for action in random_actions(4 * LENGTH, 1):
        (observation, *numbers, info), (expected, *expected_numbers, expected_info) = (
            ours.step(action),
            theirs.step(action),
        )
        assert same(observation, expected)
        assert all(np.array_equal(a, b) for a, b in zip(numbers, expected_numbers, strict=True))
        assert same(_as_double(info), _as_double(expected_info))
        ended += int((numbers[1] | numbers[2]).sum())
        if mode is AutoresetMode.DISABLED and (numbers[1] | numbers[2]).any():
            mask = numbers[1] | numbers[2]
            again = [each.reset(options={"reset_mask": mask.copy()})[0] for each in (ours, theirs)]
            assert same(*again)
    assert ended >= 3


def _as_double(info):
    """Return infos with all numbers as Python's: Gymnasium makes float64 of them, we keep the
    simulator's float32.
    """
    if isinstance(info, dict):
        return {key: _as_double(value) for key, value in info.items()}
    return info.tolist() if info.dtype != object else [None if row is None else row for row in info]


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_is_in_the_metadata(mode):
    assert vector(mode).metadata["autoreset_mode"] is mode


def test_the_mode_may_be_given_by_its_value():
    assert vector("SameStep").autoreset_mode is AutoresetMode.SAME_STEP


def test_an_unknown_mode_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=r"sometimes.*NEXT_STEP"):
        vector("sometimes")


def test_same_step_returns_the_first_observation_and_keeps_the_last_in_the_info():
    environment = vector(AutoresetMode.SAME_STEP)
    environment.reset(seed=1)
    observation, *_, info, done = step_until_some_end(environment, sinking())
    resting = np.abs(observation["state"][:, 5:8]).max(axis=1) == 0
    assert (resting == done).all()
    for drone in np.flatnonzero(done):
        assert np.abs(info["final_obs"][drone]["state"][5:8]).max() > 0
    assert (info["_final_obs"] == done).all()
    assert all(info["final_obs"][drone] is None for drone in np.flatnonzero(~done))


def test_next_step_returns_the_last_observation_when_an_episode_ends():
    ours, reference = vector(), vector(AutoresetMode.SAME_STEP)
    ours.reset(seed=1), reference.reset(seed=1)
    observation, *_, done = step_until_some_end(ours, sinking())
    *_, info, _ = step_until_some_end(reference, sinking())
    for drone in np.flatnonzero(done):
        assert same(
            {name: part[drone] for name, part in observation.items()}, info["final_obs"][drone]
        )


def test_next_step_returns_the_reset_and_no_reward_in_the_step_after_the_end():
    environment = vector()
    environment.reset(seed=1)
    *_, done = step_until_some_end(environment, sinking())
    observation, reward, terminated, truncated, info = environment.step(sinking())
    assert (reward[done] == 0).all()
    assert not (terminated | truncated)[done].any()
    assert np.abs(observation["state"][done, 5:8]).max() == 0
    assert "flight" not in info or not info["_flight"][done].any()


def test_next_step_ignores_the_action_of_a_drone_that_is_reset():
    first, second = vector(), vector()
    first.reset(seed=1), second.reset(seed=1)
    *_, done = step_until_some_end(first, sinking())
    step_until_some_end(second, sinking())
    broken = sinking()
    broken[done] = np.nan
    assert same(first.step(sinking()), second.step(broken))


def test_next_step_leaves_the_action_that_it_was_given_as_it_is():
    environment = vector()
    environment.reset(seed=1)
    step_until_some_end(environment, sinking())
    action = sinking()
    environment.step(action)
    assert (action == sinking()).all()


def test_a_reset_of_all_leaves_nobody_waiting_in_next_step():
    environment = vector()
    environment.reset(seed=1)
    step_until_some_end(environment, sinking())
    environment.reset(seed=1)
    _, reward, *_ = environment.step(sinking())
    assert (reward != 0).all()


def test_without_autoreset_an_ended_drone_must_be_reset_before_the_next_step():
    environment = vector(AutoresetMode.DISABLED)
    environment.reset(seed=1)
    step_until_some_end(environment, sinking())
    with pytest.raises(ActionError, match="reset_mask"):
        environment.step(sinking())


def test_a_reset_mask_begins_new_episodes_only_where_it_holds():
    environment = vector(AutoresetMode.DISABLED)
    environment.reset(seed=1)
    last, *_, done = step_until_some_end(environment, sinking())
    observation, _ = environment.reset(options={"reset_mask": done})
    assert np.abs(observation["state"][done, 5:8]).max() == 0
    assert all((observation[name][~done] == last[name][~done]).all() for name in last)
    environment.step(sinking())


def test_a_reset_does_not_edit_its_options():
    environment = vector(AutoresetMode.DISABLED)
    environment.reset()
    options = {"reset_mask": np.ones(16, np.bool_)}
    environment.reset(options=options)
    assert list(options) == ["reset_mask"]


def test_an_unknown_option_of_reset_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"reset_masks.*Did you mean 'reset_mask'"):
        vector().reset(options={"reset_masks": np.ones(16, np.bool_)})


# ---------------------------------------------------------------------- statistics and wrappers


@pytest.mark.parametrize("mode", MODES)
def test_ended_episodes_report_every_statistic(mode):
    environment = vector(mode)
    environment.reset(seed=1)
    *_, info, done = step_until_some_end(environment, sinking())
    report = info["final_info"] if mode is AutoresetMode.SAME_STEP else info
    assert {*STATISTICS, "r", "l"} <= set(report["flight"])
    assert (report["_flight"] == done).all()
    assert (report["flight"]["length"][done] > 0).all()
    assert (report["flight"]["length"][~done] == 0).all()
    assert (report["flight"]["r"] == report["flight"]["return"]).all()


def test_next_step_reports_an_episode_once():
    environment = vector()
    environment.reset(seed=1)
    reports = 0
    for _ in range(LENGTH - 1):
        *_, info = environment.step(sinking())
        if info:
            assert (info["flight"]["length"][~info["_flight"]] == 0).all()
            reports += 1
    assert reports > 3


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_gymnasiums_record_of_returns_agrees_with_ours(mode):
    environment = RecordEpisodeStatistics(vector(mode))
    environment.reset(seed=1)
    ended = 0
    for action in random_actions(3 * LENGTH):
        *_, info = environment.step(action)
        if "episode" in info:
            ours = (info["final_info"] if mode is AutoresetMode.SAME_STEP else info)["flight"]
            assert (info["episode"]["l"] == ours["length"]).all()
            assert np.allclose(info["episode"]["r"], ours["return"], atol=1e-4)
            ended += int(info["_episode"].sum())
    assert ended > 16


def test_the_record_of_one_drones_returns_agrees_with_ours():
    environment = wrappers.RecordEpisodeStatistics(gymnasium.make(ENVIRONMENT_ID, settings=small()))
    environment.reset(seed=1)
    while True:
        *_, terminated, truncated, info = environment.step(np.float32(SINKING))
        if terminated or truncated:
            break
    assert info["episode"]["l"] == info["flight"]["length"]
    assert np.isclose(info["episode"]["r"], info["flight"]["return"], atol=1e-4)


def test_statistics_can_have_another_name():
    environment = vector(statistics_key="episode")
    environment.reset(seed=1)
    *_, info, _ = step_until_some_end(environment, sinking())
    assert {"r", "l", "success_050"} <= set(info["episode"])


WRAPPERS = {
    "record": (wrappers.RecordEpisodeStatistics, {}),
    "flatten": (wrappers.FlattenObservation, {}),
    "normalise observations": (wrappers.NormalizeObservation, {"flat": True}),
    "normalise rewards": (wrappers.NormalizeReward, {}),
    "rescale actions": (lambda env: wrappers.RescaleAction(env, np.float32(-1), np.float32(1)), {}),
    "clip actions": (wrappers.ClipAction, {}),
    "stack frames": (lambda env: wrappers.FrameStackObservation(env, 3), {}),
    "time limit": (lambda env: wrappers.TimeLimit(env, 7), {}),
    "time aware": (
        lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 7)),
        {"flat": True},
    ),
    "autoreset": (wrappers.Autoreset, {}),
}


@pytest.mark.parametrize(("wrap", "options"), WRAPPERS.values(), ids=WRAPPERS)
def test_one_drone_flies_in_gymnasiums_wrappers(wrap, options):
    environment = wrap(gymnasium.make(ENVIRONMENT_ID, settings=small(), **options))
    observation, _ = environment.reset(seed=1)
    assert observation in environment.observation_space
    for _ in range(LENGTH):
        observation, _, terminated, truncated, _ = environment.step(
            environment.action_space.sample()
        )
        assert observation in environment.observation_space
        if terminated or truncated:
            break
    assert terminated or truncated


VECTOR_WRAPPERS = {
    "record": (vector_wrappers.RecordEpisodeStatistics, {}),
    "flatten": (vector_wrappers.FlattenObservation, {}),
    "normalise observations": (vector_wrappers.NormalizeObservation, {"flat": True}),
    "normalise rewards": (vector_wrappers.NormalizeReward, {}),
    "rescale actions": (
        lambda env: vector_wrappers.RescaleAction(env, np.float32(-1), np.float32(1)),
        {},
    ),
    "clip actions": (vector_wrappers.ClipAction, {}),
}


@pytest.mark.parametrize(("wrap", "options"), VECTOR_WRAPPERS.values(), ids=VECTOR_WRAPPERS)
def test_all_drones_fly_in_gymnasiums_wrappers(wrap, options):
    environment = wrap(vector(**options))
    environment.reset(seed=1)
    ended = 0
    for _ in range(LENGTH + 1):
        _, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
        assert np.isfinite(reward).all()
        ended += int((terminated | truncated).sum())
    assert ended >= 16


@pytest.mark.parametrize("mode", MODES)
def test_infos_become_lists_in_gymnasiums_wrapper(mode):
    environment = DictInfoToList(vector(mode))
    environment.reset(seed=1)
    *_, infos, done = step_until_some_end(environment, sinking())
    for info, ended in zip(infos, done, strict=True):
        report = info.get("final_info", info)
        assert ("flight" in report) == ended


# ---------------------------------------------------------------------- determinism, parity, safety


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_trajectory(mode):
    def fly(environment):
        kept = [environment.reset(seed=7)]
        for action in random_actions(LENGTH - 1):
            kept.append(environment.step(action))
            if mode is AutoresetMode.DISABLED:
                ended = kept[-1][2] | kept[-1][3]
                kept.append(environment.reset(options={"reset_mask": ended}))
        return kept

    environment = vector(mode)
    assert same(fly(environment), fly(environment))
    assert same(fly(environment), fly(vector(mode, seed=99)))


def test_the_seed_of_the_constructor_is_that_of_a_first_reset():
    assert same(vector(seed=7).reset()[0], vector(seed=3).reset(seed=7)[0])


def test_other_seeds_give_other_episodes():
    environment = vector()
    assert not same(environment.reset(seed=1)[0], environment.reset(seed=2)[0])


def test_single_environments_without_a_seed_differ():
    first, second = NavigationSingleEnv(small()), NavigationSingleEnv(small())
    assert not same(first.reset()[0], second.reset()[0])


def test_rewards_are_those_of_the_simulator_bit_for_bit():
    simulator, environment = NavigationEnv(small(), seed=3), vector(AutoresetMode.SAME_STEP, seed=3)
    simulator.reset(), environment.reset()
    for action in random_actions(3 * LENGTH):
        expected = simulator.step(action)
        observation, reward, terminated, truncated, _ = environment.step(action)
        assert (reward == expected.reward.numpy()).all()
        assert (terminated == expected.terminated.numpy()).all()
        assert (truncated == expected.truncated.numpy()).all()
        assert all(
            (observation[name] == part.numpy()).all() for name, part in expected.observation.items()
        )


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_nothing_returned_changes_later(mode, flat):
    environment = vector(mode, flat=flat)
    kept = [environment.reset(seed=1)]
    copies = copy.deepcopy(kept)
    for action in random_actions(2 * LENGTH):
        kept.append(environment.step(action))
        copies.append(copy.deepcopy(kept[-1]))
    environment.reset()
    assert same(kept, copies)


def test_a_flat_observation_joins_the_parts_without_padding():
    parts, _ = vector().reset(seed=1)
    joined, _ = vector(flat=True).reset(seed=1)
    assert (
        joined == np.concatenate([parts[name].reshape(16, -1) for name in PACKED_ORDER], axis=1)
    ).all()


@pytest.mark.parametrize(
    "action",
    [
        np.zeros((15, 3)),
        np.zeros(3),
        np.full((16, 3), np.nan),
        np.full((16, 3), np.inf),
        "forward",
        None,
    ],
    ids=["one row short", "one drone", "nan", "infinite", "a word", "nothing"],
)
@pytest.mark.parametrize("waiting", [False, True])
def test_a_bad_action_is_refused_and_nothing_moves(action, waiting):
    environment = vector()
    environment.reset(seed=1)
    if waiting:
        step_until_some_end(environment, sinking())
    before = environment.simulator.state_dict()
    with pytest.raises(ActionError):
        environment.step(action)
    after = environment.simulator.state_dict()
    assert all(
        (before[name] == after[name]).all() for name in before if hasattr(before[name], "all")
    )


def test_a_bad_action_of_the_single_environment_is_refused():
    environment = NavigationSingleEnv(small(), seed=0)
    environment.reset()
    with pytest.raises(ActionError):
        environment.step(np.zeros(2))


def test_the_settings_that_were_given_stay_as_they_are():
    settings = small()
    NavigationVectorEnv(settings, num_envs=3)
    assert settings == small()


# ---------------------------------------------------------------------- by name, and without
# Gymnasium


ROADS = {
    "nothing imported": "import gymnasium; gymnasium.make('navrl:navrl/Navigation-v0', {}); "
    "environment = gymnasium.make_vec('navrl:navrl/Navigation-v0', 4, {})",
    "navrl first": "import navrl, gymnasium; environment = "
    "gymnasium.make('navrl:navrl/Navigation-v0', {})",
    "the adapter": "import navrl.adapters.gymnasium, gymnasium; environment = "
    "gymnasium.make('navrl/Navigation-v0', {})",
}


@pytest.mark.parametrize(
    "road", [pytest.param(road, marks=pytest.mark.slow) for road in ROADS], ids=ROADS
)
def test_gymnasium_makes_the_environment_by_its_id(road):
    settings = "settings={'env': {'num_worlds': 1}, 'sim': {'num_threads': 1}}"
    program = ROADS[road].replace("{}", settings)
    program += (
        "; environment.reset(seed=1); import sys; assert not any('navrl' in str(f) for f "
        "in sys.meta_path)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_importing_navrl_loads_no_gymnasium_and_leaves_other_imports_alone():
    program = (
        "import sys, navrl, json, decimal; assert 'gymnasium' not in sys.modules; import "
        "gymnasium.spaces"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_registering_twice_changes_nothing():
    spec = gymnasium.spec(ENVIRONMENT_ID)
    register()
    assert gymnasium.spec(ENVIRONMENT_ID) is spec


def test_gymnasium_makes_the_vector_environment_by_name():
    environment = gymnasium.make_vec(
        ENVIRONMENT_ID, num_envs=5, settings=small(), autoreset_mode="SameStep"
    )
    assert isinstance(environment, NavigationVectorEnv)
    assert environment.reset()[0]["state"].shape == (5, 8)


def test_settings_may_be_a_mapping_and_an_unknown_one_is_refused():
    environment = NavigationSingleEnv({"env": {"num_worlds": 1, "action_limit": 1.5}}, seed=0)
    assert environment.action_space.high[0] == 1.5
    with pytest.raises(ConfigError, match=r"Did you mean 'env\.action_limit'"):
        NavigationSingleEnv({"env": {"action_limits": 1.5}})


def test_without_gymnasium_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "navrl.adapters.gymnasium")
    with pytest.raises(MissingExtraError, match=r"pip install 'navrl\[gymnasium\]'"):
        importlib.import_module("navrl.adapters.gymnasium")
