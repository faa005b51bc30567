"""Random maps against the numbers of the task's description and a slow version of it; boxes and
near-lists by property.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from navrl.sim.settings import NavigationSettings
from navrl.sim.worlds.terrain import boxes_of_heights, draw_map
from navrl.sim.worlds.world_pool import GRID, GRID_ORIGIN, _near_lists, build_pool


def draw_slowly(seed, count, widths=(4, 8), attempts=100_000):
    """The map as the task's description tells it, with NumPy's own choices; returns boxes, retries,
    vertices.
    """
    random = np.random.RandomState(seed)
    random.choice(1, p=[1.0])
    random.uniform(0.0, 1.0)
    edges, boxes, retries = [10.0, 15.0, 20.0, 40.0, 60.0], [], []
    raster = np.zeros((399, 399))
    for _ in range(count):
        kind = random.choice(4, p=[0.10, 0.15, 0.20, 0.55])
        height = random.uniform(edges[kind], edges[kind + 1])
        for attempt in range(attempts):
            width, length = random.choice(widths), random.choice(widths)
            x, y = random.choice(np.arange(0, 399, 4)), random.choice(np.arange(0, 399, 4))
            x, y = min(x, 399 - width), min(y, 399 - length)
            if all(keeps_distance(box, x, y, width, length) for box in boxes):
                retries.append(attempt)
                break
        else:
            retries.append(attempts)
        boxes.append((x, y, width, length, height))
        raster[x : x + width, y : y + length] = height
    return np.array(boxes).reshape(-1, 5), np.array(retries), np.pad(np.round(raster), 1)


def keeps_distance(earlier, x, y, width, length):
    dx, dy = abs(earlier[0] - x) - width, abs(earlier[1] - y) - length
    return (dx < 0 and dy < 0) or not 2 <= np.sqrt(dx * dx + dy * dy) <= 10


@pytest.fixture(scope="module")
def original():
    return draw_map(0, 350)


@pytest.mark.parametrize(("above", "percent"), [(0.0, 5.18), (1.0, 5.09), (2.0, 4.04)])
def test_map_0_covers_the_published_share_of_the_arena(original, above, percent):
    assert round(100 * float((original.cell_heights() > above + 1e-4).mean()), 2) == percent


def test_map_0_needs_two_retries_a_box_and_26_at_worst(original):
    assert original.retries.mean() == pytest.approx(2.0, abs=0.05)
    assert original.retries.max() == 26


def test_the_first_boxes_of_map_0_are_the_published_ones(original):
    expected = [(84, 144, 8, 8, 50.90), (260, 156, 4, 4, 21.13), (308, 288, 8, 8, 51.36)]
    np.testing.assert_allclose(original.boxes[:3], expected, atol=0.005)


def test_the_vertex_heights_of_map_0_add_up_to_the_published_sum(original):
    assert int(original.vertices.astype(np.int64).sum()) == 462756


def test_the_outer_ring_of_vertices_is_flat(original):
    v = original.vertices
    assert not v[[0, -1]].any()
    assert not v[:, [0, -1]].any()


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 350), (1, 120), (7, 40), (123456, 200), (2**32 - 5000, 25), (3, 1), (3, 0)],
)
def test_a_map_is_that_of_numpys_own_choices(seed, count):
    boxes, retries, vertices = draw_slowly(seed, count)
    ours = draw_map(seed, count)
    np.testing.assert_array_equal(ours.boxes[:, :4], boxes[:, :4])
    np.testing.assert_allclose(ours.boxes[:, 4], boxes[:, 4], rtol=1e-12)
    np.testing.assert_array_equal(ours.retries, retries)
    np.testing.assert_array_equal(ours.vertices, vertices)


def test_free_widths_are_numpys_choice_of_4_to_10_pixels():
    boxes, _, vertices = draw_slowly(5, 150, widths=np.arange(4, 11))
    ours = draw_map(5, 150, quantised_widths=False)
    np.testing.assert_array_equal(ours.boxes[:, :4], boxes[:, :4])
    np.testing.assert_array_equal(ours.vertices, vertices)
    assert set(ours.boxes[:, 2]) == set(range(4, 11))


@pytest.mark.parametrize("attempts", [1, 3])
def test_after_the_last_attempt_a_box_stays_where_it_fell(attempts):
    boxes, retries, _ = draw_slowly(2, 150, attempts=attempts)
    ours = draw_map(2, 150, attempts=attempts)
    np.testing.assert_array_equal(ours.boxes[:, :4], boxes[:, :4])
    np.testing.assert_array_equal(ours.retries, retries)
    assert ours.retries.max() == attempts


def test_every_box_that_was_placed_in_time_keeps_the_spacing_rule(original):
    for number, (x, y, width, length, _) in enumerate(original.boxes):
        assert all(
            keeps_distance(earlier, x, y, width, length) for earlier in original.boxes[:number]
        ), number


@pytest.mark.parametrize("pixels", [4, 8])
def test_a_lone_box_is_one_cell_narrower_than_its_pixels(pixels):
    seed = next(s for s in range(100) if draw_map(s, 1).boxes[0, 2] == pixels)
    (box,) = boxes_of_heights(draw_map(seed, 1).cell_heights())
    assert box[1] - box[0] == pytest.approx(0.1 * (pixels - 1), abs=1e-5)


def test_a_lone_box_stands_where_its_pixels_are():
    drawn = draw_map(0, 1)
    x, y, width, length, height = drawn.boxes[0]
    (box,) = boxes_of_heights(drawn.cell_heights())
    low_x, low_y = -20 + 0.1 * (x + 1), -20 + 0.1 * (y + 1)
    expected = [
        low_x,
        low_x + 0.1 * (width - 1),
        low_y,
        low_y + 0.1 * (length - 1),
        0.0,
        0.1 * round(height),
    ]
    np.testing.assert_allclose(box, expected, atol=1e-5)


def test_heights_lie_between_one_and_six_metres(original):
    heights = original.cell_heights()
    assert heights[heights > 0].min() >= 1.0 - 1e-6
    assert heights.max() <= 6.0 + 1e-6


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 60), attempts=st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_every_box_of_every_map_is_inside_the_raster(seed, count, attempts):
    boxes = draw_map(seed, count, attempts=attempts).boxes
    assert len(boxes) == count
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:4] <= 399).all()


height_fields = hnp.arrays(
    np.float32,
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    elements=st.sampled_from([0.0, 0.5, 1.25, 6.0]),
)


@given(heights=height_fields, half_width=st.sampled_from([1.0, 8.0, 20.0]))
@settings(max_examples=100, deadline=None)
def test_boxes_fill_a_height_field_exactly_and_never_overlap(heights, half_width):
    rows, columns = heights.shape
    rebuilt, covered = np.zeros_like(heights), np.zeros(heights.shape, int)
    x = (np.arange(rows) + 0.5) * 2 * half_width / rows - half_width
    y = (np.arange(columns) + 0.5) * 2 * half_width / columns - half_width
    for x0, x1, y0, y1, z0, z1 in boxes_of_heights(heights, half_width):
        inside = np.outer((x0 < x) & (x < x1), (y0 < y) & (y < y1))
        assert z0 == 0
        rebuilt[inside] = z1
        covered += inside
    np.testing.assert_array_equal(rebuilt, heights)
    np.testing.assert_array_equal(covered, heights > 0)


def test_equal_neighbours_become_one_box():
    assert len(boxes_of_heights(np.full((40, 40), 2.0, np.float32))) == 1


@st.composite
def shapes(draw):
    count = draw(st.integers(0, 12))
    table = np.zeros((count, 8), np.float32)
    for row in table:
        x, y = draw(st.floats(-25, 25, width=32)), draw(st.floats(-25, 25, width=32))
        row[:6] = (
            x,
            min(x + draw(st.floats(0.1, 6.0)), 25.5),
            y,
            min(y + draw(st.floats(0.1, 6.0)), 25.5),
            0,
            2,
        )
    return table


def gaps(table, low_x, high_x, low_y, high_y):
    """Squared horizontal distances of shapes from a rectangle."""
    dx = np.maximum(np.maximum(table[:, 0] - high_x, low_x - table[:, 1]), 0.0)
    dy = np.maximum(np.maximum(table[:, 2] - high_y, low_y - table[:, 3]), 0.0)
    return dx**2 + dy**2


@given(
    table=shapes(),
    reach=st.floats(0.5, 20.0),
    point=st.tuples(st.floats(-25.99, 25.99), st.floats(-25.99, 25.99)),
)
@settings(max_examples=100, deadline=None)
def test_whatever_is_within_range_of_a_point_is_in_the_list_of_its_cell(table, reach, point):
    start, rows = _near_lists(table, reach)
    i, j = (int(np.floor(value - GRID_ORIGIN)) for value in point)
    listed = rows[start[i * GRID + j] : start[i * GRID + j + 1]]
    x, y = point
    within = np.flatnonzero(gaps(table.astype(np.float64), x, x, y, y) <= (reach - 1e-5) ** 2)
    assert set(within) <= set(listed.tolist())
    assert len(set(listed.tolist())) == len(listed)


@pytest.mark.slow
@given(table=shapes(), reach=st.floats(0.5, 20.0))
@settings(max_examples=50, deadline=None)
def test_the_list_of_every_cell_begins_with_the_nearest(table, reach):
    start, rows = _near_lists(table, reach)
    for cell in np.flatnonzero(np.diff(start) > 1):
        x, y = GRID_ORIGIN + cell // GRID, GRID_ORIGIN + cell % GRID
        distances = gaps(
            table[rows[start[cell] : start[cell + 1]]].astype(np.float64), x, x + 1, y, y + 1
        )
        assert (np.diff(distances) >= -1e-4).all()


def pool_of(**overrides):
    return build_pool(
        NavigationSettings.of(env__num_worlds=4, env_dyn__num_obstacles=0, **overrides), seed=0
    )


def names(pool):
    return [world.name for world in pool.worlds]


def test_the_lists_of_each_world_hold_shapes_of_that_world_only():
    pool = pool_of(env__num_obstacles=30)
    first = np.cumsum([0, *(len(world.boxes) for world in pool.worlds)])
    for number in range(4):
        used = pool.near[pool.near_start[number, 0] : pool.near_start[number, -1]]
        assert first[number] <= used.min()
        assert used.max() < first[number + 1]


def test_every_world_is_drawn_with_a_seed_of_its_own():
    pool = pool_of(env__num_obstacles=20, env__map_seed=10)
    for number, world in enumerate(pool.worlds):
        np.testing.assert_array_equal(
            world.boxes, boxes_of_heights(draw_map(10 + number, 20).cell_heights())
        )


def test_all_worlds_have_one_map_where_that_is_asked_for():
    pool = pool_of(env__num_obstacles=20, env__same_map=True, env__map_seed=3)
    assert names(pool) == ["map 3"] * 4


def test_a_list_of_obstacle_counts_is_cycled_over_the_worlds():
    pool = pool_of(env__obstacles_per_world=[0, 40, 90])
    expected = [
        len(boxes_of_heights(draw_map(1 + w, n).cell_heights()))
        for w, n in enumerate([0, 40, 90, 0])
    ]
    assert [len(world.boxes) for world in pool.worlds] == expected


def test_the_number_of_attempts_is_that_of_the_settings():
    pool = pool_of(env__num_obstacles=300, env__placement_attempts=1)
    np.testing.assert_array_equal(
        pool.worlds[0].boxes, boxes_of_heights(draw_map(1, 300, attempts=1).cell_heights())
    )


def test_free_widths_are_used_where_the_settings_ask_for_them():
    pool = pool_of(env__num_obstacles=50, env__quantised_widths=False)
    expected = boxes_of_heights(
        draw_map(1, 50, quantised_widths=False, attempts=1000).cell_heights()
    )
    np.testing.assert_array_equal(pool.worlds[0].boxes, expected)
