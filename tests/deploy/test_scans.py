"""Hits of any sensor become the ranges that the policy was trained on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.deploy.node.scans import (
    ScanLayout,
    bin_hits,
    from_level_scan,
    from_points,
    from_rays,
    from_scan,
)
from navrl.deploy.node_messages import LevelScan, Points, Rays, Scan, rotated, yaw_of
from navrl.errors import MessageError

LAYOUT = ScanLayout(36, (-10.0, 0.0, 10.0, 20.0), 4.0)
UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])


def directions(bearing):
    azimuth = bearing + np.arange(36) * LAYOUT.step
    elevation = np.radians(LAYOUT.elevations)
    x = np.cos(azimuth)[:, None] * np.cos(elevation)
    y = np.sin(azimuth)[:, None] * np.cos(elevation)
    return np.stack([x, y, np.broadcast_to(np.sin(elevation), x.shape)], -1)


def ranges_drawn(seed):
    generator = np.random.default_rng(seed)
    return np.where(generator.random((36, 4)) < 0.5, generator.uniform(0.2, 3.9, (36, 4)), 4.0)


def turned(yaw):
    return np.array([math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)])


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), bearing=st.floats(-7, 7), yaw=st.floats(-3, 3))
def test_hits_along_the_rays_give_the_ranges_back_in_every_form(seed, bearing, yaw):
    ranges, position = ranges_drawn(seed), np.array([3.0, -2.0, 1.5])
    ends = (ranges[:, :, None] * directions(bearing)).reshape(-1, 3)
    assert bin_hits(LAYOUT, ends, bearing) == pytest.approx(ranges)
    world = Points(0.0, position + ends, "map")
    assert from_points(LAYOUT, world, position, turned(yaw), bearing, "map") == pytest.approx(
        ranges
    )
    body = Points(0.0, rotated(turned(-yaw), ends), "base_link")
    assert from_points(LAYOUT, body, position, turned(yaw), bearing, "map") == pytest.approx(ranges)
    assert from_rays(LAYOUT, Rays(0.0, position + ends), position) == pytest.approx(ranges)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), bearing=st.floats(-7, 7), steps=st.integers(-80, 80))
def test_a_scan_in_another_heading_is_turned_to_the_goal(seed, bearing, steps):
    ranges = ranges_drawn(seed)
    scan = Scan(0.0, np.roll(ranges, -steps, axis=0), bearing + steps * LAYOUT.step)
    found, first = from_scan(LAYOUT, scan, bearing)
    assert np.array_equal(found, ranges)
    assert math.remainder(first - bearing, 2 * math.pi) == pytest.approx(0.0, abs=1e-9)


def test_a_scan_within_half_a_step_keeps_its_own_bearing():
    ranges = ranges_drawn(1)
    found, first = from_scan(LAYOUT, Scan(0.0, ranges, 0.05), 0.0)
    assert np.array_equal(found, ranges)
    assert first == pytest.approx(0.05)


def test_the_nearest_hit_of_a_cell_counts_and_hits_beside_the_beams_do_not():
    ahead = np.array([[2.0, 0.0, 0.0], [1.0, 0.05, 0.0], [1.0, 0.0, 1.5], [0.0, 0.0, 1.0]])
    ranges = bin_hits(LAYOUT, ahead, 0.0)
    assert ranges[0, 1] == pytest.approx(math.hypot(1.0, 0.05))
    assert (ranges < 4.0).sum() == 1


def test_a_flat_scan_is_a_wall_over_all_beams():
    ranges = np.full(360, np.inf)
    ranges[90] = 2.0  # to the left of the body, which looks along y: behind, in the world
    scan = LevelScan(0.0, ranges, 0.0, math.radians(1.0))
    found = from_level_scan(LAYOUT, scan, turned(math.pi / 2), 0.0)
    assert found[18] == pytest.approx(2.0 / np.cos(np.radians(LAYOUT.elevations)))
    assert (found < 4.0).sum() == 4


def test_clouds_mark_misses_with_nan():
    cloud = Points(0.0, np.array([[np.nan, 0, 0], [1.0, 0.0, 0.0]]), "map")
    found = from_points(LAYOUT, cloud, np.zeros(3), UPRIGHT, 0.0, "map")
    assert (found < 4.0).sum() == 1


def test_a_wrong_number_of_rays_is_refused():
    with pytest.raises(MessageError, match="expected 144: 36 azimuths x 4 beams"):
        from_rays(LAYOUT, Rays(0.0, np.zeros((100, 3))), np.zeros(3))


def test_the_yaw_of_an_attitude():
    assert yaw_of(turned(2.5)) == pytest.approx(2.5)
