"""What a robot file can change in the simulator: the kernels against the reference."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from navrl.sim import reference
from navrl.sim.env import NavigationEnv
from navrl.sim.kernels.layout import ATTITUDE, DIRECTION, OUTCOME, RATE, THROTTLE
from navrl.sim.settings import NavigationSettings

DRONES = 48
EMPTY = {"env__num_obstacles": 0, "env_dyn__num_obstacles": 0, "env__action_frame": "world"}
PLANAR = {"env__planar": True, "drone__model_name": "first_order"}
QUADROTOR = {
    "drone__model_name": "quadrotor",
    "drone__mass": 1.2,
    "drone__inertia": [0.012, 0.013, 0.022],
    "drone__arm": 0.22,
    "drone__rotor_thrust": 10.0,
    "drone__rotor_moment": 0.02,
    "drone__rotor_time_constant": 0.04,
    "drone__velocity_gain": 2.5,
    "drone__attitude_gain": [120.0, 110.0, 3.0],
    "drone__rate_gain": [16.0, 15.0, 2.0],
    "drone__max_acceleration": 4.0,
}


def make(**overrides) -> NavigationEnv:
    settings = NavigationSettings.of(env__num_envs=DRONES, env__num_worlds=2, **overrides)
    env = NavigationEnv(settings, seed=5, auto_reset=False)
    env.reset()
    return env


def scatter(env: NavigationEnv, **options) -> dict[str, torch.Tensor]:
    generator = np.random.default_rng(0)
    low, high = [-18, -18, 0.5], [18, 18, 3.5]
    return env.place(*generator.uniform(low, high, (2, DRONES, 3)), **options)


def actions(number: int) -> torch.Tensor:
    return torch.rand(DRONES, 3, generator=torch.Generator().manual_seed(number)) * 6 - 3


def field(env: NavigationEnv, name: int, size: int) -> torch.Tensor:
    return torch.from_numpy(env._batch.field(name, size)).double()


def drone_of(env: NavigationEnv) -> reference.Drone:
    parts = field(env, ATTITUDE, 4), env.velocity.double(), field(env, RATE, 3)
    return reference.Drone(env.position.double(), *parts, field(env, THROTTLE, 4))


def obstacles_of(env: NavigationEnv) -> reference.MovingObstacles:
    worlds = [env.obstacles(world) for world in range(len(env.pool.worlds))]
    own = {key: torch.stack([world[key] for world in worlds])[env.world] for key in worlds[0]}
    parts = [own[key].double() for key in ("position", "velocity", "width")]
    return reference.MovingObstacles(*parts, worlds[0]["tall"])


def observed(env: NavigationEnv, obstacles, **options) -> dict[str, torch.Tensor]:
    direction = field(env, DIRECTION, 3)
    return reference.observe(drone_of(env), env.target.double(), direction, obstacles, **options)


def airframe_of(env: NavigationEnv) -> reference.Airframe:
    """The reference's constants of a quadrotor of the settings, at a rotor speed of 1."""
    drone, dt = env.settings.drone, env.settings.sim.dt
    inertia = drone.inertia
    return reference.Airframe(
        mass=drone.mass,
        inertia=tuple(inertia),
        arm=drone.arm,
        force_constant=drone.rotor_thrust,
        moment_constant=drone.rotor_moment * drone.rotor_thrust,
        max_rotor_speed=1.0,
        rotor_lag=1 - float(np.exp(-dt / drone.rotor_time_constant)),
        velocity_gain=drone.velocity_gain,
        attitude_gain=tuple(a * j for a, j in zip(drone.attitude_gain, inertia, strict=True)),
        rate_gain=tuple(a * j for a, j in zip(drone.rate_gain, inertia, strict=True)),
        max_acceleration=drone.max_acceleration or float("inf"),
    )


@pytest.mark.parametrize("own", [True, False], ids=["quadrotor", "limited hummingbird"])
def test_a_quadrotor_of_the_settings_moves_as_the_reference_says(own):
    env = make(**EMPTY, **(QUADROTOR if own else {"drone__max_acceleration": 2.0}))
    frame = airframe_of(env)
    if not own:
        frame = dataclasses.replace(reference.HUMMINGBIRD, max_acceleration=2.0)
    scatter(env)
    for number in range(25):
        before, command = drone_of(env), actions(number)
        rotors = reference.lee_controller(before, command.double(), frame)
        expected = reference.step_rigid_body(before, rotors, frame)
        flying = env._batch.arrays["counters"][:, OUTCOME] == 0
        env.step(command)
        after = drone_of(env)
        for name in ("position", "attitude", "velocity", "angular_velocity", "throttle"):
            ours, theirs = getattr(after, name)[flying], getattr(expected, name)[flying]
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4), f"{name} at step {number}"


def test_a_quadrotor_of_the_settings_hovers_at_the_start():
    env = make(**EMPTY, **QUADROTOR)
    scatter(env)
    start = env.position
    for _ in range(50):
        env.step(torch.zeros(DRONES, 3))
    assert torch.allclose(env.position, start, atol=0.01)


def test_the_first_order_model_keeps_its_limit_of_acceleration():
    env = make(**EMPTY, drone__model_name="first_order", drone__max_acceleration=3.0)
    scatter(env)
    frame = dataclasses.replace(reference.HUMMINGBIRD, max_acceleration=3.0)
    for number in range(5):
        before, command = drone_of(env), actions(number // 3)
        expected = reference.first_order(before, command.double(), 0.3, frame)
        env.step(command)
        assert torch.allclose(env.velocity.double(), expected.velocity, atol=1e-5)
        assert torch.allclose(env.position.double(), expected.position, atol=1e-5)
        change = (env.velocity.double() - before.velocity).norm(dim=1) / env.settings.sim.dt
        assert change.max() < 3.0001


def test_a_climb_is_no_faster_than_the_vertical_speed():
    env = make(
        drone__model_name="first_order", drone__vertical_speed=0.5, drone__time_constant=0.001
    )
    scatter(env)
    env.step(torch.full((DRONES, 3), 2.0))
    assert torch.allclose(env.velocity[:, 2], torch.tensor(0.5), atol=1e-4)
    assert env.velocity[:, :2].norm(dim=1).min() > 2.0


def test_in_two_dimensions_heights_are_ignored():
    env = make(**PLANAR, env_dyn__num_obstacles=400, env__collision_radius=0.25)
    seen = scatter(env, velocity=[0.5, 0.0, 1.0])
    assert env.obstacles(0)["tall"].all()
    expected = observed(env, obstacles_of(env))
    assert torch.allclose(
        seen["dynamic_obstacle"][:, 0].double(), expected["dynamic_obstacle"], atol=1e-4
    )
    assert torch.allclose(seen["state"].double(), expected["state"], atol=1e-4)
    assert not seen["state"][:, [2, 4, 7]].any()  # goal above, goal height, climb
    for number in range(20):
        step = env.step(actions(number))
        assert torch.equal(env.position[:, 2], torch.full((DRONES,), 0.25))
    flown = step.observation["dynamic_obstacle"]
    assert not flown[..., [2, 4, 7, 9]].any()
    assert flown.any()


def test_in_two_dimensions_a_floating_obstacle_is_hit_whatever_its_height():
    env = make(**PLANAR, env__num_obstacles=0, env_dyn__num_obstacles=800, reward__per_second=False)
    scatter(env)
    step = env.step(torch.zeros(DRONES, 3))
    distances = torch.full((DRONES, 1, 1), 4.0, dtype=torch.float64)
    ends = reference.terminations(
        drone_of(env), env.target.double(), distances, observed(env, obstacles_of(env))
    )
    floor = torch.ones(DRONES, dtype=torch.bool)  # 0.3 m above the ground is no collision
    assert torch.equal(step.terminated, ends["dynamic_collision"] & floor)
    assert 0 < int(step.terminated.sum()) < DRONES


@pytest.mark.parametrize("height", [0.2, 2.0])
def test_a_cylinder_hits_what_reaches_into_it(height):
    body = {"env__collision": "cylinder", "env__collision_height": height}
    env = make(
        **body, env__collision_radius=0.8, env__num_obstacles=700, env_dyn__num_obstacles=400
    )
    scatter(env)
    step = env.step(torch.zeros(DRONES, 3))
    expected = torch.zeros(DRONES, dtype=torch.bool)
    for world in range(2):
        own, static = env.world == world, env.pool.worlds[world]
        scene = reference.Scene(*map(torch.from_numpy, (static.boxes, static.cylinders)))
        expected[own] = reference.hits_cylinder(scene, env.position[own], 0.8, height)
    ends = reference.terminations(
        drone_of(env),
        env.target.double(),
        torch.full((DRONES, 1, 1), 4.0),
        observed(env, obstacles_of(env)),
        margin=0.8,
        half_height=height / 2,
    )
    column = env._batch.arrays["counters"][:, OUTCOME]
    assert torch.equal(torch.from_numpy(column == 2), expected)
    assert torch.equal(torch.from_numpy(column == 3), ends["dynamic_collision"] & ~expected)
    assert 0 < int(expected.sum()) < DRONES
    assert (step.terminated == (expected | ends["dynamic_collision"])).all()


@pytest.mark.parametrize("view", [10.0, 100.0, 270.0, 355.0])
def test_rays_outside_of_the_field_of_view_report_nothing(view):
    whole, part = make(), make(sensor__lidar_hfov=view)
    full = 4.0 - scatter(whole)["lidar"][:, 0]
    seen = 4.0 - scatter(part)["lidar"][:, 0]
    assert torch.equal(seen, reference.within_view(full, view, 4.0))
    assert not torch.equal(seen, full)


def test_a_detector_of_its_own_range_reports_obstacles_within_it():
    for reach in (2.0, 9.0):
        env = make(sensor__detection_range=reach, env_dyn__num_obstacles=160, env__num_observed=20)
        seen = scatter(env)["dynamic_obstacle"][:, 0].double()
        expected = observed(env, obstacles_of(env), count=20, maximum=reach)["dynamic_obstacle"]
        assert torch.allclose(seen, expected, atol=1e-4)
        assert seen.any()


def test_a_slow_lidar_shows_the_last_scan_until_the_next():
    options = {"env__action_repeat": 3, "env__max_episode_length": 30, "sensor__noise": 0.1}
    fast = NavigationEnv(NavigationSettings.of(env__num_envs=DRONES, env__num_worlds=2, **options))
    slow = NavigationEnv(
        NavigationSettings.of(
            env__num_envs=DRONES, env__num_worlds=2, sensor__lidar_rate=7.0, **options
        )
    )  # 20.8 decisions a second: every third has a scan
    scans = [[scan] for scan in fast.reset()["lidar"]]  # of each drone's episode
    assert torch.equal(slow.reset()["lidar"], torch.stack([own[0] for own in scans]))
    for number in range(25):
        if number == 12:
            slow = pickle.loads(pickle.dumps(slow))  # remembers its scans
        now, late = fast.step(actions(number)), slow.step(actions(number))
        assert torch.equal(now.reward, late.reward)
        for drone in range(DRONES):
            if now.done[drone]:
                scans[drone].append(now.final_observation["lidar"][drone].clone())
                last = reference.held(torch.stack(scans[drone]), 3)[-1]
                assert torch.equal(late.final_observation["lidar"][drone], last)
                scans[drone] = []
            scans[drone].append(now.observation["lidar"][drone].clone())
        expected = torch.stack([reference.held(torch.stack(own), 3)[-1] for own in scans])
        assert torch.equal(late.observation["lidar"], expected)
        assert torch.equal(slow.observe()["lidar"], expected)
