"""The shield: commands stay within limits, clean ones pass unchanged, contacts are avoided."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.deploy.qp_shield import QpShield
from navrl.deploy.shield import (
    INVALID,
    NO_CLEAN_VELOCITY,
    REASONS,
    Shield,
    ShieldCounts,
    ShieldSettings,
)
from navrl.deploy.shield_kernel import filter_velocities
from navrl.deploy.shielded_pilot import shielded
from navrl.errors import ActionError, ConfigError
from navrl.evaluation.flights import evaluate
from navrl.evaluation.policy_lookup import Policy
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

FREE = np.full((1, 36, 4), 4.0)
HERE = np.array([[0.0, 0.0, 1.5]])
REST = np.zeros((1, 3))


def obstacle(x, y, vx=0.0, vy=0.0, width=0.5, height=5.0, z=2.5):
    return np.array([[[x, y, z, vx, vy, 0.0, width, height]]])


def scan_of(points, at, bearing=0.0, radius=0.3):
    """Return the ranges, (1, 36, 4), of level rays to upright cylinders; other beams see nothing."""
    ranges = FREE.copy()
    for azimuth in range(36):
        angle = bearing + math.radians(10 * azimuth)
        direction = np.array([math.cos(angle), math.sin(angle)])
        for x, y in points:
            offset = np.array([x, y]) - at[:2]
            along = offset @ direction
            beside = abs(offset[0] * direction[1] - offset[1] * direction[0])
            if along > 0 and beside < radius:
                hit = along - math.sqrt(radius**2 - beside**2)
                ranges[0, azimuth, 1] = min(ranges[0, azimuth, 1], max(hit, 0.0))
    return ranges


def test_a_command_passes_unchanged_where_nothing_is_near():
    desired = np.array([[1.5, -0.5, 0.2]])
    result = Shield()(desired, position=HERE, velocity=desired, lidar=FREE)
    assert np.array_equal(result.velocity, desired)
    assert not result.intervened.any()
    assert result.reasons() == ["clean"]


def test_the_kernel_is_compiled_once_for_one_robot_and_for_many_and_for_any_array():
    shield, many = Shield(), np.zeros((2, 3))
    shield(many, position=many, velocity=many, lidar=FREE.repeat(2, 0), bearing=np.zeros(2))
    before = filter_velocities.signatures
    shield(HERE[0], position=HERE[0], velocity=REST[0], lidar=FREE[0], goal=[3, 0, 1])
    read_only = np.broadcast_to(FREE[:, :1], FREE.shape)
    shield(many.T.copy().T, position=HERE, velocity=REST, lidar=read_only.repeat(2, 0))
    shield(REST, position=HERE, velocity=REST, lidar=read_only, obstacles=obstacle(3, 0))
    assert filter_velocities.signatures == before


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_commands_stay_within_the_limits_whatever_is_around(data):
    number = st.floats(-30, 30, allow_nan=False, width=32)
    vector = st.lists(number, min_size=3, max_size=3)
    shield = Shield(ShieldSettings(speed_limit=1.2, acceleration_limit=4.0, lag=0.45))
    seed = data.draw(st.integers(0, 2**31))
    generator = np.random.default_rng(seed)
    velocity = np.clip([data.draw(vector)], -1.2, 1.2)
    result = shield(
        [data.draw(vector)],
        position=[[0, 0, data.draw(st.floats(0.2, 4.0))]],
        velocity=velocity,
        lidar=generator.uniform(0.0, 4.0, (1, 36, 4)),
        obstacles=generator.uniform(-4, 4, (1, 6, 8)),
    )
    assert np.abs(result.velocity).max() <= 1.2 + 1e-9
    assert np.linalg.norm(result.velocity - velocity) <= 4.0 * 0.45 + 1e-9


def test_obstacles_that_are_out_of_reach_change_nothing():
    generator = np.random.default_rng(3)
    near = np.concatenate([obstacle(2.0, 0.3, vx=-1.0), obstacle(1.0, -2.0, vy=1.0)], 1)
    far = np.concatenate([obstacle(20 + 0.5 * n, (-1) ** n * n, vx=-1.0) for n in range(60)], 1)
    rows = np.concatenate([near, far], 1)[:, generator.permutation(62)]
    words = {"position": HERE, "velocity": [[1.5, 0.0, 0.0]], "lidar": FREE}
    alone = Shield()([[2.0, 0.0, 0.0]], obstacles=near, **words)
    among = Shield()([[2.0, 0.0, 0.0]], obstacles=rows, **words)
    assert alone.intervened.all()
    assert np.array_equal(alone.velocity, among.velocity)


def test_the_order_of_the_tracks_does_not_matter():
    generator = np.random.default_rng(0)
    tracks = generator.uniform(-3, 3, (8, 6, 8))
    tracks[..., 2] = 1.5
    tracks[..., 5] = 0.0
    tracks[..., 6:] = generator.uniform(0.2, 1.0, (8, 6, 2))
    state = {"position": HERE, "velocity": REST, "lidar": np.repeat(FREE, 8, 0)}
    desired = generator.uniform(-2, 2, (8, 3))
    one = Shield()(desired, obstacles=tracks, **state)
    other = Shield()(desired, obstacles=tracks[:, ::-1], **state)
    assert one.intervened.any()
    assert np.array_equal(one.velocity, other.velocity)


def test_a_turned_scan_with_its_bearing_gives_the_same_command():
    generator = np.random.default_rng(1)
    scan = generator.uniform(0.6, 4.0, (4, 36, 4))
    desired = generator.uniform(-2, 2, (4, 3))
    one = Shield()(desired, position=HERE, velocity=REST, lidar=scan)
    turned = Shield()(
        desired, position=HERE, velocity=REST, lidar=np.roll(scan, -9, axis=1), bearing=math.pi / 2
    )
    assert one.intervened.any()
    assert np.allclose(one.velocity, turned.velocity)


def test_the_order_of_the_beams_does_not_matter():
    generator = np.random.default_rng(2)
    scan = generator.uniform(0.6, 4.0, (4, 36, 4))
    desired = generator.uniform(-2, 2, (4, 3))
    order = [2, 0, 3, 1]
    usual = ShieldSettings()
    mixed = ShieldSettings(elevations=tuple(usual.elevations[beam] for beam in order))
    one = Shield(usual)(desired, position=HERE, velocity=REST, lidar=scan)
    other = Shield(mixed)(desired, position=HERE, velocity=REST, lidar=scan[:, :, order])
    assert one.intervened.any()
    assert np.array_equal(one.velocity, other.velocity)


@pytest.mark.parametrize("name", ["desired", "position", "velocity", "lidar", "obstacles"])
def test_input_that_is_not_finite_stops_the_robot_and_only_that_one(name):
    inputs = {
        "desired": np.ones((2, 3)),
        "position": np.repeat(HERE, 2, 0),
        "velocity": np.zeros((2, 3)),
        "lidar": np.repeat(FREE, 2, 0),
        "obstacles": np.repeat(obstacle(3, 3), 2, 0),
    }
    inputs[name][0].flat[0] = np.nan
    desired = inputs.pop("desired")
    result = Shield()(desired, **inputs)
    assert result.velocity[0].tolist() == [0, 0, 0]
    assert result.reason[0] == INVALID
    assert result.velocity[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("age", [0.51, math.nan, -0.1, math.inf])
def test_old_input_stops_the_robot(age):
    result = Shield(max_age=0.5)([1, 0, 0], position=HERE, velocity=REST, lidar=FREE[0], age=age)
    assert result.velocity.tolist() == [[0, 0, 0]]
    assert result.intervened.all()
    assert result.reasons() == ["invalid input"]


def test_a_hit_on_the_ground_is_no_obstacle():
    scan = FREE.copy()
    scan[0, :, 0] = 0.5 / math.sin(math.radians(10))  # the ground, seen from half a metre
    desired = np.array([[2.0, 0.0, 0.0]])
    result = Shield()(desired, position=[[0, 0, 0.5]], velocity=REST, lidar=scan)
    assert np.array_equal(result.velocity, desired)


@pytest.mark.parametrize(("height", "climb"), [(0.5, -2.0), (3.7, 2.0)])
def test_a_command_out_of_the_allowed_heights_is_flattened(height, climb):
    result = Shield()([0, 0, climb], position=[[0, 0, height]], velocity=REST, lidar=FREE)
    assert abs(result.velocity[0, 2]) < abs(climb)
    assert result.reasons() == ["height limit"]


def test_a_pillar_is_passed_beside_and_a_low_wall_may_be_passed_above():
    pillar = scan_of([(1.5, 0.0)], HERE[0])
    pillar[0, :, :] = pillar[0, :, 1:2]  # all beams hit it
    ahead = {"position": HERE, "velocity": [[1.8, 0.0, 0.0]]}
    beside = Shield()([2, 0, 0], lidar=pillar, **ahead)
    assert beside.reasons() == ["static obstacle"]
    assert abs(beside.velocity[0, 1]) > 0.2
    low = FREE.copy()
    low[0, :, 0] = 3.5  # only the lowest beam hits: the wall ends below the robot
    assert Shield()([2, 0, 0.8], lidar=low, **ahead).reasons() == ["clean"]
    assert Shield()([2, 0, -0.8], lidar=low, **ahead).intervened.all()


def test_a_pillar_that_the_present_velocity_leads_into_is_not_clean():
    """The path bends into the command only with time: the corner that it cuts counts."""
    pillar = scan_of([(0.8, 0.0)], HERE[0])
    result = Shield()([0, 2, 0], position=HERE, velocity=REST, lidar=pillar)
    assert not result.intervened.any()
    result = Shield()([0, 2, 0], position=HERE, velocity=[[1.8, 0.0, 0.0]], lidar=pillar)
    assert result.intervened.all()


def test_room_is_left_for_an_obstacle_that_may_turn():
    beside = obstacle(2.0, 0.95)  # 0.7 m from its surface to the line of flight
    state = {"position": HERE, "velocity": [[2.0, 0.0, 0.0]], "lidar": FREE}
    result = Shield()([2, 0, 0], obstacles=beside, **state)
    assert result.reasons() == ["moving obstacle"]
    assert result.velocity[0, 1] < 0
    careless = Shield(ShieldSettings(turning_cost=0.0))
    assert not careless([2, 0, 0], obstacles=beside, **state).intervened.any()


def test_a_robot_that_cannot_climb_is_not_told_to():
    shield = Shield(ShieldSettings(climb_limit=0.0, lowest=0.0))
    floating = obstacle(1.0, 0.0, height=0.5, z=1.5)
    result = shield([2, 0, 1], position=HERE, velocity=REST, lidar=FREE, obstacles=floating)
    assert result.intervened.all()
    assert result.velocity[0, 2] == 0


def test_an_obstacle_that_comes_head_on_is_passed_beside():
    shield, position, velocity = Shield(), HERE.copy(), REST.copy()
    other = np.array([6.0, 0.0])
    nearest = np.inf
    for _ in range(100):
        tracks = obstacle(*other, vx=-1.0)
        result = shield(
            [2, 0, 0], position=position, velocity=velocity, lidar=FREE, obstacles=tracks
        )
        velocity = velocity + (result.velocity - velocity) * 0.08 / 0.45
        position = position + 0.08 * velocity
        other = other + 0.08 * np.array([-1.0, 0.0])
        nearest = min(nearest, np.linalg.norm(position[0, :2] - other))
    assert nearest > 0.25 + 0.3  # half its width and the robot's radius
    assert position[0, 0] > 5  # it did not just stop


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_robot_without_lag_never_comes_nearer_to_a_standing_world_than_its_radius(seed):
    generator = np.random.default_rng(seed)
    rules = ShieldSettings(lag=0.0, body_radius=0.36, static_radius=0.4, static_growth=0.0)
    shield = Shield(rules)
    pillars = generator.uniform(-6, 6, (12, 2))
    pillars = pillars[np.linalg.norm(pillars, axis=1) > 1.5]
    position, velocity, clean = HERE.copy(), REST.copy(), True
    for _ in range(120):
        desired = [*generator.uniform(-2, 2, 2), 0.0]
        scan = scan_of(pillars, position[0])
        result = shield(desired, position=position, velocity=velocity, lidar=scan)
        clean = clean and result.reason[0] != NO_CLEAN_VELOCITY
        velocity = result.velocity
        position = position + 0.04 * velocity
        seen = scan_of(pillars, position[0]).min()
        assert not clean or seen > 0.4 - 0.02


def test_a_surrounded_robot_stands_still_and_says_so_if_it_cannot_stop_in_time():
    scan = np.full((1, 36, 4), 0.4)
    resting = Shield()([1, 0, 0], position=HERE, velocity=REST, lidar=scan)
    assert resting.reasons() == ["static obstacle"]
    assert np.abs(resting.velocity[0, :2]).max() < 1e-9
    fast = Shield()([1, 0, 0], position=HERE, velocity=[[2.0, 0.0, 0.0]], lidar=scan)
    assert fast.reasons() == ["no clean velocity"]
    assert fast.velocity[0, 0] < 0


def test_an_obstacle_behind_the_goal_does_not_keep_the_robot_from_it():
    wall = scan_of([(1.6, 0.0)], HERE[0])
    state = {"position": HERE, "velocity": REST, "lidar": wall}
    assert Shield()([2, 0, 0], **state).intervened.all()
    assert not Shield()([2, 0, 0], goal=[0.6, 0, 1.5], **state).intervened.any()


def test_counts_follow_the_robots_that_are_named():
    counts = ShieldCounts()
    result = Shield()(
        np.full((3, 3), [2.0, 0, 0]),
        position=HERE,
        velocity=np.zeros((3, 3)),
        lidar=np.repeat(FREE, 3, 0),
        obstacles=np.concatenate([obstacle(1, 0), obstacle(1, 0), obstacle(-3, 0)]),
    )
    assert result.intervened.tolist() == [True, True, False]
    counts.add(result, np.array([True, False, True]))
    assert (counts.decisions, counts.interventions) == (2, 1)
    assert counts.reasons["moving obstacle"] == 1
    assert set(counts.reasons) == set(REASONS[1:])


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("lidar", np.zeros((1, 36, 3)), "azimuths, 4"),
        ("velocity", np.zeros((2, 3)), "velocity has the shape"),
        ("obstacles", np.zeros((1, 5, 7)), "K, 8"),
        ("goal", np.zeros(2), "goal has the shape"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_by_name(name, value, told):
    inputs = {"position": HERE, "velocity": REST, "lidar": FREE} | {name: value}
    with pytest.raises(ActionError, match=told):
        Shield()([1, 0, 0], **inputs)


@pytest.mark.parametrize(
    "values",
    [
        {"lag": -1.0},
        {"lag": math.inf},
        {"speed_limit": 0.0},
        {"elevations": (95.0,)},
        {"lowest": 5},
    ],
)
def test_impossible_settings_are_refused(values):
    with pytest.raises(ConfigError):
        Shield(ShieldSettings(**values))


@pytest.mark.slow
def test_the_shield_brings_more_drones_across_the_field_and_says_how_often_it_acted():
    pilot, plain = straight_line, fly(straight_line)
    policy, shielded_pilot = shielded(Policy("straight line", pilot))
    behind = fly(policy)
    assert behind > plain + 0.2
    counts = shielded_pilot.counts
    assert 0 < counts.interventions <= counts.decisions
    assert counts.reasons["static obstacle"] > 0
    assert counts.reasons["moving obstacle"] > 0


def straight_line(observation):
    return 2.0 * observation["state"][:, :3]


def fly(act):
    task = NavigationSettings.of(
        env__num_envs=64, env__num_worlds=8, env__layout="navrl_eval", env__action_repeat=5
    )
    return evaluate(NavigationEnv(task, seed=1, auto_reset=False), act).rate("success_100")[0]


def test_the_convex_program_is_the_identity_in_the_open_and_turns_away_from_what_is_near():
    shield = QpShield()
    desired = np.array([[1.5, -0.5, 0.2]])
    free = shield(desired, position=HERE, velocity=desired, lidar=FREE)
    assert free.velocity == pytest.approx(desired)
    assert free.reasons() == ["clean"]
    ahead = np.array([[1.5, 0.0, 0.0]])
    wall = scan_of([(1.2, 0.0)], HERE[0])
    static = shield(ahead, position=HERE, velocity=ahead, lidar=wall)
    assert static.reasons() == ["static obstacle"]
    assert static.velocity[0, 0] < 1.5
    met = shield(
        ahead, position=HERE, velocity=ahead, lidar=FREE, obstacles=obstacle(2.5, 0.1, vx=-1.0)
    )
    assert met.reasons() == ["moving obstacle"]
    assert np.abs(met.velocity).max() <= 2.0 + 1e-9
    broken = shield(ahead * np.nan, position=HERE, velocity=ahead, lidar=wall)
    assert broken.reason[0] == INVALID
    assert not broken.velocity.any()
