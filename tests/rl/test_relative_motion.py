"""The relative motion of obstacles is that of two points that keep their velocities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from navrl.navigation_observation import OBSTACLE, STATE, navigation_layout
from navrl.rl.mirror import Mirror
from navrl.rl.networks.relative_motion import HORIZON, RELATIVE, relative_motion
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

metres = st.floats(-4, 4, allow_subnormal=False)
speeds = st.floats(-2, 2, allow_subnormal=False)
vectors = st.tuples(metres, metres, metres)
velocities = st.tuples(speeds, speeds, speeds)


def observed(offset, velocity, width=0.5, floats=True):
    """Return an obstacle as the simulator observes it."""
    offset = np.array(offset, np.float32) * (1, 1, floats)
    distance = max(float(np.linalg.norm(offset)), 1e-6)
    flat = float(np.linalg.norm(offset[:2]))
    row = [*(offset / distance), flat, offset[2], *velocity, width * 4 - 1, float(floats)]
    return torch.tensor(row, dtype=torch.float32)


def related(offset, velocity, own, **options):
    obstacles = observed(offset, velocity, **options)[None, None]
    state = torch.zeros(1, len(STATE))
    state[0, STATE.index("velocity_x") :] = torch.tensor(own)
    return dict(zip(RELATIVE, relative_motion(obstacles, state)[0, 0].tolist(), strict=True))


@given(vectors, velocities, velocities)
def test_no_moment_until_the_horizon_is_nearer_than_the_closest_approach(offset, velocity, own):
    if np.linalg.norm(offset) < 0.1:
        return
    found = related(offset, velocity, own)
    relative = np.subtract(velocity, own)
    times = np.linspace(0, HORIZON, 301)[:, None]
    nearest = np.linalg.norm(np.array(offset) + relative * times, axis=1).min()
    # SLOWEST holds the time back: the closest point is off by 0.15 m at most, at 0.1 m/s
    assert found["approach_gap"] + 0.25 == pytest.approx(nearest, abs=0.16)
    assert 0 <= found["approach_time"] <= HORIZON


def test_an_obstacle_that_comes_straight_at_the_drone_meets_it():
    found = related((3, 0, 0), (-1, 0, 0), (1, 0, 0), width=1.0)
    assert found["relative_velocity_x"] == pytest.approx(-2)
    assert found["approach_time"] == pytest.approx(1.5, abs=0.01)
    assert found["approach_gap"] == pytest.approx(-0.5, abs=0.02)


def test_one_that_leaves_is_closest_now():
    found = related((2, 1, 0), (1, 0, 0), (0, 0, 0))
    assert found["approach_time"] == 0
    assert (found["approach_x"], found["approach_y"]) == pytest.approx((2, 1))


def test_climbing_does_not_avoid_one_that_reaches_from_the_ground_up():
    pillar = related((3, 0, 0), (-1, 0, 0), (1, 0, 2), floats=False)
    ball = related((3, 0, 0), (-1, 0, 0), (1, 0, 2), floats=True)
    assert pillar["relative_velocity_z"] == pillar["approach_z"] == 0
    assert pillar["approach_gap"] < 0 < ball["approach_gap"]


def test_absent_obstacles_have_zeros():
    state = torch.ones(2, len(STATE))
    assert not relative_motion(torch.zeros(2, 3, len(OBSTACLE)), state).any()


def test_a_reflected_observation_has_the_reflected_motion():
    settings = NavigationSettings.of(env__num_envs=64, env__num_worlds=4, env_dyn__num_obstacles=80)
    env = NavigationEnv(settings, seed=3)
    observation = env.reset()
    for _ in range(100):  # from the edge to where obstacles are
        observation = env.step(torch.tensor([2.0, 0.0, 0.0]).repeat(64, 1)).observation
    layout = navigation_layout()
    rows = torch.zeros(64, layout.width)
    layout.pack({name: observation[name] for name in layout.shapes}, rows)
    signs = torch.tensor([-1.0 if name.endswith("_y") else 1.0 for name in RELATIVE])

    def motion(rows):
        parts = layout.split(rows)
        return relative_motion(parts["dynamic_obstacle"][:, 0], parts["state"])

    found = motion(rows)
    assert found.any()
    assert torch.allclose(motion(Mirror(layout).rows(rows)), found * signs, atol=1e-5)
