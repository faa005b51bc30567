"""The oracle against the numbers of the task's description, hand-made states and MuJoCo."""

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from navrl.sim.reference import (
    HUMMINGBIRD,
    Airframe,
    Drone,
    MovingObstacles,
    Scene,
    advance_obstacles,
    cast_rays,
    facing_yaw,
    first_order,
    from_goal_frame,
    hover,
    lee_controller,
    observe,
    reward_terms,
    rotation_matrix,
    start_height_range,
    step_rigid_body,
    terminations,
    to_goal_frame,
    total_reward,
    yaw_of,
)

DTYPE = torch.float64
AZIMUTHS = torch.arange(36, dtype=DTYPE) * math.radians(10)
ELEVATIONS = torch.tensor([-10.0, 0.0, 10.0, 20.0], dtype=DTYPE).deg2rad()


def tensor(*values) -> Tensor:
    return torch.tensor(values, dtype=DTYPE)


def scene(boxes=(), cylinders=()) -> Scene:
    return Scene(
        torch.tensor(boxes, dtype=DTYPE).reshape(-1, 6),
        torch.tensor(cylinders, dtype=DTYPE).reshape(-1, 5),
    )


def scan(world: Scene, *position: float, yaw: float = 0.0, maximum: float = 4.0) -> Tensor:
    # (36, 4)
    return cast_rays(world, tensor(position), tensor(yaw), AZIMUTHS, ELEVATIONS, maximum)[0]


def drone_at(*position: float, velocity=(0.0, 0.0, 0.0), yaw: float = 0.0) -> Drone:
    return replace(hover(tensor(position), tensor(yaw)), velocity=tensor(velocity))


def obstacles(*rows) -> MovingObstacles:
    """Rows of (x, y, z, velocity x, y, z, width, is tall), in one world."""
    table = torch.tensor([[float(value) for value in row] for row in rows], dtype=DTYPE).reshape(
        1, -1, 8
    )
    return MovingObstacles(table[..., 0:3], table[..., 3:6], table[0, :, 6], table[0, :, 7].bool())


def fly(
    drone: Drone, command: Tensor, steps: int, airframe: Airframe = HUMMINGBIRD, **plant
) -> list[Drone]:
    flown = [drone]
    for _ in range(steps):
        rotors = lee_controller(flown[-1], command, airframe)
        flown.append(step_rigid_body(flown[-1], rotors, airframe, **plant))
    return flown


# LiDAR


def test_a_tall_box_face_two_metres_ahead_gives_the_published_numbers():
    distances = scan(scene(boxes=[(2, 3, -5, 5, 0, 6)]), 0.0, 0.0, 2.0)
    torch.testing.assert_close(distances[0], tensor(2.0309, 2.0, 2.0309, 2.1284), atol=5e-5, rtol=0)


def test_empty_ground_from_half_a_metre_is_seen_by_the_lowest_rays_only():
    distances = scan(scene(), 0.0, 0.0, 0.5)
    torch.testing.assert_close(
        distances[:, 0], torch.full((36,), 2.8794, dtype=DTYPE), atol=5e-5, rtol=0
    )
    assert (distances[:, 1:] == 4.0).all()


def test_the_ground_ends_at_25_metres():
    assert scan(scene(), 24.0, 0.0, 0.5)[0, 0] == 4.0  # ahead: lands at 26.8
    assert scan(scene(), 24.0, 0.0, 0.5)[18, 0] < 3.0  # behind: lands at 21.2


def test_azimuth_counts_counter_clockwise_from_yaw():
    world = scene(boxes=[(-5, 5, 2, 3, 0, 6)])  # a wall at y = 2
    assert scan(world, 0.0, 0.0, 2.0)[9, 1] == pytest.approx(2.0)
    assert scan(world, 0.0, 0.0, 2.0, yaw=math.pi / 2)[0, 1] == pytest.approx(2.0)
    assert scan(world, 0.0, 0.0, 2.0)[27, 1] == 4.0


def test_a_cylinder_ahead_is_met_at_its_mantle():
    assert scan(scene(cylinders=[(3, 0, 0.5, 0, 5)]), 0.0, 0.0, 2.0)[0, 1] == pytest.approx(2.5)


def test_a_ray_that_passes_over_a_cylinders_rim_lands_on_its_cap():
    distances = scan(scene(cylinders=[(3, 0, 1, 0, 0.5)]), 0.0, 0.0, 1.0)
    assert distances[0, 0] == pytest.approx(0.5 / math.sin(math.radians(10)))  # lands at x = 2.84


def test_a_box_that_a_level_ray_passes_above_is_not_hit():
    assert scan(scene(boxes=[(2, 3, -5, 5, 0, 1.9)]), 0.0, 0.0, 2.0)[0, 1] == 4.0


def test_a_solid_behind_the_origin_is_not_hit():
    assert (scan(scene(boxes=[(2, 3, -1, 1, 0, 6)]), 4.0, 0.0, 2.0)[0, 1:] == 4.0).all()


@pytest.mark.parametrize(
    "world",
    [scene(boxes=[(-1, 1, -1, 1, 0, 6)]), scene(cylinders=[(0.2, 0, 1, 0, 6)])],
    ids=["box", "cylinder"],
)
def test_an_origin_inside_a_solid_gives_zero_everywhere(world):
    assert (scan(world, 0.0, 0.0, 2.0) == 0).all()


def test_an_origin_below_the_ground_gives_zero_everywhere():
    assert (scan(scene(), 0.0, 0.0, -0.1) == 0).all()


def random_scene(generator: torch.Generator) -> Scene:
    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(*shape, dtype=DTYPE, generator=generator)

    corner, size = uniform(-25, 25, 150, 3), uniform(0.2, 2, 150, 3)
    low = torch.cat([corner[:, :2], uniform(-0.5, 2, 150, 1)], dim=-1)
    boxes = torch.stack([low, low + size], dim=-1).reshape(150, 6)
    bottom = uniform(-0.5, 2, 150, 1)
    cylinders = [
        uniform(-25, 25, 150, 2),
        uniform(0.1, 1, 150, 1),
        bottom,
        bottom + uniform(0.2, 3, 150, 1),
    ]
    return Scene(boxes, torch.cat(cylinders, dim=-1))


def mujoco_model_of(world: Scene) -> str:
    geoms = ['<geom type="plane" group="1" size="25 25 1"/>']
    for x0, x1, y0, y1, z0, z1 in world.boxes.tolist():
        centre = f"{(x0 + x1) / 2} {(y0 + y1) / 2} {(z0 + z1) / 2}"
        geoms.append(
            f'<geom type="box" group="1" pos="{centre}" size="{(x1 - x0) / 2} {(y1 - y0) / 2} '
            f'{(z1 - z0) / 2}"/>'
        )
    for x, y, radius, z0, z1 in world.cylinders.tolist():
        geoms.append(
            f'<geom type="cylinder" group="1" pos="{x} {y} {(z0 + z1) / 2}" size="{radius} '
            f'{(z1 - z0) / 2}"/>'
        )
    geoms.append('<geom type="box" group="2" size="30 30 30"/>')  # must be left out by its group
    return f"<mujoco><worldbody>{''.join(geoms)}</worldbody></mujoco>"


@pytest.mark.slow
def test_rays_in_a_random_scene_are_those_of_mujoco():
    mujoco = pytest.importorskip("mujoco")
    np = pytest.importorskip("numpy")
    generator = torch.Generator().manual_seed(1)
    world = random_scene(generator)
    count, maximum = 64, 4.0
    position = (torch.rand(count, 3, dtype=DTYPE, generator=generator) - 0.5) * tensor(
        54.0, 54.0, 3.6
    ) + tensor(0, 0, 2)
    yaw = (torch.rand(count, dtype=DTYPE, generator=generator) - 0.5) * 7
    elevations = torch.tensor([-70.0, -35.0, -10.0, 0.0, 10.0, 20.0, 60.0], dtype=DTYPE).deg2rad()
    ours = cast_rays(world, position, yaw, AZIMUTHS, elevations, maximum)
    # MuJoCo answers the exit, not 0, from inside a solid
    outside = (ours > 0).flatten(1).all(dim=1)
    assert outside.sum() > count // 2

    model = mujoco.MjModel.from_xml_string(mujoco_model_of(world))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    rays = 36 * len(elevations)
    group = np.array([0, 1, 0, 0, 0, 0], dtype=np.uint8)
    hits = 0
    for index in outside.nonzero().flatten().tolist():
        heading = (yaw[index] + AZIMUTHS)[:, None]
        flat = [
            torch.cos(heading) * torch.cos(elevations),
            torch.sin(heading) * torch.cos(elevations),
        ]
        direction = (
            torch.stack([*flat, torch.sin(elevations).expand(36, -1)], dim=-1).reshape(-1).numpy()
        )
        geom, distance = np.zeros(rays, np.int32), np.zeros(rays)
        mujoco.mj_multiRay(
            model,
            data,
            position[index].numpy(),
            direction,
            group,
            True,
            -1,
            geom,
            distance,
            None,
            rays,
            maximum,
        )
        theirs = np.where((distance < 0) | (distance > maximum), maximum, distance)
        np.testing.assert_allclose(ours[index].reshape(-1).numpy(), theirs, atol=1e-9)
        hits += int((theirs < maximum).sum())
    assert hits > 1000


# Controller


def test_the_airframe_has_the_published_thrust_and_thrust_to_weight():
    assert HUMMINGBIRD.max_thrust == pytest.approx(6.003, abs=5e-4)
    assert 4 * HUMMINGBIRD.max_thrust / (HUMMINGBIRD.mass * HUMMINGBIRD.gravity) == pytest.approx(
        3.42, abs=5e-3
    )


def test_the_controller_at_rest_commands_hover():
    command = lee_controller(drone_at(0, 0, 2, yaw=1.0), torch.zeros(1, 3, dtype=DTYPE))
    torch.testing.assert_close(
        ((command + 1) / 2).sqrt(), torch.full_like(command, HUMMINGBIRD.hover_throttle)
    )


def test_hovering_with_a_zero_command_stays_where_it_is():
    last = fly(drone_at(1, 2, 3, yaw=0.7), torch.zeros(1, 3, dtype=DTYPE), 100)[-1]
    torch.testing.assert_close(last.position, tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(yaw_of(last.attitude), tensor(0.7))


@pytest.fixture(scope="module")
def step_response() -> tuple[Tensor, Tensor]:
    """Forward velocity and height over 8 s after a command of 2 m/s, one entry a step."""
    flown = fly(drone_at(0, 0, 2), tensor([2.0, 0.0, 0.0]), 500)
    return torch.stack([d.velocity[0, 0] for d in flown]), torch.stack(
        [d.position[0, 2] for d in flown]
    )


def test_the_step_response_settles_at_1_833_metres_a_second(step_response):
    assert step_response[0][-1].item() == pytest.approx(2 * 2.2 / 2.4, abs=2e-3)


def test_the_step_response_reaches_63_percent_after_0_46_seconds(step_response):
    velocity = step_response[0]
    reached = (velocity >= (1 - math.exp(-1)) * velocity[-1]).nonzero()[
        0, 0
    ].item() * HUMMINGBIRD.dt
    assert reached == pytest.approx(0.46, abs=0.02)


def test_the_step_response_does_not_overshoot(step_response):
    assert step_response[0].max() <= 2 * 2.2 / 2.4 + 1e-3


def test_the_step_response_loses_about_three_centimetres_of_height(step_response):
    assert 2 - step_response[1].min().item() == pytest.approx(0.03, abs=0.01)


def test_flight_does_not_depend_on_the_direction_flown():
    ahead = fly(drone_at(0, 0, 2), tensor([2.0, 0.0, 0.5]), 60)[-1]
    turned = fly(drone_at(0, 0, 2, yaw=math.pi / 2), tensor([0.0, 2.0, 0.5]), 60)[-1]
    torch.testing.assert_close(
        turned.position[0, [1, 0, 2]], ahead.position[0] * tensor(1.0, -1.0, 1.0)
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", [(0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (-1.0, -1.0, -0.5)])
def test_every_direction_settles_at_the_same_share_of_its_command(command):
    last = fly(drone_at(0, 0, 2, yaw=0.4), tensor(command), 500)[-1]
    torch.testing.assert_close(last.velocity[0], tensor(*command) * 2.2 / 2.4, atol=2e-3, rtol=0)


def test_the_yaw_is_held_while_flying():
    assert yaw_of(
        fly(drone_at(0, 0, 2, yaw=0.4), tensor([1.0, -2.0, 0.5]), 300)[-1].attitude
    ).item() == pytest.approx(0.4, abs=2e-2)


@pytest.mark.slow
def test_without_damping_the_command_is_reached():
    airframe = replace(HUMMINGBIRD, damping=0.0)
    assert fly(drone_at(0, 0, 2), tensor([2.0, 0.0, 0.0]), 500, airframe)[-1].velocity[
        0, 0
    ].item() == pytest.approx(2.0, abs=2e-3)


# Rigid body


def test_the_rotors_close_43_percent_of_the_gap_in_a_step():
    drone = replace(drone_at(0, 0, 2), throttle=tensor([0.5, 0.5, 0.5, 0.5]))
    stepped = step_rigid_body(drone, tensor([1.0, -1.0, 0.0, 7.0]))
    targets = tensor([1.0, 0.0, math.sqrt(0.5), 1.0])
    torch.testing.assert_close(stepped.throttle, 0.5 + 0.43 * (targets - 0.5))


def test_the_position_moves_with_the_new_velocity():
    falling = replace(
        drone_at(0, 0, 2, velocity=(1.0, 0.0, 0.0)), throttle=torch.zeros(1, 4, dtype=DTYPE)
    )
    stepped = step_rigid_body(falling, torch.full((1, 4), -1.0, dtype=DTYPE))
    kept = 1 - 0.2 * 0.016
    torch.testing.assert_close(stepped.velocity, tensor([kept, 0.0, -0.016 * 9.81 * kept]))
    torch.testing.assert_close(stepped.position, tensor([0.0, 0.0, 2.0]) + 0.016 * stepped.velocity)


def test_the_attitude_turns_with_the_new_rate():
    # level and at rest: a pure yaw torque
    drone = replace(drone_at(0, 0, 2), throttle=tensor([0.6, 0.5, 0.6, 0.5]))
    stepped = step_rigid_body(drone, 2 * drone.throttle**2 - 1)
    torque = 2 * (0.6**2 - 0.5**2) * HUMMINGBIRD.moment_constant * HUMMINGBIRD.max_rotor_speed**2
    rate = 0.016 * torque / 0.012 * (1 - 0.2 * 0.016)
    torch.testing.assert_close(stepped.angular_velocity, tensor([0.0, 0.0, rate]))
    assert yaw_of(stepped.attitude).item() == pytest.approx(2 * math.atan(0.5 * 0.016 * rate))


def test_a_heavier_drone_sinks_by_its_missing_lift():
    drone, hold = drone_at(0, 0, 2), tensor([2 * HUMMINGBIRD.hover_throttle**2 - 1] * 4)
    velocity = step_rigid_body(drone, hold, mass_scale=1.25).velocity[0, 2].item()
    assert velocity == pytest.approx(0.016 * 9.81 * (1 / 1.25 - 1) * (1 - 0.2 * 0.016))


def test_weaker_rotors_lift_less_and_each_drone_has_its_own_scale():
    two = hover(tensor([0.0, 0.0, 2.0], [0.0, 0.0, 2.0]), tensor(0.0, 0.0))
    hold = torch.full((2, 4), 2 * HUMMINGBIRD.hover_throttle**2 - 1, dtype=DTYPE)
    velocity = step_rigid_body(two, hold, thrust_scale=tensor(1.0, 0.9)).velocity[:, 2]
    torch.testing.assert_close(velocity, tensor(0.0, -0.016 * 9.81 * 0.1 * (1 - 0.2 * 0.016)))


def test_scales_of_the_plant_leave_the_controller_alone():
    light, heavy = (
        fly(drone_at(0, 0, 2), tensor([0.0, 0.0, 0.0]), 1, mass_scale=scale)[-1]
        for scale in (1.0, 2.0)
    )
    torch.testing.assert_close(light.throttle, heavy.throttle)


def test_wind_carries_a_falling_drone_along():
    airframe, wind = replace(HUMMINGBIRD, gravity=0.0), tensor(3.0, -1.0, 0.0)
    drone = replace(drone_at(0, 0, 2), throttle=torch.zeros(1, 4, dtype=DTYPE))
    stepped = step_rigid_body(drone, torch.full((1, 4), -1.0, dtype=DTYPE), airframe, wind=wind)
    torch.testing.assert_close(stepped.velocity[0], wind * 0.2 * 0.016)


def mujoco_flight(start: Drone, airframe: Airframe, seconds: float) -> Drone:
    """Return the same free flight at constant throttle by MuJoCo, Runge-Kutta at 0.5 ms: exact for
    our purpose.
    """
    mujoco = pytest.importorskip("mujoco")
    sites, motors = "", ""
    for index, (angle, turn) in enumerate(
        zip(airframe.rotor_angles, airframe.rotor_directions, strict=True)
    ):
        sites += (
            f'<site name="r{index}" pos="{airframe.arm * math.cos(angle)} '
            f'{airframe.arm * math.sin(angle)} 0"/>'
        )
        moment = -turn * airframe.moment_constant / airframe.force_constant
        motors += f'<motor site="r{index}" gear="0 0 1 0 0 {moment}"/>'
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option timestep="0.0005" integrator="RK4" gravity="0 0 {-airframe.gravity}"/><worldbody><body>
        <freejoint/><inertial pos="0 0 0" mass="{airframe.mass}"
        diaginertia="{" ".join(map(str, airframe.inertia))}"/>{sites}</body></worldbody>
        <actuator>{motors}</actuator></mujoco>"""
    )
    assert model.body_iquat[1].tolist() == [1, 0, 0, 0]  # MuJoCo keeps the order of the axes
    model.dof_damping[:3] = airframe.damping * airframe.mass
    model.dof_damping[3:] = [airframe.damping * value for value in airframe.inertia]
    data = mujoco.MjData(model)
    data.qpos[:] = torch.cat([start.position, start.attitude], dim=-1)[0].numpy()
    data.qvel[:3] = start.velocity[0].numpy()
    data.qvel[3:] = (
        rotation_matrix(start.attitude).mT[0] @ start.angular_velocity[0]
    ).numpy()  # body frame there
    data.ctrl[:] = (start.throttle[0] ** 2 * airframe.max_thrust).numpy()
    for _ in range(round(seconds / 0.0005)):
        mujoco.mj_step(model, data)
    position, attitude = (
        torch.from_numpy(part.copy())[None] for part in (data.qpos[:3], data.qpos[3:])
    )
    linear, angular = (
        torch.from_numpy(part.copy())[None] for part in (data.qvel[:3], data.qvel[3:])
    )
    return Drone(
        position,
        attitude,
        linear,
        (rotation_matrix(attitude) @ angular[..., None])[..., 0],
        start.throttle,
    )


def free_flight(start: Drone, airframe: Airframe, seconds: float, dt: float) -> Drone:
    # the throttle is in equilibrium
    airframe, commands = (replace(airframe, dt=dt), 2 * start.throttle**2 - 1)
    for _ in range(round(seconds / dt)):
        start = step_rigid_body(start, commands, airframe)
    return start


FLIGHTS = {
    "tumbling without thrust": [0.0, 0.0, 0.0, 0.0],
    "equal thrusts": [0.6, 0.6, 0.6, 0.6],
    "unequal thrusts": [0.55, 0.56, 0.54, 0.58],
}


@pytest.mark.slow
@pytest.mark.parametrize("throttle", FLIGHTS.values(), ids=FLIGHTS.keys())
def test_free_flight_converges_to_that_of_mujoco(throttle):
    # The integrator is of first order, so its error must halve with the step, and the combination
    # of two step sizes that cancels the first order must be far closer still. Agreement at one step
    # size alone could be luck.
    # three different moments: gyroscopic on all axes
    airframe = replace(HUMMINGBIRD, inertia=(0.005, 0.007, 0.012))
    attitude = tensor([0.8, 0.3, -0.4, 0.2]) / tensor(0.8, 0.3, -0.4, 0.2).norm()
    spin = tensor([2.0, -3.0, 4.0])
    start = Drone(
        tensor([1.0, 2.0, 3.0]), attitude, tensor([1.0, -2.0, 3.0]), spin, tensor(throttle)
    )
    exact = mujoco_flight(start, airframe, 0.4)
    coarse, fine = (free_flight(start, airframe, 0.4, dt) for dt in (0.002, 0.001))
    for name in ("position", "attitude", "velocity", "angular_velocity"):
        truth = getattr(exact, name)
        coarse_error, fine_error = (getattr(drone, name) - truth for drone in (coarse, fine))
        assert fine_error.norm() < 0.02, name
        assert 1.9 < coarse_error.norm() / fine_error.norm() < 2.1, name
        assert (2 * fine_error - coarse_error).norm() < 0.02 * fine_error.norm(), name


def test_one_step_at_full_dt_stays_near_mujoco():
    # Local error of a first-order method: half dt^2 times the acceleration, here 40 m/s^2 and 200
    # rad/s^2 at most.
    start = replace(
        drone_at(0, 0, 2),
        throttle=tensor([0.7, 0.6, 0.65, 0.6]),
        angular_velocity=tensor([1.0, 2.0, 3.0]),
    )
    exact = mujoco_flight(start, HUMMINGBIRD, 0.016)
    ours = free_flight(start, HUMMINGBIRD, 0.016, 0.016)
    assert (ours.position - exact.position).norm() < 0.5 * 0.016**2 * 40
    assert (ours.attitude - exact.attitude).norm() < 0.25 * 0.016**2 * 200


def test_first_order_closes_the_exponential_share_of_the_gap():
    drone = drone_at(0, 0, 2, velocity=(1.0, 0.0, 0.0))
    stepped = first_order(drone, tensor([3.0, 0.0, 0.0]), 0.3)
    expected = 3 - 2 * math.exp(-0.016 / 0.3)
    assert stepped.velocity[0, 0].item() == pytest.approx(expected)
    assert stepped.position[0, 0].item() == pytest.approx(0.016 * expected)
    assert (stepped.attitude == drone.attitude).all()
    assert (stepped.angular_velocity == 0).all()


# Start and goal frame


def test_a_drone_starts_facing_its_target():
    yaw = facing_yaw(tensor([1.0, 1.0, 2.0]), tensor([1.0, 5.0, 0.5]))
    assert yaw.item() == pytest.approx(math.pi / 2)
    assert yaw_of(hover(tensor([1.0, 1.0, 2.0]), yaw).attitude).item() == pytest.approx(math.pi / 2)


def test_the_height_range_is_ordered():
    expected = tensor([0.5, 2.0], [0.5, 2.0])
    ranges = start_height_range(
        tensor([0.0, 0.0, 2.0], [0.0, 0.0, 0.5]), tensor([1.0, 0.0, 0.5], [1.0, 0.0, 2.0])
    )
    torch.testing.assert_close(ranges, expected)


def test_the_target_direction_lies_along_x_in_the_goal_frame():
    direction = tensor([-3.0, 4.0, 1.5])
    torch.testing.assert_close(to_goal_frame(direction, direction), tensor([5.0, 0.0, 1.5]))


def test_left_of_the_target_direction_is_positive_y_in_the_goal_frame():
    torch.testing.assert_close(
        to_goal_frame(tensor([-1.0, 0.0, 0.0]), tensor([0.0, 2.0, 9.0])), tensor([0.0, 1.0, 0.0])
    )


def test_the_goal_frame_is_a_rotation_about_z():
    matrix = to_goal_frame(torch.eye(3, dtype=DTYPE)[None], tensor([-3.0, 4.0, 1.5]))[0]
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(3, dtype=DTYPE))
    assert torch.linalg.det(matrix).item() == pytest.approx(1.0)
    torch.testing.assert_close(matrix[2], tensor(0.0, 0.0, 1.0))
    torch.testing.assert_close(matrix[:, 2], tensor(0.0, 0.0, 1.0))


def test_the_goal_frame_round_trips_for_any_number_of_vectors():
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(6, 3, dtype=DTYPE, generator=generator)
    for shape in ((6, 3), (6, 4, 3), (6, 2, 5, 3)):
        vector = torch.randn(*shape, dtype=DTYPE, generator=generator)
        torch.testing.assert_close(
            from_goal_frame(to_goal_frame(vector, direction), direction), vector
        )


# Moving obstacles


def advance(
    step: int,
    position,
    goal,
    *,
    tall=False,
    uniform=(0.5, 0.5, 0.5),
    origin=(0.0, 0.0, 2.0),
    **options,
):
    moved = advance_obstacles(
        tensor([position]),
        tensor([[0.1, 0.2, 0.3]]),
        tensor([goal]),
        tensor([origin]),
        torch.tensor([tall]),
        step,
        tensor([uniform]),
        tensor([0.25]),
        **options,
    )
    return [part[0, 0] for part in moved]


def test_an_obstacle_on_its_way_keeps_goal_and_velocity():
    position, velocity, goal = advance(7, (0.0, 0.0, 2.0), (3.0, 0.0, 2.0))
    torch.testing.assert_close(velocity, tensor(0.1, 0.2, 0.3))
    torch.testing.assert_close(goal, tensor(3.0, 0.0, 2.0))
    torch.testing.assert_close(position, tensor(0.0, 0.0, 2.0) + 0.016 * velocity)


def test_an_obstacle_at_its_goal_draws_the_next_around_its_origin():
    goal = advance(7, (3.0, 0.0, 2.0), (3.2, 0.0, 2.4), uniform=(0.0, 0.75, 0.5))[2]
    # height -5 + 9 u: the original's asymmetry
    torch.testing.assert_close(goal, tensor(-5.0, 2.5, 1.5))


def test_a_goal_of_symmetric_height_is_an_option():
    goal = advance(7, (3.0, 0.0, 2.0), (3.0, 0.0, 2.0), symmetric_height=True)[2]
    torch.testing.assert_close(goal, tensor(0.0, 0.0, 2.0))


def test_a_goal_stays_inside_the_arena():
    goal = advance(
        0, (0.0, 0.0, 2.0), (9.0, 9.0, 9.0), uniform=(1.0, 0.0, 1.0), origin=(18.0, -19.0, 2.0)
    )[2]
    torch.testing.assert_close(goal, tensor(20.0, -20.0, 4.5))


def test_the_goal_of_a_tall_obstacle_is_at_its_centre_height():
    assert (
        advance(0, (0.0, 0.0, 2.5), (9.0, 9.0, 9.0), tall=True, uniform=(0.1, 0.1, 0.9))[2][2]
        == 2.5
    )


def test_the_first_step_draws_goal_and_velocity_for_all():
    position, velocity, goal = advance(
        0, (0.0, 0.0, 2.0), (9.0, 9.0, 2.0), uniform=(1.0, 0.5, 7 / 9)
    )
    torch.testing.assert_close(goal, tensor(5.0, 0.0, 4.0))
    torch.testing.assert_close(velocity, 0.75 * tensor(5.0, 0.0, 2.0) / math.sqrt(29))
    torch.testing.assert_close(position, tensor(0.0, 0.0, 2.0) + 0.016 * velocity)


@pytest.mark.parametrize(("step", "turns"), [(124, False), (125, True), (126, False), (250, True)])
def test_velocities_turn_to_the_goal_every_125_steps(step, turns):
    velocity = advance(step, (0.0, 0.0, 2.0), (0.0, 4.0, 2.0))[1]
    torch.testing.assert_close(velocity, tensor(0.0, 0.75, 0.0) if turns else tensor(0.1, 0.2, 0.3))


# Observation


def test_the_state_holds_direction_distances_and_velocity_in_the_goal_frame():
    drone = drone_at(0, 1, 1, velocity=(0.5, 2.0, -0.3))
    state = observe(drone, tensor([0.0, 4.0, 5.0]), tensor([0.0, 2.0, 1.0]), obstacles())["state"]
    torch.testing.assert_close(state, tensor([0.6, 0.0, 0.8, 3.0, 4.0, 2.0, -0.5, -0.3]))


def test_the_direction_is_horizontal_and_in_the_world_frame():
    direction = observe(
        drone_at(0, 0, 1), tensor([3.0, 4.0, 2.0]), tensor([3.0, 4.0, 1.0]), obstacles()
    )["direction"]
    torch.testing.assert_close(direction, tensor([3.0, 4.0, 0.0]))


def watch(*rows, position=(0.0, 0.0, 2.0), target=(0.0, 9.0, 2.0)) -> dict[str, Tensor]:
    return observe(
        drone_at(*position), tensor(target), tensor(target) - tensor(position), obstacles(*rows)
    )


def test_a_floating_obstacle_fills_its_row_in_the_goal_frame():
    row = watch((1.0, 2.0, 4.0, 0.0, 1.0, 0.5, 0.75, False))["dynamic_obstacle"][0, 0]
    expected = tensor(2 / 3, -1 / 3, 2 / 3, math.sqrt(5), 2.0, 1.0, 0.0, 0.5, 2.0, 1.0)
    torch.testing.assert_close(row, expected)


def test_a_tall_obstacle_is_always_level_and_has_height_code_zero():
    row = watch((1.0, 2.0, 2.5, 0.0, 1.0, 0.0, 0.25, True), position=(0.0, 0.0, 1.0))[
        "dynamic_obstacle"
    ][0, 0]
    distance = math.sqrt(5)
    torch.testing.assert_close(
        row, tensor(2 / distance, -1 / distance, 0, distance, 0, 1.0, 0, 0, 0, 0)
    )


def test_the_five_nearest_are_listed_by_horizontal_distance():
    rows = [
        (x, 0.0, z, 0, 0, 0, 0.5, False)
        for x, z in ((3.0, 2.0), (-1.0, 4.5), (2.5, 2.0), (2.0, 2.0), (1.5, 2.0))
    ]
    seen = watch(*rows, (0.0, 3.5, 2.0, 0, 0, 0, 0.5, False))
    torch.testing.assert_close(seen["dynamic_obstacle"][0, :, 3], tensor(1.0, 1.5, 2.0, 2.5, 3.0))
    torch.testing.assert_close(seen["nearest_horizontal"][0], tensor(1.0, 1.5, 2.0, 2.5, 3.0))


def test_an_obstacle_out_of_range_leaves_a_zero_row_and_full_clearance():
    seen = watch((4.01, 0.0, 2.0, 1, 1, 1, 1.0, False), (3.99, 0.0, 2.0, 1, 1, 1, 1.0, False))
    assert (seen["dynamic_obstacle"][0, 0] != 0).any()
    assert (seen["dynamic_obstacle"][0, 1:] == 0).all()
    torch.testing.assert_close(seen["nearest_clearance"][0], tensor(3.49, 4.0, 4.0, 4.0, 4.0))


def test_drones_share_a_world_or_have_their_own():
    drone = hover(tensor([0.0, 0.0, 2.0], [5.0, 0.0, 2.0]), tensor(0.0, 0.0))
    target = tensor([9.0, 0.0, 2.0], [9.0, 0.0, 2.0])
    shared = obstacles((1.0, 0.0, 2.0, 0, 0, 0, 0.5, False))
    own = replace(
        shared, position=torch.cat([shared.position, shared.position + tensor(6.0, 0.0, 0.0)])
    )
    own = replace(own, velocity=shared.velocity.expand(2, -1, -1), width=shared.width.expand(2, -1))
    in_shared, in_own = (
        observe(drone, target, target - drone.position, world) for world in (shared, own)
    )
    torch.testing.assert_close(in_shared["nearest_horizontal"][:, 0], tensor(1.0, 4.0))
    torch.testing.assert_close(in_own["nearest_horizontal"][:, 0], tensor(1.0, 2.0))


# Reward


def terms(
    drone: Drone,
    *,
    clearance=4.0,
    ray=4.0,
    previous=None,
    heights=(0.0, 4.0),
    target=(9.0, 0.0, 2.0),
    **options,
):
    distances = torch.full((1, 36, 4), ray, dtype=DTYPE)
    nearest = tensor([clearance, 4.0, 4.0, 4.0, 4.0])
    before = drone.velocity if previous is None else tensor(previous)
    return reward_terms(
        drone, before, tensor(target), distances, tensor(heights), nearest, **options
    )


def test_progress_is_the_velocity_towards_the_target():
    drone = drone_at(0, 0, 2, velocity=(1.0, 2.0, 3.0))
    assert terms(drone, target=(3.0, 4.0, 2.0))["progress"].item() == pytest.approx(
        0.6 * 1 + 0.8 * 2
    )


def test_the_static_term_is_the_mean_logarithm_of_the_rays():
    assert terms(drone_at(0, 0, 2), ray=2.0)["static"].item() == pytest.approx(math.log(2))


def test_a_ray_of_zero_length_counts_as_a_micrometre():
    assert terms(drone_at(0, 0, 2), ray=0.0)["static"].item() == pytest.approx(math.log(1e-6))


def test_the_dynamic_term_is_the_mean_logarithm_of_five_clearances():
    expected = (math.log(0.5) + 4 * math.log(4)) / 5
    assert terms(drone_at(0, 0, 2), clearance=0.5)["dynamic"].item() == pytest.approx(expected)


def test_a_drone_inside_an_obstacle_counts_a_clearance_of_a_micrometre():
    expected = (math.log(1e-6) + 4 * math.log(4)) / 5
    assert terms(drone_at(0, 0, 2), clearance=-0.2)["dynamic"].item() == pytest.approx(expected)


def test_a_clearance_beyond_the_range_counts_as_the_range():
    assert terms(drone_at(0, 0, 2), clearance=4.5)["dynamic"].item() == pytest.approx(math.log(4))


def test_the_clearance_is_the_distance_in_space_less_half_the_width():
    seen = watch((2.0, 0.0, 3.0, 0, 0, 0, 0.5, False))
    assert seen["nearest_clearance"][0, 0].item() == pytest.approx(math.sqrt(5) - 0.25)


def test_the_smoothness_term_is_the_change_of_velocity():
    drone = drone_at(0, 0, 2, velocity=(3.0, 4.0, 0.0))
    assert terms(drone, previous=(0.0, 0.0, 0.0))["smoothness"].item() == pytest.approx(-5.0)


@pytest.mark.parametrize(
    ("height", "excess"), [(1.0, 0.0), (0.85, 0.0), (0.5, 0.3), (2.15, 0.0), (2.7, 0.5)]
)
def test_the_height_term_is_the_squared_excess_beyond_the_widened_range(height, excess):
    assert terms(drone_at(0, 0, height), heights=(1.0, 2.0))["height"].item() == pytest.approx(
        -(excess**2)
    )


def test_the_total_has_the_weights_of_the_original():
    names = ("progress", "alive", "static", "dynamic", "smoothness", "height")
    separate = {name: tensor(10.0**power) for power, name in enumerate(names)}
    assert total_reward(separate).item() == pytest.approx(1 + 10 + 100 + 1000 + 1000 + 8 * 100000)


def test_a_term_without_a_weight_does_not_count():
    assert total_reward({"alive": tensor(1.0), "new": tensor(9.0)}).item() == 1


def test_the_logarithms_are_zero_at_the_reference_distance():
    free = terms(drone_at(0, 0, 2), log_reference=4.0)
    assert (free["static"].item(), free["dynamic"].item()) == (0, 0)


def test_free_cruise_earns_5_60_a_step():
    drone = fly(drone_at(0, 0, 2), tensor([2.0, 0.0, 0.0]), 500)[-2:]
    target = tensor([40.0, 0.0, drone[1].position[0, 2].item()])
    seen = observe(
        drone[1], target, tensor([40.0, 0.0, 0.0]), obstacles((0.0, 15.0, 2.0, 0, 0, 0, 1.0, False))
    )
    distances = scan(scene(), *drone[1].position[0].tolist())[None]
    parts = reward_terms(
        drone[1],
        drone[0].velocity,
        target,
        distances,
        tensor([2.0, 2.0]),
        seen["nearest_clearance"],
    )
    assert total_reward(parts).item() == pytest.approx(1.83 + 1 + 2 * math.log(4), abs=5e-3)


# Termination


def ends(drone: Drone, *, ray=4.0, target=(9.0, 0.0, 2.0), rows=()) -> set[str]:
    distances = torch.full((1, 36, 4), 4.0, dtype=DTYPE)
    distances[0, 17, 2] = ray
    seen = observe(drone, tensor(target), tensor([1.0, 0.0, 0.0]), obstacles(*rows))
    return {
        name
        for name, flag in terminations(drone, tensor(target), distances, seen).items()
        if flag.item()
    }


def test_free_flight_ends_nothing():
    assert ends(drone_at(0, 0, 2)) == set()


def test_a_single_ray_below_0_3_metres_is_a_static_collision():
    assert ends(drone_at(0, 0, 2), ray=0.299) == {"static_collision"}
    assert ends(drone_at(0, 0, 2), ray=0.3) == set()


@pytest.mark.parametrize(
    ("row", "hit"),
    [
        ((0.54, 0.0, 2.0, 0, 0, 0, 0.5, False), True),  # half width 0.25 + 0.3
        ((0.56, 0.0, 2.0, 0, 0, 0, 0.5, False), False),
        ((0.0, 0.0, 2.79, 0, 0, 0, 0.5, False), True),  # half height 0.5 + 0.3
        ((0.0, 0.0, 2.81, 0, 0, 0, 0.5, False), False),
        ((0.54, 0.0, 2.79, 0, 0, 0, 0.5, False), True),  # a cylinder around it, not a ball
        ((0.54, 0.0, 9.0, 0, 0, 0, 0.5, True), True),  # a tall one has no top
    ],
)
def test_a_moving_obstacle_beside_and_level_is_a_dynamic_collision(row, hit):
    assert ends(drone_at(0, 0, 2), rows=[row]) == ({"dynamic_collision"} if hit else set())


@pytest.mark.parametrize(
    ("height", "out"), [(0.19, True), (0.21, False), (3.99, False), (4.01, True)]
)
def test_flying_below_0_2_or_above_4_metres_is_out_of_bounds(height, out):
    assert ends(drone_at(0, 0, height)) == ({"out_of_bounds"} if out else set())


@pytest.mark.parametrize(
    ("away", "reached"),
    [
        (0.49, {"reached_half_metre", "reached_one_metre"}),
        (0.51, {"reached_one_metre"}),
        (1.01, set()),
    ],
)
def test_the_target_is_reached_within_half_a_metre_or_one(away, reached):
    assert ends(drone_at(0, 0, 2), target=(0.0, 0.6 * away, 2 + 0.8 * away)) == reached


# Without moving obstacles, and every dtype


def test_without_moving_obstacles_the_rows_are_zero_and_nothing_is_hit():
    seen = watch()
    assert seen["dynamic_obstacle"].shape == (1, 5, 10)
    assert (seen["dynamic_obstacle"] == 0).all()
    assert (seen["nearest_clearance"] == 4.0).all()
    assert ends(drone_at(0, 0, 2), rows=()) == set()


def test_without_moving_obstacles_the_dynamic_term_is_dropped():
    assert terms(drone_at(0, 0, 2), has_moving_obstacles=False)["dynamic"].item() == 0


def test_without_moving_obstacles_advancing_them_does_nothing():
    none = torch.zeros(4, 0, 3, dtype=DTYPE)
    moved = advance_obstacles(
        none, none, none, none, torch.zeros(0, dtype=torch.bool), 0, none, none[..., 0]
    )
    assert all(part.shape == (4, 0, 3) for part in moved)


def whole_step(dtype: torch.dtype) -> dict[str, Tensor]:
    world = scene(boxes=[(2, 3, -5, 5, 0, 6)], cylinders=[(0, 2, 0.5, 0, 5)])
    world = Scene(world.boxes.to(dtype), world.cylinders.to(dtype))
    moving = obstacles((1.0, 1.0, 2.0, 0, 1, 0, 0.5, False), (-1.0, 1.0, 2.5, 0, 1, 0, 0.5, True))
    moving = MovingObstacles(
        moving.position.to(dtype), moving.velocity.to(dtype), moving.width.to(dtype), moving.is_tall
    )
    position, target = tensor([0.1, 0.2, 1.0]).to(dtype), tensor([9.0, 3.0, 2.0]).to(dtype)
    drone = hover(position, facing_yaw(position, target))
    rotors = lee_controller(
        drone, from_goal_frame(tensor([2.0, 0.5, 0.1]).to(dtype), target - position)
    )
    moved = step_rigid_body(drone, rotors, wind=tensor(0.5, 0.0, 0.0).to(dtype))
    distances = cast_rays(
        world, moved.position, yaw_of(moved.attitude), AZIMUTHS.to(dtype), ELEVATIONS.to(dtype)
    )
    seen = observe(moved, target, target - position, moving)
    heights = start_height_range(position, target)
    parts = reward_terms(
        moved, drone.velocity, target, distances, heights, seen["nearest_clearance"]
    )
    state = {field.name: getattr(moved, field.name) for field in fields(moved)}
    return state | seen | parts | {"distances": distances, "total": total_reward(parts)}


def test_a_whole_step_in_float32_is_that_in_float64_rounded():
    single, double = whole_step(torch.float32), whole_step(torch.float64)
    for name, value in double.items():
        assert single[name].dtype == torch.float32, name
        assert value.dtype == torch.float64, name
        torch.testing.assert_close(single[name].double(), value, atol=1e-5, rtol=1e-5)


def test_no_argument_is_edited():
    drone = drone_at(0, 0, 2, velocity=(1.0, 0.0, 0.0))
    before = {field.name: getattr(drone, field.name).clone() for field in fields(drone)}
    fly(drone, tensor([2.0, 0.0, 0.0]), 2)
    watch((1.0, 0.0, 2.0, 0, 0, 0, 0.5, False))
    terms(drone)
    assert all((getattr(drone, name) == value).all() for name, value in before.items())
