"""Still pictures of flights: every ending is drawn and named."""

from __future__ import annotations

import numpy as np
import pytest
from made_flights import made_recording
from PIL import Image

from navrl.render.palette import LIGHT
from navrl.view.topdown import save_animation, save_flights


def near(picture: np.ndarray, colour: str) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(picture.astype(int) - wanted).max(2) <= 10).sum())


@pytest.mark.slow
def test_every_ending_and_moving_obstacle_has_its_colour(tmp_path):
    recording = made_recording()
    save_flights(recording, tmp_path / "flights.png")
    picture = np.asarray(Image.open(tmp_path / "flights.png").convert("RGB"))
    for name in {*recording.outcome, "moving"}:
        assert near(picture, getattr(LIGHT, name)) > 100, name


def test_a_failure_is_drawn_over_a_success(tmp_path):
    together = made_recording(flights=2, outcome=("static_collision", "success_100"))
    same = together.position.copy()
    same[:, 0] = same[:, 1]  # both fly the same way
    recording = made_recording(
        flights=2,
        outcome=("static_collision", "success_100"),
        position=same,
        lengths=together.lengths[[1, 1]],
    )
    save_flights(recording, tmp_path / "flights.png")
    picture = np.asarray(Image.open(tmp_path / "flights.png").convert("RGB"))
    assert near(picture, LIGHT.static_collision) > 3 * near(picture, LIGHT.success_100)


@pytest.mark.slow
def test_an_animation_is_a_film_of_the_flights(tmp_path):
    save_animation(made_recording(), tmp_path / "flights.gif", frames=20)
    with Image.open(tmp_path / "flights.gif") as image:
        assert image.n_frames > 10
