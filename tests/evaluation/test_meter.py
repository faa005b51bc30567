"""SPL, path length, effort and time ratio on flights made by hand."""

from __future__ import annotations

import math

import pytest
import torch

from navrl.evaluation.meter import FlightMeter, spl, time_ratio


def measured(track: torch.Tensor, target: list[float], seconds: float = 0.08, flying=None):
    """Return the measures of one flight along a track (T, 3) whose velocities are differences."""
    velocity = torch.diff(track, dim=0, append=(2 * track[-1] - track[-2])[None]) / seconds
    meter = FlightMeter(track[:1], velocity[:1], torch.tensor([target]), seconds)
    for place in range(1, len(track)):
        on = torch.tensor([flying is None or place < flying])
        meter.update(track[place : place + 1], velocity[place : place + 1], on)
    return {name: value.item() for name, value in meter.measures().items()}


def straight(length: float, steps: int = 100) -> torch.Tensor:
    along = torch.linspace(0, length, steps + 1)
    return torch.stack([along, torch.zeros_like(along), torch.ones_like(along)], 1)


def test_a_straight_flight_has_its_length_and_no_effort():
    found = measured(straight(10.0), [100.0, 0.0, 1.0])
    assert found["path_to_goal"] == pytest.approx(10.0, rel=1e-5)
    assert found["effort"] == pytest.approx(0.0, abs=2e-3)


def test_the_path_ends_one_metre_before_the_goal():
    found = measured(straight(12.0, steps=1200), [10.0, 0.0, 1.0])
    assert found["path_to_goal"] == pytest.approx(9.0, abs=0.02)


def test_a_circle_costs_its_centripetal_acceleration():
    radius, speed, seconds = 4.0, 2.0, 0.08
    angle = torch.arange(200) * speed * seconds / radius
    track = torch.stack([radius * angle.cos(), radius * angle.sin(), torch.ones(200)], 1)
    found = measured(track, [100.0, 0.0, 1.0], seconds)
    assert found["effort"] == pytest.approx(speed**2 / radius, rel=1e-2)


@pytest.mark.parametrize("seconds", [0.016, 0.04, 0.08])
def test_effort_does_not_depend_on_the_decision_rate(seconds):
    time = torch.arange(round(16 / seconds)) * seconds
    track = torch.stack([time, 0.5 * (2 * time).sin(), torch.ones_like(time)], 1)
    # |y''| = 2 |sin 2t|: 4 / pi on average
    assert measured(track, [99.0, 0.0, 1.0], seconds)["effort"] == pytest.approx(
        4 / math.pi, rel=0.02
    )


def test_nothing_is_counted_after_the_end_of_a_flight():
    track = straight(10.0)
    stopped = torch.cat([track, track[-1:].expand(50, 3)])
    found = measured(stopped, [100.0, 0.0, 1.0], flying=len(track) - 1)
    assert found["effort"] == pytest.approx(0.0, abs=2e-3)


def test_a_flight_shorter_than_one_interval_has_no_effort():
    assert math.isnan(measured(straight(1.0, steps=2), [9.0, 0, 1], 0.016)["effort"])


def test_spl_is_one_for_a_straight_success_half_for_twice_the_way_and_zero_for_a_failure():
    success = torch.tensor([1.0, 1.0, 0.0, 1.0])
    distance = torch.full((4,), 21.0)
    path = torch.tensor([20.0, 40.0, 20.0, 19.5])
    assert spl(success, distance, path).tolist() == pytest.approx([1.0, 0.5, 0.0, 1.0])


def test_time_ratio_is_over_the_straight_flight_at_the_limit():
    found = time_ratio(torch.tensor([12.0, 3.0]), torch.tensor([21.0, 1.5]), speed=2.0)
    assert found[0] == pytest.approx(1.2)
    assert math.isnan(found[1])
