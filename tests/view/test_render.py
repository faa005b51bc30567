"""The software renderer: the nearer hides the farther, and everything is in its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_flights import made_recording

from navrl.render import Camera, Renderer, chasing, overview
from navrl.render.kernels import draw_lines, fill_triangles, shrink
from navrl.render.moment import FLYING
from navrl.render.palette import DARK, LIGHT
from navrl.view.moments import moment_at

# Looks along +x from the origin; 100 pixels focal length, 40 x 30 pixels.
AHEAD = np.array([0, -1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 100, 20, 15, 0.1], np.float32)
RED, BLUE = np.array([[200, 0, 0]], np.uint8), np.array([[0, 0, 200]], np.uint8)


def blank() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((30, 40, 3), np.uint8), np.zeros((30, 40), np.float32)


def facing(depth: float, half: float) -> np.ndarray:
    """Return a square at a depth that faces the camera, as two triangles."""
    corners = [(depth, y * half, z * half) for y, z in ((1, -1), (-1, -1), (-1, 1), (1, 1))]
    a, b, c, d = corners
    return np.array([[a, b, c], [a, c, d]], np.float32)


def tones(colour: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    return np.repeat(colour, len(triangles), axis=0)


@pytest.mark.parametrize("near_first", [True, False])
def test_the_nearer_surface_is_seen_whatever_is_drawn_first(near_first):
    colour, depth = blank()
    surfaces = [(facing(5.0, 0.3), RED), (facing(8.0, 0.9), BLUE)]
    for triangles, tone in surfaces if near_first else surfaces[::-1]:
        fill_triangles(colour, depth, AHEAD, triangles, tones(tone, triangles), True)
    assert (colour[15, 20] == RED[0]).all()
    assert (colour[15, 29] == BLUE[0]).all()


def test_a_square_fills_the_pixels_that_it_covers():
    colour, depth = blank()
    triangles = facing(10.0, 0.5)  # 10 pixels wide: 15 to 25, 10 to 20
    fill_triangles(colour, depth, AHEAD, triangles, tones(RED, triangles), True)
    filled = np.argwhere(colour[:, :, 0] > 0)
    assert filled.min(0).tolist() == [10, 15]
    assert filled.max(0).tolist() == [19, 24]
    assert len(filled) == 100


def test_the_back_of_a_surface_is_not_drawn():
    colour, depth = blank()
    triangles = facing(10.0, 0.5)[:, ::-1].copy()
    fill_triangles(colour, depth, AHEAD, triangles, tones(RED, triangles), True)
    assert not colour.any()


def test_a_triangle_that_reaches_behind_the_camera_is_cut_at_the_near_plane():
    colour, depth = blank()
    ground = np.array([[(-50, -9, -1), (50, -9, -1), (50, 9, -1)]], np.float32)
    fill_triangles(colour, depth, AHEAD, ground, RED, True)
    assert colour[29, 39, 0] == 200
    assert not colour[:15].any(), "the ground is below the horizon"


coordinate = st.floats(-1.25, 1.25, width=32)


@given(st.tuples(*[st.tuples(st.floats(2, 12, width=32), coordinate, coordinate)] * 3))
def test_a_triangle_covers_the_pixels_whose_centres_are_inside(corners):
    triangle = np.array([corners], np.float32)
    screen = np.array([(20 - 100 * y / x, 15 - 100 * z / x) for x, y, z in corners])
    (ax, ay), (bx, by), (cx, cy) = screen
    if (bx - ax) * (cy - ay) - (by - ay) * (cx - ax) > 0:
        triangle = triangle[:, ::-1].copy()
    colour, depth = blank()
    fill_triangles(colour, depth, AHEAD, triangle, RED, True)
    x, y = np.meshgrid(np.arange(40) + 0.5, np.arange(30) + 0.5)
    edges = [
        (q[0] - p[0]) * (y - p[1]) - (q[1] - p[1]) * (x - p[0])
        for p, q in ((screen[0], screen[1]), (screen[1], screen[2]), (screen[2], screen[0]))
    ]
    lengths = [np.linalg.norm(screen[i] - screen[i - 1]) + 1e-9 for i in (1, 2, 0)]
    gaps = np.array([edge / length for edge, length in zip(edges, lengths, strict=True)])
    clearly_inside = (gaps > 0.01).all(0) | (gaps < -0.01).all(0)
    clearly_outside = ~((gaps > -0.01).all(0) | (gaps < 0.01).all(0))
    filled = colour[:, :, 0] > 0
    assert filled[clearly_inside].all()
    assert not filled[clearly_outside].any()


def test_a_line_is_hidden_by_what_is_before_it():
    colour, depth = blank()
    triangles = facing(5.0, 0.2)
    fill_triangles(colour, depth, AHEAD, triangles, tones(RED, triangles), True)
    line = np.array([[(7.0, 1.3, 0.0), (7.0, -1.3, 0.0)]], np.float32)
    draw_lines(colour, depth, AHEAD, line, np.array([[0, 0, 200]], np.float32), 1.0, 1.0)
    assert colour[15, 20].tolist() == [200, 0, 0]
    assert colour[15, 5].tolist() == [0, 0, 200]
    assert colour[15, 35].tolist() == [0, 0, 200]


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_smaller_picture_holds_the_means_of_blocks(factor):
    large = np.random.default_rng(0).integers(0, 256, (4 * factor, 5 * factor, 3), np.uint8)
    small = np.zeros((4, 5, 3), np.uint8)
    shrink(large, factor, small)
    means = large.reshape(4, factor, 5, factor, 3).mean((1, 3))
    assert np.abs(small - means).max() <= 0.5


@pytest.fixture(scope="module")
def recording():
    return made_recording()


@pytest.fixture
def renderer(recording):
    return Renderer(recording.boxes, recording.cylinders, width=320, height=180)


def near(picture: np.ndarray, colour: str, within: int = 30) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(picture.astype(int) - wanted).max(2) <= within).sum())


def test_a_picture_shows_drones_and_moving_obstacles(renderer, recording):
    picture = renderer.picture(overview(), moment_at(recording, 1.0))
    assert picture.shape == (180, 320, 3)
    assert near(picture, LIGHT.flying) > 20
    assert near(picture, LIGHT.moving) > 20


def test_a_kept_background_gives_the_same_picture(renderer, recording):
    moment = moment_at(recording, 1.0)
    first = renderer.picture(overview(), moment)
    renderer.picture(overview(), moment_at(recording, 3.0))
    assert (renderer.picture(overview(), moment) == first).all()


def test_a_drone_is_drawn_where_the_camera_sees_it(renderer, recording):
    moment = moment_at(recording, 1.0)
    x, y, z = moment.position[3]
    camera = Camera((x, y - 8.0, z), (x, y, z))
    picture = renderer.picture(camera, moment)
    assert near(picture[86:95, 156:165], LIGHT.flying, 60) > 5


def test_a_camera_in_the_middle_of_the_field_draws(renderer, recording):
    moment = moment_at(recording, 2.0)
    picture = renderer.picture(chasing(moment.position[2], 0.3), moment, chosen=2)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


def test_every_kernel_is_compiled_for_one_kind_of_arrays(renderer, recording):
    for seconds, chosen in ((1.0, None), (4.72, 2)):
        renderer.picture(overview(), moment_at(recording, seconds), chosen=chosen)
    assert [len(kernel.signatures) for kernel in (fill_triangles, draw_lines, shrink)] == [1, 1, 1]


def test_an_outcome_has_its_colour_only_after_it_happened(renderer, recording):
    before, after = (
        renderer.picture(overview(), moment_at(recording, seconds)) for seconds in (1.0, 4.72)
    )
    for outcome in set(recording.outcome):
        colour = getattr(LIGHT, outcome)
        assert near(after, colour, 12) > near(before, colour, 12), outcome


def test_a_dark_picture_is_dark(recording):
    renderer = Renderer(
        recording.boxes, recording.cylinders, width=160, height=90, palette=DARK, smooth=1
    )
    assert renderer.picture(overview(), moment_at(recording, 1.0)).mean() < 80


def test_a_world_without_anything_can_be_drawn():
    empty = made_recording(flights=1, moving=0, boxes=np.zeros((0, 6), np.float32))
    renderer = Renderer(empty.boxes, np.zeros((0, 5), np.float32), width=64, height=64)
    assert renderer.picture(overview(1.0), moment_at(empty, 0.5)).any()


def test_a_moment_lies_between_two_frames(recording):
    half = moment_at(recording, 0.12)
    expected = (recording.position[1] + recording.position[2]) / 2
    assert np.abs(half.position - expected).max() < 1e-5
    assert half.state == [FLYING] * 8


def test_a_moment_after_the_end_stays_at_the_end(recording):
    late = moment_at(recording, 1000.0)
    assert late.state == list(recording.outcome)
    assert (late.position == recording.position[-1]).all()


def test_a_heading_turns_the_short_way_round():
    turning = np.full((60, 8), 3.1, np.float32)
    turning[1::2] = -3.1
    moment = moment_at(made_recording(yaw=turning), 0.04)
    assert abs(abs(float(moment.yaw[0])) - np.pi) < 0.05
