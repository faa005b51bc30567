"""Mistakes of a caller: a clear error by name, and nothing has changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navrl.errors import ActionError, ConfigError, NavrlError
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

SMALL = {
    "env__num_envs": 8,
    "env__num_worlds": 2,
    "env__num_obstacles": 20,
    "env_dyn__num_obstacles": 16,
}


def same(ours, theirs):
    return all(
        torch.equal(value, theirs[key]) if isinstance(value, torch.Tensor) else value == theirs[key]
        for key, value in ours.items()
    )


@pytest.fixture(scope="module")
def made():
    return NavigationEnv(NavigationSettings.of(**SMALL))


@pytest.fixture
def env(made):
    """An environment in the middle of a flight, which must be the same after the test."""
    made.reset(seed=0)
    made.step(torch.ones(8, 3))
    before = made.state_dict()
    yield made
    assert same(made.state_dict(), before)


# Settings

WRONG_VALUES = {
    "env.num_envs": [0, -1, 2**20 + 1],
    "env.num_worlds": [0, -4, 4097],
    "env.num_obstacles": [-1, 20_001],
    "env.obstacles_per_world": [[-1], [3, 20_001]],
    "env.map_seed": [-1, 2**32],
    "env.world_files": [[3]],
    "env.placement_attempts": [0, 100_001],
    "env.layout": ["", "Random", "eval"],
    "env.max_episode_length": [0, -5, 1_000_001],
    "env.action_repeat": [0, 65],
    "env.action_frame": ["body"],
    "env.action_limit": [0.0, -2.0, math.nan, math.inf],
    "env.goal_radius": [0.0, -1.0, math.nan, 11.0],
    "env.min_trip_length": [-0.1, math.nan, 41.0],
    "env.crossing_share": [-0.1, 1.5, math.nan],
    "env.midway_share": [-0.1, 1.5, math.nan],
    "env.collision": ["box"],
    "env.collision_radius": [0.0, math.nan, 2.5],
    "env.num_observed": [0, 33],
    "env_dyn.num_obstacles": [-8, 4097],
    "env_dyn.obstacles_per_world": [[8, -8], [5000]],
    "env_dyn.vel_range": [
        [],
        [1.0],
        [1.5, 0.5],
        [-1.0, 1.0],
        [0.5, 51.0],
        [math.nan, 1.0],
        [0.5, math.nan],
        [0.1, 0.2, 0.3],
    ],
    "env_dyn.local_range": [
        [5.0, 5.0],
        [5.0, 5.0, 0.0],
        [5.0, -1.0, 4.0],
        [5.0, 5.0, math.nan],
        [41.0, 5.0, 4.0],
    ],
    "sensor.lidar_range": [0.0, -4.0, math.nan, 21.0],
    "sensor.lidar_vfov": [
        [20.0],
        [20.0, -10.0],
        [-90.0, 20.0],
        [-10.0, 90.0],
        [math.nan, 20.0],
        [5.0, 5.0],
    ],
    "sensor.lidar_vbeams": [0, -1, 65],
    "sensor.lidar_hres": [0.0, 0.5, 7.0, 200.0, -10.0, math.nan],
    "sensor.noise": [-0.1, 1.5, math.nan],
    "sensor.dropout": [-0.1, 1.5, math.nan],
    "sensor.detection_dropout": [-0.1, 1.5, math.nan],
    "sensor.detection_noise": [-0.1, 11.0, math.nan],
    "sensor.position_noise": [-0.1, 11.0, math.nan],
    "sensor.observation_delay": [-1, 33],
    "sensor.perfect_share": [-0.1, 1.1, math.nan],
    "drone.model_name": ["crazyflie"],
    "drone.time_constant": [0.0, -1.0, math.nan, 11.0],
    "env.collision_height": [-0.1, 5.1, math.nan],
    "sensor.lidar_hfov": [0.0, 361.0, math.nan],
    "sensor.lidar_rate": [-1.0, 1001.0, math.nan],
    "sensor.detection_range": [-1.0, 41.0, math.nan],
    "drone.damping": [-0.1, 11.0, math.nan],
    "drone.robot": ["", "a b", "x" * 61],
    "drone.max_acceleration": [-1.0, 1001.0, math.nan],
    "drone.vertical_speed": [-1.0, 51.0, math.nan],
    "drone.mass": [0.0, -1.0, 1001.0, math.nan],
    "drone.inertia": [[0.01, 0.01], [0.01, 0.01, 0.0], [0.01, 0.01, math.nan]],
    "drone.arm": [0.0, 11.0, math.nan],
    "drone.rotor_thrust": [0.0, 10_001.0, math.nan],
    "drone.rotor_moment": [0.0, 1.1, math.nan],
    "drone.rotor_time_constant": [0.0, 1.1, math.nan],
    "drone.velocity_gain": [0.0, 101.0, math.nan],
    "drone.attitude_gain": [[100.0], [100.0, 100.0, -1.0], [100.0, 100.0, math.inf]],
    "drone.rate_gain": [[14.0], [14.0, 14.0, 0.0], [14.0, 14.0, math.nan]],
    "drone.mass_variation": [-0.1, 0.6, math.nan],
    "drone.thrust_variation": [-0.1, 0.6, math.nan],
    "drone.wind": [-1.0, 21.0, math.nan],
    "drone.delay": [-1, 33],
    "reward.log_reference": [0.0, -1.0, 101.0, math.nan],
    "sim.dt": [0.0, -0.016, 0.06, math.nan],
    "sim.gravity": [-1.0, 31.0, math.nan],
    "sim.num_threads": [-1, 1025],
}
WEIGHTS = ["progress", "alive", "static", "dynamic", "smoothness", "height", "goal", "collision"]
TRUTHS = [
    "env.planar",
    "env.quantised_widths",
    "env.same_map",
    "env.change_world_at_reset",
    "env.goal_ends_episode",
    "env_dyn.asymmetric_goals",
    "env_dyn.visible_to_lidar",
    "reward.per_second",
]


def with_setting(key, value):
    return NavigationSettings.of(**{**SMALL, key.replace(".", "__"): value})


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values]
)
def test_an_impossible_value_is_refused_with_its_key(key, value):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        NavigationEnv(with_setting(key, value))


def test_every_setting_but_truths_and_weights_has_a_test_of_its_limits():
    untested = (
        set(NavigationSettings.keys())
        - set(WRONG_VALUES)
        - set(TRUTHS)
        - {f"reward.{name}" for name in WEIGHTS}
    )
    assert untested == set()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_weight_that_is_not_finite_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"reward\.{name}"):
        with_setting(f"reward.{name}", value).check()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env.num_envs", 8.0),
        ("env.num_envs", "8"),
        ("env.num_envs", None),
        ("env.num_envs", True),
        ("env.num_envs", [8]),
        ("env.layout", 3),
        ("env.layout", None),
        ("env.goal_radius", "far"),
        ("env.goal_radius", True),
        ("env.world_files", "world.yaml"),
        ("env.obstacles_per_world", 5),
        ("env.obstacles_per_world", ["8"]),
        ("env_dyn.vel_range", 1.0),
        ("env_dyn.vel_range", ["slow", "fast"]),
        ("sensor.lidar_vfov", None),
        ("env_dyn.local_range", {"x": 5.0}),
        ("drone.delay", 1.5),
        ("reward.goal", "much"),
    ]
    + [(key, 1) for key in TRUTHS]
    + [(key, "yes") for key in TRUTHS],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(key, value):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        NavigationEnv(with_setting(key, value))


@pytest.mark.parametrize(
    ("key", "value"), [("env.obstacles_per_world", [True]), ("env_dyn.vel_range", [False, True])]
)
def test_a_truth_is_no_number_in_a_list_either(key, value):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        with_setting(key, value).check()


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("env.num_env", "env.num_envs"),
        ("env_dyn.num_obstacle", "env_dyn.num_obstacles"),
        ("sensor.range", "sensor.lidar_range"),
        ("reward.smooth", "reward.smoothness"),
        ("num_envs", "env.num_envs"),
    ],
)
def test_an_unknown_setting_names_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match=f"'{key}'.*Did you mean '{nearest}'"):
        NavigationSettings().set(key, 1)


def test_an_unknown_setting_of_a_mapping_names_the_nearest():
    with pytest.raises(ConfigError, match=r"env\.num_envs"):
        NavigationSettings.from_mapping({"env": {"num_env": 8}})


def test_a_setting_that_is_refused_leaves_the_settings_as_they_were():
    settings = NavigationSettings()
    with pytest.raises(ConfigError):
        settings.set("env.nothing", 1)
    assert settings == NavigationSettings()


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", True, math.nan])
def test_a_seed_that_is_no_whole_number_is_refused(env, seed):
    with pytest.raises(ConfigError, match="seed"):
        env.reset(seed=seed)
    with pytest.raises(ConfigError, match="seed"):
        NavigationEnv(NavigationSettings.of(**SMALL), seed=seed)


def test_a_seed_and_a_mask_together_are_refused(env):
    with pytest.raises(ConfigError, match="seed or a mask"):
        env.reset(seed=1, mask=np.ones(8, bool))


# Actions


def filled(value, drone=5):
    action = torch.zeros(8, 3)
    action[drone, 1] = value
    return action


BAD_ACTIONS = {
    "nan": (filled(math.nan), "drone 5"),
    "infinity": (filled(math.inf), "drone 5"),
    "minus infinity": (filled(-math.inf), "drone 5"),
    "unreasonable": (filled(2e6), "drone 5"),
    "nan in numpy": (filled(math.nan, 7).numpy(), "drone 7"),
    "beyond float32": (np.full((8, 3), 1e300), "drone 0"),
    "one drone": (torch.zeros(3), r"\(3,\)"),
    "fewer drones": (torch.zeros(7, 3), r"\(7, 3\)"),
    "more drones": (torch.zeros(9, 3), r"\(9, 3\)"),
    "two axes": (torch.zeros(8, 2), r"\(8, 2\)"),
    "three dimensions": (torch.zeros(8, 1, 3), r"\(8, 1, 3\)"),
    "the other way round": (torch.zeros(3, 8), r"\(3, 8\)"),
    "nothing": (torch.zeros(0, 3), r"\(0, 3\)"),
    "a number": (1.0, "shape"),
    "words": (np.array([["a", "b", "c"]] * 8), "not numbers"),
    "a word": ("forward", "not numbers"),
    "ragged": ([[0, 0, 0], [0, 0]] * 4, "not numbers"),
    "none": (None, "action"),
    "a dictionary": ({"vx": 1}, "not numbers"),
    "objects": (np.full((8, 3), object()), "not numbers"),
}


@pytest.mark.parametrize("kind", BAD_ACTIONS)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_bad_action_is_refused_and_no_drone_moves(env, kind):
    action, piece = BAD_ACTIONS[kind]
    with pytest.raises(ActionError, match=piece):
        env.step(action)


@pytest.mark.parametrize(
    "action",
    [torch.zeros(8, 3, dtype=torch.complex64), np.zeros((8, 3), complex)],
    ids=["torch", "numpy"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_complex_action_is_refused(made, action):
    with pytest.raises(ActionError, match="numbers"):
        made.step(action)


def test_a_bad_action_leaves_the_given_buffers_alone(env):
    step = env.make_step()
    step.packed.fill_(7)
    step.reward.fill_(7)
    with pytest.raises(ActionError):
        env.step(filled(math.nan), out=step)
    assert (step.packed == 7).all()
    assert (step.reward == 7).all()


def test_a_bad_first_action_changes_nothing():
    env = NavigationEnv(NavigationSettings.of(**SMALL))
    before = env.state_dict()
    with pytest.raises(ActionError):
        env.step(filled(math.nan))
    assert same(env.state_dict(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_an_action_of_another_number_type_is_taken(made, dtype):
    made.reset(seed=0)
    made.step(torch.ones(8, 3, dtype=dtype))
    ours = made.position
    made.reset(seed=0)
    made.step(torch.ones(8, 3))
    assert torch.equal(made.position, ours)


def test_buffers_of_another_size_are_refused(env):
    other = NavigationEnv(NavigationSettings.of(**(SMALL | {"env__num_envs": 4})))
    with pytest.raises(ActionError, match="make_step"):
        env.step(torch.zeros(8, 3), out=other.make_step())


def test_something_else_than_buffers_is_refused(env):
    with pytest.raises((ActionError, TypeError), match="make_step"):
        env.step(torch.zeros(8, 3), out={})


# Masks, points, worlds


@pytest.mark.parametrize(
    "mask",
    [
        np.ones(7, bool),
        np.ones((8, 1), bool),
        np.ones(8),
        np.ones(8, np.int64),
        torch.ones(8),
        True,
        [1] * 8,
        "all",
        [],
    ],
    ids=[
        "short",
        "column",
        "floats",
        "integers",
        "tensor of floats",
        "one truth",
        "list of integers",
        "word",
        "empty",
    ],
)
def test_a_bad_mask_is_refused(env, mask):
    with pytest.raises(ActionError, match="mask"):
        env.reset(mask=mask)
    with pytest.raises(ActionError, match="mask"):
        env.place([0, 0, 2], [1, 1, 2], mask=mask)


@pytest.mark.parametrize(
    "point",
    [[0, 0], [0, 0, math.nan], [0, math.inf, 2], np.zeros((7, 3)), np.zeros((8, 2)), 3.0, []],
    ids=["two", "nan", "infinite", "seven", "flat", "number", "empty"],
)
@pytest.mark.parametrize("which", ["start", "target", "velocity"])
def test_a_bad_point_is_refused_by_name(env, which, point):
    points = {"start": [0, 0, 2], "target": [5, 0, 2], "velocity": [0, 0, 0]} | {which: point}
    with pytest.raises(ActionError, match=which):
        env.place(**points)


@pytest.mark.parametrize("point", ["here", [[0, 0, 2], [1, 1]]], ids=["word", "ragged"])
def test_a_point_that_is_no_number_is_refused_by_name(env, point):
    with pytest.raises(ActionError, match="start"):
        env.place(point, [5, 0, 2])


@pytest.mark.parametrize("point", [[0, 0, -1e30], [0, 3e38, 2]])
def test_a_point_beyond_all_reason_is_refused_by_name(made, point):
    with pytest.raises(ActionError, match="start"):
        made.place(point, [5, 0, 2])


@pytest.mark.parametrize("world", [-1, 2, [0] * 7 + [2], 10**9])
def test_a_world_that_is_not_in_the_pool_is_refused(env, world):
    with pytest.raises(ActionError, match="expected 0 to 1"):
        env.place([0, 0, 2], [5, 0, 2], world=world)
    with pytest.raises(ActionError, match="expected 0 to 1"):
        env.set_all_worlds(world)


@pytest.mark.parametrize(
    "world",
    [0.5, "first", [0, 1, 0], math.nan, 10**30],
    ids=["half", "word", "three", "nan", "huge"],
)
def test_a_world_that_is_no_number_for_each_drone_is_refused(made, world):
    with pytest.raises(ActionError, match="world"):
        made.place([0, 0, 2], [5, 0, 2], world=world)


@pytest.mark.parametrize("world", [-1, 2, 0.5, "first"])
def test_looking_at_obstacles_of_no_world_is_refused(env, world):
    with pytest.raises(NavrlError, match="world"):
        env.obstacles(world)


@pytest.mark.parametrize(
    "chances", [[1], [1, 1, 1], [0, 0], [-1, 2], [math.nan, 1], [math.inf, 1], [[1, 1]], 1.0, []]
)
def test_bad_world_probabilities_are_refused(env, chances):
    with pytest.raises(ConfigError, match="world probabilities"):
        env.set_world_probabilities(chances)


@pytest.mark.parametrize("chances", ["even", ["a", "b"]], ids=["word", "words"])
def test_world_probabilities_that_are_no_numbers_are_refused(env, chances):
    with pytest.raises(ConfigError, match="world probabilities"):
        env.set_world_probabilities(chances)


# What is odd but allowed


def test_one_drone_in_one_empty_world_flies():
    settings = NavigationSettings.of(
        env__num_envs=1, env__num_worlds=1, env__num_obstacles=0, env_dyn__num_obstacles=0
    )
    step = NavigationEnv(settings).step(torch.zeros(1, 3))
    assert step.packed.shape[0] == 1
    assert torch.isfinite(step.reward).all()


@pytest.mark.parametrize(
    "odd",
    [
        {"sensor__lidar_hres": 180.0, "sensor__lidar_vbeams": 1, "sensor__lidar_vfov": [0.0, 0.0]},
        {
            "sensor__lidar_hres": 1.0,
            "sensor__lidar_vbeams": 64,
            "sensor__lidar_vfov": [-85.0, 85.0],
        },
        {"sensor__lidar_range": 20.0},
        {"env__num_observed": 32},
        {"env__action_repeat": 64},
        {"drone__delay": 32, "env__action_repeat": 7},
        {"sim__gravity": 0.0},
        {"drone__damping": 0.0},
        {"env__num_obstacles": 3000, "env__placement_attempts": 1},
        {"env_dyn__num_obstacles": 800, "env_dyn__visible_to_lidar": True},
    ],
    ids=lambda odd: " ".join(odd),
)
def test_the_limits_of_the_settings_fly_and_stay_finite(odd):
    env = NavigationEnv(NavigationSettings.of(**(SMALL | odd)))
    for _ in range(5):
        step = env.step(torch.ones(8, 3))
    assert torch.isfinite(step.packed).all()
    assert torch.isfinite(step.reward).all()
    assert torch.isfinite(env.position).all()


def test_wild_actions_in_the_world_frame_never_leave_the_numbers():
    env = NavigationEnv(NavigationSettings.of(**SMALL, env__action_frame="world"))
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        step = env.step((torch.rand(8, 3, generator=generator) - 0.5) * 2e6)
        assert torch.isfinite(step.packed).all()
        assert torch.isfinite(step.reward).all()
