"""Baselines: ORCA does what RVO2 does, every pilot keeps the contract, the oracle knows the future."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.evaluation import evaluate, load_policy
from navrl.evaluation.baselines.catalogue import BASELINES
from navrl.evaluation.baselines.kernels.clearance import (
    CELL,
    FARTHEST,
    LAYER,
    LAYERS,
    ORIGIN,
    SIZE,
    lower,
    paint_boxes,
    paint_cylinders,
)
from navrl.evaluation.baselines.oracle import clearance_grids, future_tracks
from navrl.evaluation.baselines.orca import project, reciprocal_velocities
from navrl.evaluation.names import POLICIES
from navrl.evaluation.run import fly_scenarios
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

SIGHTED = sorted(set(BASELINES) - {"oracle"})  # those that fly by what the drone sees


# ---------------------------------------------------------------- ORCA


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.booleans())
def test_a_projection_is_feasible_and_nearer_than_any_other_feasible_velocity(seed, count, flat):
    generator = np.random.default_rng(seed)
    normals = generator.normal(size=(count, 3)) * (1, 1, not flat)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    inside = generator.uniform(-0.5, 0.5, 3)
    offsets = normals @ inside - generator.uniform(0, 0.6, count)  # `inside` is feasible
    wish = generator.normal(size=3) * 2
    found = project(np.column_stack([normals, offsets]), wish, 1.5)
    assert np.linalg.norm(found) <= 1.5 + 1e-6
    assert (normals @ found >= offsets - 1e-6).all()
    tried = inside + generator.normal(size=(2000, 3)) * 0.7
    tried = tried[(np.linalg.norm(tried, axis=1) <= 1.5) & (tried @ normals.T >= offsets).all(1)]
    nearest = np.linalg.norm(tried - wish, axis=1).min(initial=np.inf)
    assert np.linalg.norm(found - wish) <= nearest + 1e-6


def test_without_a_feasible_velocity_the_greatest_violation_is_least():
    # two opposite half-spaces, 1 m/s apart
    planes = np.array([[1.0, 0, 0, 0.5], [-1.0, 0, 0, 0.5]])
    found = project(planes, np.array([1.0, 0.3, 0.0]), 2.0)
    assert found[0] == pytest.approx(0.0, abs=1e-4)
    assert found[1] == pytest.approx(0.3, abs=1e-4)


def test_velocities_are_those_of_rvo2():
    """Random crowds, some too dense for a feasible velocity; velocities by RVO2 2.0.3."""
    for crowd in json.loads((Path(__file__).parent / "rvo2_velocities.json").read_text()):
        position, velocity, wish, expected = (
            np.pad(np.array(crowd[name]), ((0, 0), (0, 1)))
            for name in ("position", "velocity", "wish", "new")
        )
        found = reciprocal_velocities(
            position, velocity, wish, radius=0.5, limit=1.5, horizon=5.0, flat=True
        )
        assert np.abs(found - expected).max() < 5e-3


@pytest.mark.parametrize("flat", [True, False])
def test_agents_on_a_circle_change_places_without_a_collision(flat):
    """RVO2's circle example: everybody's goal is the opposite point."""
    number, radius, step = 12, 0.5, 0.25
    angle = 2 * np.pi * np.arange(number) / number
    position = 20.0 * np.stack([np.cos(angle), np.sin(angle), np.zeros(number)], 1)
    goal, velocity, least = -position, np.zeros((number, 3)), np.inf
    generator = np.random.default_rng(0)
    for _ in range(500):
        wish = goal - position
        wish /= np.maximum(np.linalg.norm(wish, axis=1, keepdims=True), 1.0)
        # in perfect symmetry all of them meet in the middle and stop, as with RVO2
        wish += 0.03 * generator.normal(size=(number, 3)) * (1, 1, not flat)
        velocity = reciprocal_velocities(
            position, velocity, wish, radius=radius, limit=2.0, horizon=10.0, flat=flat
        )
        position = position + step * velocity
        gaps = np.linalg.norm(position[None] - position[:, None], axis=2)
        least = min(least, gaps[~np.eye(number, dtype=bool)].min())
    assert np.linalg.norm(goal - position, axis=1).max() < radius
    assert flat == (np.abs(position[:, 2]).max() == 0)
    assert least > 2 * radius - 1e-3


# ---------------------------------------------------------------- all pilots


@pytest.fixture(scope="module")
def crowd() -> NavigationEnv:
    """Return an environment in the middle of its flights, close to obstacles."""
    task = NavigationSettings.of(
        env__num_envs=32, env__num_worlds=2, env_dyn__num_obstacles=120, env__action_repeat=5
    )
    env = NavigationEnv(task, seed=4, auto_reset=True)
    for _ in range(60):
        env.step(2.0 * env.observe()["state"][:, :3])
    return env


@pytest.mark.parametrize("name", SIGHTED)
class TestPilot:
    def test_commands_are_finite_and_within_the_limit(self, crowd, name):
        command = load_policy(name, crowd.settings)(crowd.observe())
        assert command.shape == (32, 3)
        assert command.dtype == torch.float32
        assert torch.isfinite(command).all()
        assert (command.abs() <= 2.0 + 1e-5).all()

    def test_a_command_does_not_depend_on_the_other_drones(self, crowd, name):
        if name == "random":
            pytest.skip("draws for all drones together")
        observation, pilot = crowd.observe(), load_policy(name, crowd.settings)
        whole = pilot(observation)
        one = pilot({part: value[7:8] for part, value in observation.items()})
        assert torch.allclose(one, whole[7:8], atol=1e-5)

    def test_it_has_a_name_in_the_help(self, crowd, name):
        assert name in POLICIES


def pillar(folder: Path) -> Path:
    """Write a world with one high box between start and goal."""
    world = {
        "boxes": [{"center": [0.0, 0.15, 2.0], "size": [1.0, 1.0, 4.0]}],
        "starts": [[-8.0, 0.0, 1.5]],
        "goals": [[8.0, 0.0, 1.5]],
    }
    path = folder / "pillar.yaml"
    path.write_text(yaml.safe_dump(world))
    return path


ENDINGS = {
    "straight": "static_collision",
    "orca": "success_100",
    "dynamic-window": "success_100",
    "potential-field": "success_100",
    "oracle": "success_100",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_pillar_ends_a_straight_flight_and_the_others_fly_around_it(tmp_path, name):
    config = load_config(
        [
            f"env.world_files=[{pillar(tmp_path)}]",
            "env_dyn.num_obstacles=0",
            "flight.episodes=2",
            "flight.worlds=1",
        ]
    )
    flown = fly_scenarios(load_policy(name, config.task), ["own"], config)
    assert flown.flights["own"].statistics[ENDINGS[name]].all()


def test_random_commands_are_the_same_in_every_evaluation():
    task = NavigationSettings.of(
        env__num_envs=4, env__num_worlds=1, env__num_obstacles=0, env_dyn__num_obstacles=0
    )
    policy = load_policy("random", task)
    lengths = [
        evaluate(NavigationEnv(task, auto_reset=False), policy).statistics["path_length"]
        for _ in range(2)
    ]
    assert torch.equal(*lengths)


# ---------------------------------------------------------------- the oracle


def small_task(**more) -> NavigationSettings:
    return NavigationSettings.of(
        env__num_envs=12,
        env__num_worlds=3,
        env__num_obstacles=60,
        env__action_repeat=5,
        env__max_episode_length=300,
        **{"env_dyn__num_obstacles": 40, **more},
    )


def test_the_oracle_sees_where_moving_obstacles_will_be():
    env = NavigationEnv(small_task(), seed=9, auto_reset=False)
    env.reset()
    tracks = future_tracks(env)
    for moment in range(40):
        for world in range(3):
            assert np.array_equal(tracks[moment, world], env.obstacles(world)["position"].numpy())
        env.step(torch.ones(12, 3))


def test_clearance_is_the_distance_to_the_boxes_that_are_high_enough():
    env = NavigationEnv(small_task(), seed=9, auto_reset=False)
    grids = clearance_grids(env)
    generator = np.random.default_rng(0)
    boxes = env.pool.worlds[1].boxes
    for layer, height in ((4, 1.0), (8, 2.0)):
        high = boxes[boxes[:, 5] > height]
        for i, j in generator.integers(100, 400, (200, 2)):
            x, y = ORIGIN + (i + 0.5) * CELL, ORIGIN + (j + 0.5) * CELL
            dx = np.maximum(np.maximum(high[:, 0] - x, x - high[:, 1]), 0)
            dy = np.maximum(np.maximum(high[:, 2] - y, y - high[:, 3]), 0)
            exact = min(np.sqrt(dx**2 + dy**2).min(), 2.0)
            assert grids[1, layer, i, j] <= 100 * exact + 1e-6
            if (np.abs(boxes[:, 5] - height) > 0.13).all():
                assert grids[1, layer, i, j] >= 100 * exact - 1.01


def test_a_shape_is_in_the_way_between_its_bottom_and_its_top():
    grid = np.full((LAYERS, SIZE, SIZE), FARTHEST, np.uint8)
    boxes = np.array([[0.0, 1, 0, 1, 0, 1.0], [10, 11, 0, 1, 2.0, 3.0]])
    for standing in (True, False):
        paint_boxes(grid, boxes, standing)
        paint_cylinders(grid, np.array([[0.5, 10.5, 0.5, 0.0, 2.0]]), standing)
        if standing:
            lower(grid)
    heights = LAYER * np.arange(LAYERS)
    cell = [round((place - ORIGIN) / CELL) for place in (0.5, 10.5)]
    for i, j, bottom, top in ((0, 0, 0.0, 1.0), (1, 0, 2.0, 3.0), (0, 1, 0.0, 2.0)):
        met = grid[:, cell[i], cell[j]] == 0
        assert (met == ((heights >= bottom) & (heights <= top))).all()


def test_the_oracle_refuses_an_environment_that_has_flown():
    env = NavigationEnv(small_task(), seed=9, auto_reset=False)
    env.step(torch.zeros(12, 3))
    with pytest.raises(ConfigError, match="very start"):
        load_policy("oracle", env.settings).begin(env)


@pytest.mark.slow
def test_the_oracle_crosses_a_crowded_field():
    config = load_config(["flight.episodes=32", "flight.worlds=4", "flight.recorded=0"])
    flights = fly_scenarios(load_policy("oracle", config.task), ["crossing"], config)
    assert flights.flights["crossing"].share("success_100").mean > 0.95
