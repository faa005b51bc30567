"""The fused kernel against the readable torch version, from the same states, one step at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navrl.sim import reference
from navrl.sim.env import NavigationEnv
from navrl.sim.kernels.layout import (
    ATTITUDE,
    DIRECTION,
    FIRST_REWARD,
    HEIGHT_LOW,
    OUTCOME,
    PREVIOUS_VELOCITY,
    RATE,
    THROTTLE,
)
from navrl.sim.settings import REWARD_TERMS, NavigationSettings

DRONES = 96


def make_env(**overrides) -> NavigationEnv:
    settings = NavigationSettings.of(env__num_envs=DRONES, env__num_worlds=3, **overrides)
    env = NavigationEnv(settings, seed=5, auto_reset=False)
    env.reset()
    return env


def scatter(env, seed=0):
    """Put the drones all over the arena, with targets everywhere and some speed."""
    generator = np.random.default_rng(seed)

    def points():
        return np.concatenate(
            [generator.uniform(-21, 21, (DRONES, 2)), generator.uniform(0.3, 3.8, (DRONES, 1))], 1
        )

    return env.place(points(), points(), velocity=generator.uniform(-1.5, 1.5, (DRONES, 3)))


def field(env, name, size):
    return torch.from_numpy(env._batch.field(name, size)).double()


def drone_of(env) -> reference.Drone:
    return reference.Drone(
        env.position.double(),
        field(env, ATTITUDE, 4),
        env.velocity.double(),
        field(env, RATE, 3),
        field(env, THROTTLE, 4),
    )


def obstacles_of(env) -> reference.MovingObstacles:
    """The moving obstacles of each drone's own world."""
    worlds = [env.obstacles(w) for w in range(len(env.pool.worlds))]
    stack = {key: torch.stack([world[key] for world in worlds]) for key in worlds[0]}
    own = env.world
    return reference.MovingObstacles(
        stack["position"][own].double(),
        stack["velocity"][own].double(),
        stack["width"][own].double(),
        stack["tall"][0],
    )


def scene_of(env, world) -> reference.Scene:
    static = env.pool.worlds[world]
    return reference.Scene(
        torch.from_numpy(static.boxes).double(), torch.from_numpy(static.cylinders).double()
    )


def true_distances(env) -> torch.Tensor:
    """Ray lengths by brute force in float64, (N, H, V)."""
    sensor = env.settings.sensor
    count = round(360 / sensor.lidar_hres)
    azimuths = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    elevations = torch.deg2rad(
        torch.linspace(*sensor.lidar_vfov, sensor.lidar_vbeams, dtype=torch.float64)
    )
    result = torch.zeros(DRONES, count, sensor.lidar_vbeams, dtype=torch.float64)
    scenes = [scene_of(env, world) for world in range(len(env.pool.worlds))]
    for drone, world in enumerate(env.world.tolist()):  # all at once would take gigabytes
        position, yaw = env.position[drone, None].double(), env.yaw[drone, None].double()
        result[drone] = reference.cast_rays(
            scenes[world], position, yaw, azimuths, elevations, sensor.lidar_range
        )
    return result


def actions(seed=1) -> torch.Tensor:
    return torch.rand(DRONES, 3, generator=torch.Generator().manual_seed(seed)) * 4 - 2


@pytest.mark.parametrize(
    "sensor",
    [
        {},
        pytest.param(
            {
                "sensor__lidar_hres": 5.0,
                "sensor__lidar_vbeams": 7,
                "sensor__lidar_vfov": [-30.0, 45.0],
                "sensor__lidar_range": 6.0,
            },
            marks=pytest.mark.slow,
        ),
        {"sensor__lidar_hres": 45.0, "sensor__lidar_vbeams": 1, "sensor__lidar_vfov": [0.0, 0.0]},
        pytest.param(
            {"sensor__lidar_hres": 1.0, "sensor__lidar_vbeams": 2}, marks=pytest.mark.slow
        ),
    ],
)
def test_every_ray_is_within_a_tenth_of_a_millimetre_of_brute_force(sensor):
    env = make_env(**sensor)
    scan = scatter(env)["lidar"][:, 0]
    reach = env.settings.sensor.lidar_range
    assert torch.allclose(reach - scan.double(), true_distances(env), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_rays_meet_moving_obstacles_when_they_are_visible():
    env = make_env(
        env_dyn__visible_to_lidar=True, env_dyn__num_obstacles=400, env__num_obstacles=100
    )
    for _ in range(3):
        env.step(actions())
    scan = scatter(env)["lidar"][:, 0]
    expected = torch.zeros_like(scan, dtype=torch.float64)
    for world in range(3):
        own, moving, static = env.world == world, env.obstacles(world), scene_of(env, world)
        half, tall = moving["width"] / 2, moving["tall"]
        (x, y, z), high = moving["position"].T, torch.where(tall, 2.5, 0.5)
        boxes = torch.stack([x - half, x + half, y - half, y + half, z - high, z + high], 1)[
            ~tall
        ].double()
        cylinders = torch.stack([x, y, half, z - high, z + high], 1)[tall].double()
        scene = reference.Scene(
            torch.cat([static.boxes, boxes]), torch.cat([static.cylinders, cylinders])
        )
        azimuths = torch.arange(36, dtype=torch.float64) * (math.pi / 18)
        elevations = torch.deg2rad(torch.tensor([-10.0, 0.0, 10.0, 20.0], dtype=torch.float64))
        expected[own] = reference.cast_rays(
            scene, env.position[own].double(), env.yaw[own].double(), azimuths, elevations
        )
    assert torch.allclose(4 - scan.double(), expected, rtol=0, atol=1e-4)
    assert (expected < true_distances(env) - 0.01).any()


@pytest.mark.parametrize(
    "vary", [{}, {"drone__mass_variation": 0.2, "drone__thrust_variation": 0.2, "drone__wind": 5.0}]
)
def test_the_drone_moves_as_the_reference_says(vary):
    env = make_env(
        env__action_frame="world", env__num_obstacles=0, env_dyn__num_obstacles=0, **vary
    )
    scatter(env)
    for number in range(40):
        before, command = drone_of(env), actions(number)
        flying = env._batch.arrays["counters"][:, OUTCOME] == 0
        scales = field(env, 30, 1)[:, 0], field(env, 31, 1)[:, 0]
        wind = torch.nn.functional.pad(field(env, 32, 2), (0, 1))
        rotors = reference.lee_controller(before, command.double())
        expected = reference.step_rigid_body(
            before, rotors, mass_scale=scales[0], thrust_scale=scales[1], wind=wind
        )
        env.step(command)
        after = drone_of(env)
        for name in ("position", "attitude", "velocity", "angular_velocity", "throttle"):
            ours, theirs = getattr(after, name)[flying], getattr(expected, name)[flying]
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4), f"{name} at step {number}"


def test_the_first_order_drone_moves_as_the_reference_says():
    env = make_env(
        env__action_frame="world",
        drone__model_name="first_order",
        env__num_obstacles=0,
        env_dyn__num_obstacles=0,
    )
    scatter(env)
    before, command = drone_of(env), actions()
    expected = reference.first_order(before, command.double(), env.settings.drone.time_constant)
    env.step(command)
    assert torch.allclose(env.position.double(), expected.position, atol=1e-5)
    assert torch.allclose(env.velocity.double(), expected.velocity, atol=1e-5)


def test_an_action_in_the_goal_frame_is_turned_into_the_world_frame():
    in_goal_frame, in_world_frame = make_env(), make_env(env__action_frame="world")
    scatter(in_goal_frame)
    scatter(in_world_frame)
    command = actions()
    turned = reference.from_goal_frame(command.double(), field(in_goal_frame, DIRECTION, 3))
    in_goal_frame.step(command)
    in_world_frame.step(turned.float())
    assert torch.allclose(in_goal_frame.velocity, in_world_frame.velocity, atol=1e-5)


@pytest.mark.parametrize("moving", [0, 8, 80, 800])
def test_observations_rewards_and_endings_are_those_of_the_reference(moving):
    env = make_env(
        env_dyn__num_obstacles=moving,
        env__goal_ends_episode=False,
        reward__smoothness=0.1,
        reward__alive=1.0,
        reward__static=1.0,
        reward__dynamic=1.0,
        reward__log_reference=1.0,
        reward__per_second=False,
        reward__collision=0.0,
    )
    for _ in range(130):  # past the first change of speeds
        env.step(actions())
    scatter(env)
    step = env.step(actions())
    drone, direction = drone_of(env), field(env, DIRECTION, 3)
    seen = reference.observe(drone, env.target.double(), direction, obstacles_of(env))
    distances = true_distances(env)
    assert torch.allclose(step.observation["state"].double(), seen["state"], atol=1e-4)
    assert torch.allclose(
        step.observation["direction"][:, 0].double(), seen["direction"], atol=1e-4
    )
    assert torch.allclose(
        step.observation["dynamic_obstacle"][:, 0].double(), seen["dynamic_obstacle"], atol=1e-4
    )
    terms = reference.reward_terms(
        drone,
        field(env, PREVIOUS_VELOCITY, 3),
        env.target.double(),
        distances,
        field(env, HEIGHT_LOW, 2),
        seen["nearest_clearance"],
        has_moving_obstacles=moving > 0,
    )
    # The logarithm of a ray that starts inside an obstacle magnifies rounding, so those drones are
    # left out.
    clear = distances.amin((1, 2)) > 1e-3
    weights = vars(env.settings.reward)
    total = reference.total_reward(terms, weights)
    assert torch.allclose(step.reward.double()[clear], total[clear], atol=2e-3)
    assert list(terms) == [term.name for term in REWARD_TERMS if not term.once]
    for number, (name, term) in enumerate(terms.items()):
        sums = torch.from_numpy(env._batch.arrays["running"][:, FIRST_REWARD + number]).double()
        assert torch.allclose(sums[clear], weights[name] * term[clear], atol=2e-3), name
    ends = reference.terminations(drone, env.target.double(), distances, seen)
    near_limit = (distances.amin((1, 2)) - 0.3).abs() < 1e-4
    expected = ends["static_collision"] | ends["dynamic_collision"] | ends["out_of_bounds"]
    assert (step.terminated == expected)[~near_limit].all()
    assert expected.any()
    assert not expected.all()
