"""Videos: files that other programs play, and mistakes named before anything is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_flights import made_recording
from PIL import Image

from navrl.errors import ConfigError
from navrl.render.palette import LIGHT
from navrl.view.video import VideoSettings, frames_of, write_video

SMALL = VideoSettings(width=160, height=90, frames_per_second=5)


@pytest.fixture(scope="module")
def recording():
    return made_recording()


def near(picture: np.ndarray, colour: str, within: int = 30) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(picture.astype(int) - wanted).max(2) <= within).sum())


def test_a_gif_holds_the_flights_and_a_still_second(recording, tmp_path):
    write_video(recording, tmp_path / "flight.gif", SMALL)
    with Image.open(tmp_path / "flight.gif") as image:
        assert image.size == (160, 90)
        assert image.info["loop"] == 0
        shown = 0
        for number in range(image.n_frames):  # equal pictures are one, shown for longer
            image.seek(number)
            shown += image.info["duration"]
        assert shown == 200 * round((59 * 0.08 + 1.0) * 5)


def test_a_gif_shows_what_was_drawn(recording, tmp_path):
    write_video(recording, tmp_path / "flight.gif", SMALL)
    drawn = list(frames_of(recording, SMALL))
    with Image.open(tmp_path / "flight.gif") as image:
        for number in (0, 7, 20):
            image.seek(number)
            gap = np.abs(np.asarray(image.convert("RGB")).astype(int) - drawn[number])
            assert gap.mean() < 4, f"picture {number}"


def test_an_mp4_has_as_many_frames_as_were_drawn(recording, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    settings = VideoSettings(width=160, height=90, frames_per_second=10, seconds=2.0)
    write_video(recording, tmp_path / "flight.mp4", settings)
    frames, seconds = ffmpeg.count_frames_and_secs(str(tmp_path / "flight.mp4"))
    assert frames == 20
    assert seconds == pytest.approx(2.0, abs=0.11)


def test_a_faster_video_is_shorter(recording):
    twice = VideoSettings(width=64, height=64, frames_per_second=5, speed=2.0, seconds=4.0)
    assert len(list(frames_of(recording, twice))) == 10


def test_the_words_name_the_scenario_and_count_the_endings(recording):
    last = list(frames_of(recording, SMALL))[-1]
    for outcome in ("success_100", "static_collision", "dynamic_collision"):
        assert near(last, getattr(LIGHT, outcome), 12) > 10


def test_a_followed_drone_stays_in_the_middle(recording):
    settings = VideoSettings(width=160, height=90, frames_per_second=2, follow=9)
    for picture in list(frames_of(recording, settings))[:3]:
        assert near(picture[36:54, 68:92], LIGHT.flying, 60) > 3


def test_progress_counts_to_the_end(recording):
    told: list[tuple[int, int]] = []
    for _ in frames_of(recording, SMALL, lambda done, of: told.append((done, of))):
        pass
    assert told[-1][0] == told[-1][1] == len(told)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("flight.avi", SMALL, "ends in"),
        ("flight.gif", VideoSettings(width=1), "width is 1"),
        ("flight.gif", VideoSettings(speed=0.0), "speed is 0"),
        ("flight.gif", VideoSettings(follow=1), "no recorded flight 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(recording, tmp_path, name, settings, words):
    with pytest.raises(ConfigError, match=words):
        write_video(recording, tmp_path / name, settings)
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_fails_leaves_no_part_of_a_file(recording, tmp_path):
    def fail(done: int, of: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_video(recording, tmp_path / "flight.gif", SMALL, fail)
    assert list(tmp_path.iterdir()) == []


def test_the_film_of_the_readme_is_small_and_moves():
    film = Path(__file__).parents[2] / "docs" / "images" / "crossing.gif"
    assert film.stat().st_size <= 2_000_000
    with Image.open(film) as image:
        assert image.n_frames > 100
