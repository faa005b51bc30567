"""Recorded flights: what was flown, through a file and back; damage is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navrl.errors import ContainerError
from navrl.evaluation import evaluate
from navrl.evaluation.recording import ARRAYS, ENDINGS, WORDS, Recording
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings


def straight(observation):
    """Fly at the goal at 2 m/s, through everything."""
    return 2.0 * observation["state"][:, :3]


def flown(repeat: int = 5, recorded: int = 4, **more) -> tuple[NavigationEnv, Recording]:
    settings = NavigationSettings.of(
        env__num_envs=8,
        env__num_worlds=2,
        env__num_obstacles=60,
        env_dyn__num_obstacles=16,
        env__action_repeat=repeat,
        env__max_episode_length=400,
        **more,
    )
    env = NavigationEnv(settings, seed=3, auto_reset=False)
    recording = evaluate(env, straight, recorded=recorded, scenario="here").recording
    assert recording is not None
    return env, recording


def test_a_recording_holds_the_flights_of_the_first_world():
    env, recording = flown()
    assert recording.episode.tolist() == [0, 2, 4, 6]
    assert recording.scenario == "here"
    assert recording.position.shape == (len(recording.yaw), 4, 3)
    assert recording.moving_position.shape == (len(recording.yaw), 16, 3)
    assert np.array_equal(recording.goal, env.target[::2].numpy())
    assert np.array_equal(recording.position[-1], env.position[::2].numpy())
    assert np.array_equal(recording.boxes, env.pool.worlds[0].boxes)
    assert set(recording.outcome) <= set(ENDINGS)


def test_positions_move_by_velocity_times_the_frame_interval():
    _, recording = flown()
    flight = int(recording.lengths.argmax())
    track = recording.position[: recording.lengths[flight], flight]
    velocity = recording.velocity[: recording.lengths[flight], flight]
    middle = (velocity[1:] + velocity[:-1]) / 2 * recording.seconds_per_frame
    assert np.abs(np.diff(track, axis=0) - middle).max() < 0.02


def test_moving_obstacles_move_by_their_velocity():
    _, recording = flown(repeat=1)
    moved = np.diff(recording.moving_position, axis=0)
    expected = recording.moving_velocity[1:] * recording.seconds_per_frame
    turned = np.abs(np.diff(recording.moving_velocity, axis=0)).max((1, 2)) > 1e-6
    assert np.abs(moved - expected)[~turned].max() < 1e-4
    assert np.abs(moved).max() > 0.03


@pytest.mark.parametrize("repeat", [1, 3, 5])
def test_frames_are_about_as_far_apart_whatever_the_decision_rate(repeat):
    _, recording = flown(repeat)
    assert recording.seconds_per_frame == pytest.approx({1: 0.08, 3: 0.096, 5: 0.08}[repeat])


def test_a_flight_does_not_move_after_its_end():
    _, recording = flown(repeat=1)
    for flight, end in enumerate(recording.lengths):
        assert end < len(recording.position)
        rest = recording.position[end:, flight]
        assert np.array_equal(rest, np.broadcast_to(rest[-1], rest.shape))
        assert not np.array_equal(recording.position[end - 1, flight], rest[-1])


def test_a_recording_survives_its_file(tmp_path):
    _, recording = flown()
    recording.save(tmp_path / "a.npz")
    loaded = Recording.load(tmp_path / "a.npz")
    for name in WORDS:
        assert getattr(loaded, name) == getattr(recording, name), name
    for name in ARRAYS:
        assert np.array_equal(getattr(loaded, name), getattr(recording, name)), name
        assert getattr(loaded, name).dtype == getattr(recording, name).dtype, name


def test_recording_changes_no_flight():
    settings = flown()[0].settings
    env = NavigationEnv(settings, seed=3, auto_reset=False)
    plain = evaluate(env, straight)
    watched = evaluate(NavigationEnv(settings, seed=3, auto_reset=False), straight, recorded=4)
    assert plain.recording is None
    for name, values in plain.statistics.items():
        assert torch.equal(values, watched.statistics[name]), name


@pytest.mark.parametrize("kept", [0, 10, 1000, -30])
def test_a_file_cut_anywhere_is_refused_by_name(tmp_path, kept):
    _, recording = flown()
    recording.save(tmp_path / "cut.npz")
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:kept])
    with pytest.raises(ContainerError, match=r"cut\.npz"):
        Recording.load(tmp_path / "cut.npz")


def test_arrays_that_do_not_fit_together_are_refused(tmp_path):
    _, recording = flown()
    recording.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as file:
        arrays = dict(file)
    arrays["yaw"] = arrays["yaw"][:-1]
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(ContainerError, match="yaw has shape"):
        Recording.load(tmp_path / "b.npz")


def test_another_npz_is_not_taken_for_a_recording(tmp_path):
    np.savez(tmp_path / "other.npz", heights=np.zeros((3, 3)))
    with pytest.raises(ContainerError, match="no recording"):
        Recording.load(tmp_path / "other.npz")


def test_a_missing_file_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        Recording.load(tmp_path / "nowhere.npz")
