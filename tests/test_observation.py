"""Layouts of observations: parts found by name in packed rows, and the same after a file."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from navrl.errors import ConfigError
from navrl.navigation_observation import OBSTACLE, STATE, navigation_layout
from navrl.observation import KINDS, ObservationLayout, Part

lows = st.just(-math.inf) | st.floats(-9, 0, width=32)
highs = st.just(math.inf) | st.floats(0, 9, width=32)
shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@st.composite
def layouts(draw):
    names = draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, unique=True))
    parts = []
    for name in names:
        shape = draw(shapes)
        last = shape[-1] if shape else 1
        low, high = (
            draw(bounds | st.lists(bounds, min_size=last, max_size=last).map(tuple))
            for bounds in (lows, highs)
        )
        parts.append(Part(name, shape, draw(st.sampled_from(sorted(KINDS))), low, high))
    return ObservationLayout(tuple(parts), draw(st.integers(0, 5)))


@given(layouts())
def test_packed_parts_come_back_by_name(layout):
    values = {part.name: torch.randn(3, *(part.shape or (1,))) for part in layout.parts}
    found = layout.split(layout.pack(values, torch.zeros(3, layout.width)))
    assert list(found) == list(values)
    assert all(torch.equal(found[name], values[name]) for name in values)


@given(layouts())
def test_the_parts_of_a_row_neither_overlap_nor_leave_gaps(layout):
    ends = [0, *(place.stop for place in layout.slices.values())]
    assert [place.start for place in layout.slices.values()] == ends[:-1]
    assert ends[-1] + layout.padding == layout.width


@given(layouts())
def test_a_layout_is_the_same_after_json(layout):
    text = json.dumps(layout.as_list(), allow_nan=False)
    assert ObservationLayout.from_list(json.loads(text), padding=layout.padding) == layout


@given(layouts())
def test_a_layout_is_the_same_after_pickling(layout):
    assert layout.width > 0
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_split_returns_views():
    layout = navigation_layout(padding=5)
    rows = torch.zeros(2, layout.width)
    layout.split(rows)["state"][:] = 1
    assert rows.sum() == 2 * len(STATE)


def test_bounds_repeat_along_all_axes_but_the_last():
    low, high = Part("p", (2, 3), "set", (0.0, 1.0, 2.0), 9.0).bounds()
    assert low.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert np.array_equal(high, np.full((2, 3), 9))


def test_an_unknown_kind_is_refused_with_the_nearest_one():
    with pytest.raises(
        ConfigError, match=r"part 'p' is of the kind 'vectr'.*Did you mean 'vector'"
    ):
        Part("p", (3,), "vectr")


@pytest.mark.parametrize("shape", [(0,), (2, -1), (1.5,)])
def test_an_impossible_shape_is_refused(shape):
    with pytest.raises(ConfigError, match="positive whole numbers"):
        Part("p", shape)


def test_bounds_of_another_length_than_the_last_axis_are_refused():
    with pytest.raises(ConfigError, match="2 values of low; expected one, or 3"):
        Part("p", (3,), low=(0.0, 1.0))


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (math.nan, 0.0), (math.inf, math.inf)])
def test_bounds_that_hold_no_number_are_refused(bounds):
    with pytest.raises(ConfigError, match="part 'p' has bounds from"):
        Part("p", (3,), "vector", *bounds)


def test_the_leading_parts_of_a_row_are_a_layout_of_their_own():
    layout = navigation_layout(padding=3)
    leading = layout.leading("lidar", "dynamic_obstacle")
    assert leading.width == 194
    assert leading.slices == {name: layout.slices[name] for name in leading.shapes}


def test_parts_that_a_row_does_not_begin_with_are_refused():
    with pytest.raises(ConfigError, match="begins with lidar; expected state"):
        navigation_layout().leading("state")


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="distinct names"):
        ObservationLayout((Part("p", (3,)), Part("p", (2,))))


def test_a_missing_part_is_an_error_that_names_the_nearest():
    with pytest.raises(KeyError, match="Did you mean 'lidar'"):
        navigation_layout()["lidr"]


def test_the_navigation_row_is_scan_obstacles_state_direction():
    layout = navigation_layout(36, 4, 5)
    assert {part.name: (part.shape, part.kind) for part in layout.parts} == {
        "lidar": ((1, 36, 4), "scan"),
        "dynamic_obstacle": ((1, 5, 10), "set"),
        "state": ((8,), "vector"),
        "direction": ((1, 3), "vector"),
    }
    assert layout.width == 144 + 50 + 8 + 3


def test_every_number_of_the_navigation_state_and_of_an_obstacle_has_a_name_and_a_unit():
    layout = navigation_layout()
    assert layout["state"].features == STATE
    assert layout["dynamic_obstacle"].features == OBSTACLE
    for part in (layout["state"], layout["dynamic_obstacle"]):
        assert len(part.unit) == part.shape[-1]
    assert math.isinf(layout["lidar"].high)
    assert navigation_layout(lidar_range=4.0)["lidar"].high == 4.0
