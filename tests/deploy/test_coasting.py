"""Moving obstacles that a detector misses are remembered, and nothing else is."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.cli import main
from navrl.deploy.coasting_pilot import CoastingPilot, coasting
from navrl.deploy.node.node_core import NodeCore
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.node_messages import Goal, Odometry, Scan, Tracks
from navrl.deploy.track_memory import LONGEST, TrackMemory
from navrl.deploy.tracks import observed_rows, observed_tracks
from navrl.errors import ConfigError
from navrl.evaluation import evaluate, load_policy
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

NOTHING = np.zeros((1, 0, 8))


def track(x, y=0.0, vx=0.0, vy=0.0, width=0.5):
    return np.array([x, y, 1.0, vx, vy, 0.0, width, 1.0])


def lists(*tracks):
    """Return the list of one robot, (1, K, 8)."""
    return np.array(tracks).reshape(1, -1, 8)


def known(tracks):
    """Return where the tracks of a robot are, in order of x."""
    used = tracks[0][tracks[0, :, 6] > 0]
    return sorted((round(x, 3), round(y, 3)) for x, y in used[:, :2])


def test_a_missed_obstacle_flies_on_at_its_last_velocity_and_is_then_forgotten():
    memory = TrackMemory(keep=0.25)
    memory(lists(track(2.0, vx=-1.0, vy=0.5)), 0.1)
    assert known(memory(NOTHING, 0.1)) == [(1.9, 0.05)]
    assert known(memory(NOTHING, 0.1)) == [(1.8, 0.1)]
    assert known(memory(NOTHING, 0.1)) == []


def test_an_obstacle_that_is_found_again_is_there_once_and_where_it_was_seen():
    memory = TrackMemory()
    memory(lists(track(2.0, vx=-1.0)), 0.1)
    memory(NOTHING, 0.1)
    assert known(memory(lists(track(1.5, 0.3)), 0.1)) == [(1.5, 0.3)]
    assert known(memory(NOTHING, 0.1)) == [(1.5, 0.3)]


def test_of_two_obstacles_side_by_side_the_missed_one_is_kept():
    memory = TrackMemory()
    memory(lists(track(2.0, 0.0), track(2.0, 0.8)), 0.1)
    assert known(memory(lists(track(2.0, 0.82)), 0.1)) == [(2.0, 0.0), (2.0, 0.82)]


def test_each_robot_has_its_own_memory():
    memory = TrackMemory()
    memory(np.array([[track(1.0), track(3.0)], [track(2.0), np.zeros(8)]]), 0.1)
    after = memory(np.zeros((2, 2, 8)), 0.1)
    assert [known(after[:1]), known(after[1:])] == [[(1.0, 0.0), (3.0, 0.0)], [(2.0, 0.0)]]


def test_the_memory_does_not_grow_and_leaves_no_gap():
    memory = TrackMemory(keep=0.5)
    for step in range(100):
        tracks = memory(lists(track(10.0 * step), np.zeros(8)), 0.1)
    assert tracks.shape[1] <= 2 + 5


def test_without_time_to_keep_anything_nothing_is_remembered():
    memory = TrackMemory(keep=0.0)
    memory(lists(track(1.0)), 0.1)
    assert known(memory(NOTHING, 0.0)) == []


def test_a_list_longer_than_the_memory_passes_unchanged():
    memory = TrackMemory()
    memory(lists(track(-5.0)), 0.1)
    many = np.tile(track(1.0), (1, LONGEST + 1, 1))
    assert np.array_equal(memory(many, 0.1), many)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(0, 12))
def test_tracks_of_observed_rows_give_the_same_rows_again(seed, count):
    random = np.random.default_rng(seed)
    place = random.uniform(-20, 20, (3, 3))
    tracks = np.zeros((3, count, 8))
    tracks[..., :3] = place[:, None] + random.uniform(-3, 3, (3, count, 3))
    tracks[..., 3:6] = random.uniform(-2, 2, (3, count, 3))
    tracks[..., 6] = random.choice([0.0, 0.25, 0.5, 1.0], (3, count))
    tracks[..., 7] = random.choice([1.0, 5.0], (3, count))
    rows = observed_rows(tracks, place, 5, 4.0)
    again = observed_tracks(rows.astype(np.float64), place[:, 2])
    again[..., :2] += place[:, None, :2]
    assert observed_rows(again, place, 5, 4.0) == pytest.approx(rows, abs=1e-5)


def task(**other):
    return NavigationSettings.of(
        env__num_envs=96, env__num_worlds=8, env__layout="navrl_eval", env__action_repeat=5, **other
    )


def flown_with(settings, act):
    flights = evaluate(NavigationEnv(settings, seed=1, auto_reset=False), act)
    return {name: flights.share(name).mean for name in ("success_100", "dynamic_collision")}


def test_of_a_perfect_detector_only_what_leaves_its_range_is_remembered():
    env = NavigationEnv(task(), seed=1, auto_reset=False)
    passed: list[torch.Tensor] = []

    def act(observation):
        passed.append(observation["dynamic_obstacle"][:, 0])
        return 2.0 * observation["state"][:, :3]

    pilot, observation, added = CoastingPilot(act, env), env.reset(), 0
    for _ in range(40):
        command = pilot(observation)
        seen, known = observation["dynamic_obstacle"][:, 0], passed.pop()
        differ = ((seen - known).abs().amax(2) > 1e-4) & (known.abs().amax(2) > 0)
        assert (known[differ][:, 3] > 3.0).all()  # the range is 4 m
        added += int(differ.sum())
        observation = env.step(command).observation
    assert 0 < added < 0.01 * 40 * env.num_envs


@pytest.mark.slow
def test_a_policy_that_remembers_hits_fewer_of_the_obstacles_that_its_detector_misses():
    policy = load_policy("pretrained")
    missing = task(sensor__detection_dropout=0.5)
    without, remembering = flown_with(missing, policy), flown_with(missing, coasting(policy))
    assert remembering["dynamic_collision"] < 0.6 * without["dynamic_collision"]
    assert remembering["success_100"] > without["success_100"] + 0.05


# ------------------------------------------------------------------ the node


def decided(core, now, tracks):
    core.take(Odometry(now, np.array([0.0, 0.0, 1.0]), np.zeros(3)), now)
    core.take(Scan(now, np.full((36, 4), 4.0), 0.0), now)
    core.take(Tracks(now, tracks), now)
    core.take(Goal(now, np.array([10.0, 0.0, 1.0])), now)
    assert core.decide(now).state.value == "flying"
    return known(core.policy.given["obstacles"][None])


@pytest.fixture
def node(contract, straight):
    def make(**other):
        return NodeCore(straight, contract, NodeSettings(armed=True, dry_run=False, **other))

    return make


def test_a_node_remembers_what_a_newer_list_leaves_out(node):
    core = node(compensation=False)
    assert decided(core, 0.0, track(3.0, vx=-1.0)[None]) == [(3.0, 0.0)]
    assert decided(core, 0.2, np.zeros((0, 8))) == [(2.8, 0.0)]
    assert decided(core, 0.6, np.zeros((0, 8))) == []


def test_a_node_without_memory_is_given_the_newest_list(node):
    core = node(compensation=False, track_memory=0.0)
    decided(core, 0.0, track(3.0)[None])
    assert decided(core, 0.1, np.zeros((0, 8))) == []


@pytest.mark.parametrize("seconds", [-0.1, 11.0, float("nan")])
def test_an_impossible_time_to_remember_is_refused_by_name(node, seconds):
    with pytest.raises(ConfigError, match="track_memory is"):
        node(track_memory=seconds)


# ------------------------------------------------------------------ the command

FEW = ["--episodes", "8", "--worlds", "2", "env.max_episode_length=20", "flight.recorded=0"]


@pytest.mark.slow
def test_navrl_eval_flies_a_policy_with_and_without_memory_and_shield(tmp_path, capsys):
    command = ["eval", "straight", "--coast", "--shield", "--scenario", "standard", *FEW]
    assert main([*command, "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [found["policy"], *(each["policy"] for each in found["compared"])]
    assert names == ["straight", "straight + memory", "straight + shield + memory"]
