"""Pictures of the adapters: Gymnasium's and Stable-Baselines3's own recorders write films of them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import env_checker
from gymnasium.wrappers import RecordVideo
from gymnasium.wrappers.vector import RecordVideo as RecordVectorVideo
from stable_baselines3.common.vec_env import VecVideoRecorder

from navrl.adapters.gymnasium import ENVIRONMENT_ID, NavigationSingleEnv, NavigationVectorEnv
from navrl.adapters.stable_baselines3 import NavigationVecEnv
from navrl.errors import ConfigError
from navrl.render.palette import LIGHT

SETTINGS = {
    "env": {"num_worlds": 2, "action_repeat": 5, "max_episode_length": 30, "num_obstacles": 50},
    "env_dyn": {"num_obstacles": 8},
}
FORWARD = np.array([1.5, 0.0, 0.0], np.float32)


def frames_of(path) -> int:
    return pytest.importorskip("imageio_ffmpeg").count_frames_and_secs(str(path))[0]


def near(picture: np.ndarray, colour: str, within: int = 60) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(picture.astype(int) - wanted).max(2) <= within).sum())


@pytest.fixture
def single():
    environment = gymnasium.make(ENVIRONMENT_ID, settings=SETTINGS, render_mode="rgb_array")
    yield environment
    environment.close()


def test_a_picture_shows_the_drone_in_the_middle(single):
    single.reset(seed=0)
    picture = single.render()
    assert picture.shape == (360, 640, 3)
    assert picture.dtype == np.uint8
    assert near(picture[170:190, 305:335], LIGHT.flying) > 20


def test_pictures_change_while_the_drone_flies(single):
    single.reset(seed=0)
    before = single.render()
    for _ in range(5):
        single.step(FORWARD)
    assert (single.render() != before).any(axis=2).mean() > 0.02


def test_the_way_starts_anew_with_an_episode(single):
    single.reset(seed=0)
    fresh = single.render()
    for _ in range(5):
        single.step(FORWARD)
        single.render()
    single.reset(seed=1)
    single.render()
    single.reset(seed=0)
    assert (single.render() == fresh).all()


def test_without_a_render_mode_there_is_no_picture():
    environment = NavigationSingleEnv(SETTINGS)
    environment.reset(seed=0)
    assert environment.render() is None


@pytest.mark.filterwarnings("ignore:.*(is.*infinity|symmetric and normalized space):UserWarning")
@pytest.mark.filterwarnings("error:.*WARN:UserWarning")
def test_the_environment_passes_gymnasiums_checker_with_pictures(single):
    env_checker.check_env(single.unwrapped)


@pytest.mark.slow
def test_gymnasium_records_an_episode(single, tmp_path):
    pytest.importorskip("moviepy")
    recorded = RecordVideo(single, str(tmp_path / "film"), disable_logger=True)
    recorded.reset(seed=0)
    steps, over = 0, False
    while not over:
        _, _, terminated, truncated, _ = recorded.step(FORWARD)
        steps, over = steps + 1, terminated or truncated
    recorded.close()
    (film,) = tmp_path.glob("film/*.mp4")
    assert frames_of(film) == pytest.approx(steps + 1, abs=1)


@pytest.mark.slow
def test_gymnasium_records_several_drones_side_by_side(tmp_path):
    pytest.importorskip("moviepy")
    drones = NavigationVectorEnv(SETTINGS, num_envs=4, render_mode="rgb_array")
    recorded = RecordVectorVideo(
        drones, str(tmp_path / "film"), video_length=4, disable_logger=True
    )
    recorded.reset(seed=0)
    for _ in range(5):
        recorded.step(np.tile(FORWARD, (4, 1)))
    recorded.close()
    (film,) = tmp_path.glob("film/*.mp4")
    assert frames_of(film) == pytest.approx(4, abs=1)


def test_each_drone_of_a_batch_has_its_own_picture():
    drones = NavigationVectorEnv(SETTINGS, num_envs=3, render_mode="rgb_array")
    drones.reset(seed=0)
    pictures = drones.render()
    assert [picture.shape for picture in pictures] == [(180, 320, 3)] * 3
    assert (pictures[0] != pictures[1]).any()


def test_stable_baselines3_tiles_the_drones_and_records_them(tmp_path):
    pytest.importorskip("moviepy")
    drones = NavigationVecEnv(SETTINGS, num_envs=4, render_mode="rgb_array")
    recorded = VecVideoRecorder(drones, str(tmp_path), lambda step: step == 0, video_length=4)
    recorded.reset()
    assert drones.render().shape == (360, 640, 3)
    for _ in range(5):
        recorded.step(np.tile(FORWARD, (4, 1)))
    recorded.close()
    (film,) = tmp_path.glob("*.mp4")
    assert frames_of(film) == pytest.approx(4, abs=1)


@pytest.mark.parametrize("make", [NavigationSingleEnv, NavigationVectorEnv, NavigationVecEnv])
def test_an_unknown_render_mode_is_refused(make):
    with pytest.raises(ConfigError, match="expected 'rgb_array'"):
        make(SETTINGS, render_mode="human")


@pytest.mark.parametrize("make", [NavigationVectorEnv, NavigationVecEnv])
def test_a_picture_of_each_of_a_thousand_drones_is_refused(make):
    with pytest.raises(ConfigError, match="at most 64"):
        make(SETTINGS, num_envs=1000, render_mode="rgb_array")
