"""A readable torch statement of the navigation task: the oracle that the fast kernels are tested
against.

Pure functions over a batch of N drones: nothing edits its arguments, draws a random number or keeps
a state. Every function follows the dtype and the device of the tensors it is given. SI units,
radians, world frame with z up unless a name says otherwise. "Choice:" marks what the task's
description leaves open.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

TINY = 1e-6  # floor of every distance that is divided by, or whose logarithm is taken
LIDAR_RANGE = 4.0
ARENA_HALF_WIDTH, HIGHEST_GOAL = 20.0, 4.5  # limits of the goals of moving obstacles
TALL_HEIGHT, FLOATING_HEIGHT = 5.0, 1.0  # of the two kinds of moving obstacles


@dataclass(frozen=True)
class Scene:
    """The solids that a LiDAR sees. Each may be empty: `torch.zeros(0, 6)`, `torch.zeros(0, 5)`."""

    boxes: Tensor  # (M, 6): x0, x1, y0, y1, z0, z1
    cylinders: Tensor  # (C, 5): x, y, radius, z0, z1; the axis is vertical
    ground_half_width: float = 25.0  # flat ground z = 0 inside |x|, |y| <= this; nothing beyond


def cast_rays(
    scene: Scene,
    position: Tensor,
    yaw: Tensor,
    azimuths: Tensor,
    elevations: Tensor,
    maximum: float = LIDAR_RANGE,
) -> Tensor:
    """Return the exact distance to the first solid along every ray, (N, H, V), at most `maximum`.

    The rays turn with the yaw of the drone only, never with roll or pitch. An origin inside or on a
    solid gives 0.
    """
    heading = (yaw[:, None] + azimuths)[:, :, None]  # (N, H, 1)
    # (N, H, V)
    x, y = (torch.cos(heading) * torch.cos(elevations), torch.sin(heading) * torch.cos(elevations))
    direction = torch.stack([x, y, torch.sin(elevations).expand_as(x)], dim=-1)  # (N, H, V, 3)
    origin = position[:, None, None, :].expand_as(direction)  # (N, H, V, 3)
    ground = _ground_distance(scene.ground_half_width, origin, direction)[..., None]  # (N, H, V, 1)
    boxes = _box_distances(scene.boxes, origin, direction)  # (N, H, V, M)
    cylinders = _cylinder_distances(scene.cylinders, origin, direction)  # (N, H, V, C)
    return torch.cat([ground, boxes, cylinders], dim=-1).amin(dim=-1).clamp(max=maximum)


def _slab(origin: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ray parameters at which low <= origin + t * direction <= high begins and ends."""
    parallel = direction == 0
    divisor = torch.where(parallel, 1.0, direction)
    first, second = (low - origin) / divisor, (high - origin) / divisor
    # A ray parallel to the faces is between them all the way or never: an endless or an empty
    # interval.
    endless = torch.where((low <= origin) & (origin <= high), math.inf, -math.inf)
    enter = torch.where(parallel, -endless, torch.minimum(first, second))
    leave = torch.where(parallel, endless, torch.maximum(first, second))
    return enter, leave


def _first_hit(enter: Tensor, leave: Tensor) -> Tensor:
    """Return the distance at which a ray enters a convex solid, 0 from inside, infinity for a
    miss.
    """
    return torch.where((enter <= leave) & (leave >= 0), enter.clamp(min=0.0), math.inf)


def _box_distances(boxes: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    """Return (N, H, V, M) distances to boxes: a box is where the slabs of the three axes
    overlap.
    """
    low, high = boxes[:, 0::2], boxes[:, 1::2]  # (M, 3)
    # (N, H, V, M, 3)
    enter, leave = _slab(origin[..., None, :], direction[..., None, :], low, high)
    return _first_hit(enter.amax(dim=-1), leave.amin(dim=-1))


def _cylinder_distances(cylinders: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    """Return (N, H, V, C) distances to upright cylinders: an endless tube cut by the slab between
    the two caps.
    """
    x, y, radius, bottom, top = cylinders.unbind(dim=-1)  # (C,)
    from_x, from_y = origin[..., 0:1] - x, origin[..., 1:2] - y  # (N, H, V, C)
    # (N, H, V, 1)
    along_x, along_y, along_z = (direction[..., 0:1], direction[..., 1:2], direction[..., 2:3])
    # |from + t * along|^2 = radius^2 in the plane: a t^2 + 2 b t + c = 0. (a > 0: the cosine of no
    # angle rounds to 0.)
    a, b = along_x**2 + along_y**2, from_x * along_x + from_y * along_y
    discriminant = b**2 - a * (from_x**2 + from_y**2 - radius**2)
    root = discriminant.clamp(min=0.0).sqrt()
    cap_enter, cap_leave = _slab(origin[..., 2:3], along_z, bottom, top)
    enter = torch.maximum((-b - root) / a, cap_enter)
    leave = torch.minimum((-b + root) / a, cap_leave)
    return torch.where(discriminant >= 0, _first_hit(enter, leave), math.inf)


def _ground_distance(half_width: float, origin: Tensor, direction: Tensor) -> Tensor:
    """Return (N, H, V) distances to the square of ground. Choice: solid below, so an origin at z <=
    0 gives 0.
    """
    height, slope = origin[..., 2], direction[..., 2]
    distance = torch.where(slope < 0, height / -slope.clamp(max=-1e-30), math.inf)
    # (N, H, V, 2)
    landing = origin[..., :2] + distance[..., None].clamp(max=1e30) * direction[..., :2]
    on_ground = (landing.abs() <= half_width).all(dim=-1)
    buried = (height <= 0) & (origin[..., :2].abs() <= half_width).all(dim=-1)
    return torch.where(buried, 0.0, torch.where(on_ground & (height > 0), distance, math.inf))


@dataclass(frozen=True)
class Airframe:
    """The constants of the Hummingbird quadrotor, its velocity controller and its integrator."""

    mass: float = 0.716
    inertia: tuple[float, float, float] = (0.007, 0.007, 0.012)  # of the body axes
    arm: float = 0.17
    rotor_angles: tuple[float, float, float, float] = (0.0, 0.5 * math.pi, math.pi, -0.5 * math.pi)
    rotor_directions: tuple[float, float, float, float] = (-1.0, 1.0, -1.0, 1.0)
    force_constant: float = 8.54858e-6  # thrust / (rotor speed)^2
    moment_constant: float = 1.3677728816e-7  # drag moment / (rotor speed)^2
    max_rotor_speed: float = 838.0  # rad/s
    # share of the gap to the target throttle closed in a step, whatever dt is
    rotor_lag: float = 0.43
    velocity_gain: float = 2.2
    # divided by the inertia when used
    attitude_gain: tuple[float, float, float] = (0.7, 0.7, 0.035)
    rate_gain: tuple[float, float, float] = (0.1, 0.1, 0.025)  # divided by the inertia when used
    damping: float = 0.2  # 1/s, linear and angular
    gravity: float = 9.81
    dt: float = 0.016

    @property
    def max_thrust(self) -> float:
        """Thrust of one rotor at full speed: 6.003 N. Choice: computed from the constants, not the
        rounded figure.
        """
        return self.force_constant * self.max_rotor_speed**2

    @property
    def hover_throttle(self) -> float:
        """Throttle at which four rotors carry the nominal mass."""
        return math.sqrt(self.mass * self.gravity / (4 * self.max_thrust))

    def allocation(self, like: Tensor) -> Tensor:
        """Return the (4, 4) matrix that turns four rotor thrusts into torque x, y, z (body) and
        total thrust.
        """
        roll = [math.sin(angle) * self.arm for angle in self.rotor_angles]
        pitch = [-math.cos(angle) * self.arm for angle in self.rotor_angles]
        yaw = [
            -direction * self.moment_constant / self.force_constant
            for direction in self.rotor_directions
        ]
        return like.new_tensor([roll, pitch, yaw, [1.0] * 4])


HUMMINGBIRD = Airframe()


@dataclass(frozen=True)
class Drone:
    """The state of N drones."""

    position: Tensor  # (N, 3)
    attitude: Tensor  # (N, 4) unit quaternion w, x, y, z, body to world
    velocity: Tensor  # (N, 3) world frame
    angular_velocity: Tensor  # (N, 3) world frame
    throttle: Tensor  # (N, 4) in [0, 1]


def hover(position: Tensor, yaw: Tensor, airframe: Airframe = HUMMINGBIRD) -> Drone:
    """Return drones at rest and level at `position` (N, 3), heading `yaw` (N,), rotors carrying the
    weight.
    """
    zero = torch.zeros_like(yaw)
    attitude = torch.stack([torch.cos(yaw / 2), zero, zero, torch.sin(yaw / 2)], dim=-1)
    throttle = torch.full_like(attitude, airframe.hover_throttle)
    return Drone(
        position.clone(), attitude, torch.zeros_like(position), torch.zeros_like(position), throttle
    )


def rotation_matrix(attitude: Tensor) -> Tensor:
    """Return the body-to-world rotation (N, 3, 3) of unit quaternions (N, 4)."""
    w, x, y, z = attitude.unbind(dim=-1)
    first = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=-1)
    second = torch.stack(
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=-1
    )
    third = torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=-1)
    return torch.stack([first, second, third], dim=-2)


def yaw_of(attitude: Tensor) -> Tensor:
    """Return the heading (N,) of the body's x axis in the horizontal plane."""
    w, x, y, z = attitude.unbind(dim=-1)
    return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm(dim=-1, keepdim=True).clamp(min=TINY)


def lee_controller(
    drone: Drone, velocity_command_world: Tensor, airframe: Airframe = HUMMINGBIRD
) -> Tensor:
    """Return rotor commands (N, 4), nominally in [-1, 1] but not limited, that fly a velocity (N,
    3).

    Geometric control without position and yaw terms: the desired heading is the present one. The
    nominal mass is used whatever the plant weighs.
    """
    like, rotation, yaw = drone.velocity, rotation_matrix(drone.attitude), yaw_of(drone.attitude)
    gravity = like.new_tensor([0.0, 0.0, airframe.gravity])
    # (N, 3), minus wanted
    acceleration = airframe.velocity_gain * (drone.velocity - velocity_command_world) - gravity
    heading = torch.stack([torch.cos(yaw), torch.sin(yaw), torch.zeros_like(yaw)], dim=-1)
    up = -_unit(acceleration)
    left = _unit(torch.linalg.cross(up, heading))
    # (N, 3, 3), the axes are columns
    desired = torch.stack([torch.linalg.cross(left, up), left, up], dim=-1)
    difference = desired.mT @ rotation
    skew = 0.5 * (difference - difference.mT)
    attitude_error = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], dim=-1)  # (N, 3)
    rate = torch.einsum("nij,ni->nj", rotation, drone.angular_velocity)  # into the body frame
    # Gains are angular accelerations times inertia, so the wanted torque is the gains times the
    # errors.
    torque = -attitude_error * like.new_tensor(airframe.attitude_gain) - rate * like.new_tensor(
        airframe.rate_gain
    )
    thrust = -airframe.mass * (acceleration * rotation[:, :, 2]).sum(dim=-1, keepdim=True)  # (N, 1)
    rotor_thrust = (
        torch.cat([torque, thrust], dim=-1) @ torch.linalg.inv(airframe.allocation(like)).mT
    )
    return torch.nan_to_num(2 * rotor_thrust / airframe.max_thrust - 1, nan=0.0)


def step_rigid_body(
    drone: Drone,
    rotor_commands: Tensor,
    airframe: Airframe = HUMMINGBIRD,
    mass_scale: Tensor | float = 1.0,
    thrust_scale: Tensor | float = 1.0,
    wind: Tensor | float = 0.0,
) -> Drone:
    """Return the drones one step of `airframe.dt` later, under `rotor_commands` (N, 4).

    The order is part of the definition: rotor lag; thrust and torque; angular acceleration in the
    body frame with the gyroscopic term -J^-1 (w x J w); semi-implicit Euler, each velocity first
    kicked and then damped; position and attitude from the new velocities; quaternion to first
    order, then normalised.

    `mass_scale`, `thrust_scale`: number or (N,). `wind`: number or (3,) or (N, 3), the air velocity
    that linear damping pulls towards. Choice: `mass_scale` leaves the inertia alone (a load at the
    centre); `thrust_scale` multiplies all that a rotor gives, its drag moment included (a tired
    battery).
    """
    dt, like = airframe.dt, drone.velocity
    kept = 1 - airframe.damping * dt
    inertia = like.new_tensor(airframe.inertia)
    rotation = rotation_matrix(drone.attitude)  # (N, 3, 3)
    target = ((rotor_commands + 1) / 2).clamp(0.0, 1.0).sqrt()
    throttle = drone.throttle + airframe.rotor_lag * (target - drone.throttle)  # (N, 4)
    # (N, 4)
    rotor_thrust = (throttle**2).clamp(0.0, 1.0) * airframe.max_thrust * _column(thrust_scale, like)
    wrench = rotor_thrust @ airframe.allocation(like).mT  # (N, 4)
    torque, thrust = wrench[:, :3], wrench[:, 3:]
    # (N, 3), into the body frame
    rate = torch.einsum("nij,ni->nj", rotation, drone.angular_velocity)
    gyroscopic = torch.linalg.cross(rate, inertia * rate)
    rate = (rate + dt * (torque - gyroscopic) / inertia) * kept
    gravity = like.new_tensor([0.0, 0.0, airframe.gravity])
    lift = rotation[:, :, 2] * thrust / (airframe.mass * _column(mass_scale, like))
    velocity = drone.velocity + dt * (lift - gravity)
    velocity = wind + (velocity - wind) * kept
    position = drone.position + dt * velocity
    real, imaginary = drone.attitude[:, :1], drone.attitude[:, 1:]
    # of the quaternion product q * (0, rate)
    change_imaginary = real * rate + torch.linalg.cross(imaginary, rate)
    change_real = -(imaginary * rate).sum(dim=-1, keepdim=True)
    attitude = _unit(drone.attitude + 0.5 * dt * torch.cat([change_real, change_imaginary], dim=-1))
    return Drone(position, attitude, velocity, torch.einsum("nij,nj->ni", rotation, rate), throttle)


def first_order(
    drone: Drone,
    velocity_command: Tensor,
    time_constant: Tensor | float,
    airframe: Airframe = HUMMINGBIRD,
) -> Drone:
    """Return the drones one step later when velocity simply follows its command with a lag, without
    tilting.
    """
    share = 1 - torch.exp(-airframe.dt / _column(time_constant, drone.velocity))  # (N, 1) or (1, 1)
    velocity = drone.velocity + (velocity_command - drone.velocity) * share
    position, still = drone.position + airframe.dt * velocity, torch.zeros_like(velocity)
    return replace(drone, position=position, velocity=velocity, angular_velocity=still)


def _column(value: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(-1, 1)


def facing_yaw(start: Tensor, target: Tensor) -> Tensor:
    """Return the initial yaw (N,), which faces the target."""
    return torch.atan2(target[:, 1] - start[:, 1], target[:, 0] - start[:, 0])


def start_height_range(start: Tensor, target: Tensor) -> Tensor:
    """Return the lower and the upper of start and target height, (N, 2)."""
    return torch.stack(
        [torch.minimum(start[:, 2], target[:, 2]), torch.maximum(start[:, 2], target[:, 2])], dim=-1
    )


def to_goal_frame(vector: Tensor, target_direction: Tensor) -> Tensor:
    """Return world vectors (N, ..., 3) in the goal frame: x along the horizontal target direction
    (N, 3), z up.
    """
    # Choice: a target straight above the start gives angle 0, the world frame, not a frame that is
    # no rotation.
    return _turn(vector, -torch.atan2(target_direction[:, 1], target_direction[:, 0]))


def from_goal_frame(vector: Tensor, target_direction: Tensor) -> Tensor:
    """Return goal-frame vectors (N, ..., 3) in the world frame."""
    return _turn(vector, torch.atan2(target_direction[:, 1], target_direction[:, 0]))


def _turn(vector: Tensor, angle: Tensor) -> Tensor:
    """Return vectors (N, ..., 3) turned counter-clockwise about z by angle (N,)."""
    angle = angle.reshape(-1, *[1] * (vector.dim() - 2))
    x, y, z = vector.unbind(dim=-1)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return torch.stack([cosine * x - sine * y, sine * x + cosine * y, z], dim=-1)


@dataclass(frozen=True)
class MovingObstacles:
    """D moving obstacles in each of N worlds; a shared world has 1 for N. D may be 0."""

    position: Tensor  # (N, D, 3) centres
    velocity: Tensor  # (N, D, 3)
    width: Tensor  # (N, D) or (D,)
    # (D,) bool: "2D" cylinders, 5 m tall, centre at 2.5 m; the others are floating boxes, 1 m tall
    is_tall: Tensor


def advance_obstacles(
    position: Tensor,
    velocity: Tensor,
    goal: Tensor,
    origin: Tensor,
    is_tall: Tensor,
    step: Tensor | int,
    uniforms_goal: Tensor,
    uniforms_speed: Tensor,
    dt: float = 0.016,
    symmetric_height: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return position, velocity and goal (..., D, 3) after one step; `step` counts calls from 0.

    `uniforms_goal` (..., D, 3) and `uniforms_speed` (..., D) are in [0, 1), one for each obstacle
    whether used or not. `symmetric_height` draws the goal's height from +-4.5 m around the origin,
    not from the original's -5..4 m.
    Choice: "within 0.5 m" of the goal is strict, and in three dimensions.
    """
    step = torch.as_tensor(step, device=position.device)
    span = position.new_tensor([10.0, 10.0, 2 * HIGHEST_GOAL])
    below = position.new_tensor([5.0, 5.0, HIGHEST_GOAL if symmetric_height else 5.0])
    drawn = origin + uniforms_goal * span - below
    horizontal = drawn[..., :2].clamp(-ARENA_HALF_WIDTH, ARENA_HALF_WIDTH)
    height = torch.where(is_tall, TALL_HEIGHT / 2, drawn[..., 2].clamp(0.0, HIGHEST_GOAL))
    drawn = torch.cat([horizontal, height[..., None]], dim=-1)
    arrived = ((goal - position).norm(dim=-1) < 0.5) | (step == 0)  # (..., D)
    goal = torch.where(arrived[..., None], drawn, goal)
    turned = (0.5 + uniforms_speed)[..., None] * _unit(goal - position)
    is_turn = (step % int(2.0 / dt) == 0).expand(arrived.shape)[..., None]
    velocity = torch.where(is_turn, turned, velocity)
    return position + velocity * dt, velocity, goal


def observe(
    drone: Drone,
    target: Tensor,
    target_direction: Tensor,
    obstacles: MovingObstacles,
    count: int = 5,
    maximum: float = LIDAR_RANGE,
    position_error: Tensor | float = 0.0,
) -> dict[str, Tensor]:
    """Return the policy's inputs and, as "nearest_*" (N, count), what reward and termination need.

    state (N, 8), direction (N, 3), dynamic_obstacle (N, count, 10); nearest_horizontal,
    nearest_height_difference (0 for tall ones), nearest_clearance, nearest_width, nearest_height.
    An obstacle further away horizontally than `maximum` leaves a zero row and a clearance of
    `maximum`; so does a missing one, which is infinitely far away. `position_error` (N, 3) is what
    the drone's own position is off by; it moves the goal, not the obstacles, which are observed
    from the drone.
    """
    to_target = target - (drone.position + position_error)
    state = [
        to_goal_frame(_unit(to_target), target_direction),
        to_target[:, :2].norm(dim=-1, keepdim=True),
    ]
    state += [to_target[:, 2:], to_goal_frame(drone.velocity, target_direction)]
    nearest = _nearest(drone.position, obstacles, count)  # (N, count, 8)
    relative = nearest[..., :3]
    velocity = nearest[..., 3:6]
    width = nearest[..., 6]
    height = nearest[..., 7]
    horizontal, distance = relative[..., :2].norm(dim=-1), relative.norm(dim=-1)
    in_range = horizontal <= maximum
    row = [to_goal_frame(relative / distance.clamp(min=TINY)[..., None], target_direction)]
    row += [horizontal[..., None], relative[..., 2:], to_goal_frame(velocity, target_direction)]
    row += [(width / 0.25 - 1)[..., None], (height == FLOATING_HEIGHT)[..., None]]
    return {
        "state": torch.cat(state, dim=-1),
        "direction": target_direction * target_direction.new_tensor([1.0, 1.0, 0.0]),
        "dynamic_obstacle": torch.where(in_range[..., None], torch.cat(row, dim=-1), 0.0),
        "nearest_horizontal": horizontal,
        "nearest_height_difference": relative[..., 2],
        "nearest_clearance": torch.where(in_range, distance - width / 2, maximum),
        "nearest_width": width,
        "nearest_height": height,
    }


def detected(obstacles: MovingObstacles, missed: Tensor, error: Tensor) -> MovingObstacles:
    """Return the obstacles as a detector reports them: `missed` (N, D) ones are infinitely far
    away, the others are off by `error` (N, D, 3).
    """
    position = torch.where(missed[..., None], math.inf, obstacles.position + error)
    return replace(obstacles, position=position)


def delayed(observations: Tensor, delay: int) -> Tensor:
    """Return the observations (T, ...) of an episode, `delay` decisions late; the first one stands
    in for those that are not there yet.
    """
    return observations[(torch.arange(len(observations)) - delay).clamp(min=0)]


def _nearest(position: Tensor, obstacles: MovingObstacles, count: int) -> Tensor:
    """Return (N, count, 8): relative position, velocity, width, height of the nearest; missing ones
    at infinity.
    """
    relative = obstacles.position - position[:, None, :]  # (N, D, 3)
    batch, number = relative.shape[:2]
    columns = torch.zeros(
        batch, max(number, count), 8, dtype=position.dtype, device=position.device
    )
    columns[:, number:, 0] = math.inf
    columns[:, :number, :2] = relative[..., :2]
    columns[:, :number, 2] = torch.where(obstacles.is_tall, 0.0, relative[..., 2])
    columns[:, :number, 3:6] = obstacles.velocity
    columns[:, :number, 6] = obstacles.width
    columns[:, :number, 7] = torch.where(obstacles.is_tall, TALL_HEIGHT, FLOATING_HEIGHT)
    order = columns[..., :2].norm(dim=-1).argsort(dim=-1, stable=True)[:, :count]  # (N, count)
    return columns.gather(1, order[..., None].expand(-1, -1, 8))


def reward_terms(
    drone: Drone,
    previous_velocity: Tensor,
    target: Tensor,
    distances: Tensor,
    height_range: Tensor,
    clearance: Tensor,
    has_moving_obstacles: bool = True,
    maximum: float = LIDAR_RANGE,
    log_reference: float = 1.0,
) -> dict[str, Tensor]:
    """Return the terms (N,) of the reward of a step by name, without weights, penalties negative.

    `distances` (N, H, V) of the LiDAR, `height_range` (N, 2), `clearance` (N, count):
    `nearest_clearance` of `observe`.
    """
    low, high, height = height_range[:, 0] - 0.2, height_range[:, 1] + 0.2, drone.position[:, 2]
    excess = torch.maximum(height - high, low - height).clamp(min=0.0)
    progress = (drone.velocity * _unit(target - drone.position)).sum(dim=-1)
    dynamic = (clearance.clamp(TINY, maximum) / log_reference).log().mean(dim=-1)
    return {
        "progress": progress,
        "alive": torch.ones_like(progress),
        "static": (distances.clamp(TINY, maximum) / log_reference).log().mean(dim=(1, 2)),
        "dynamic": dynamic if has_moving_obstacles else torch.zeros_like(dynamic),
        "smoothness": -(drone.velocity - previous_velocity).norm(dim=-1),
        "height": -(excess**2),
    }


# The smoothness term of the original is zero all the same: it compares a velocity with itself.
ORIGINAL_WEIGHTS = {
    "progress": 1.0,
    "alive": 1.0,
    "static": 1.0,
    "dynamic": 1.0,
    "smoothness": 0.1,
    "height": 8.0,
}


def total_reward(
    terms: Mapping[str, Tensor], weights: Mapping[str, float] = ORIGINAL_WEIGHTS
) -> Tensor:
    """Return the reward (N,) of a step; a term without a weight does not count."""
    return torch.stack([weights.get(name, 0.0) * term for name, term in terms.items()]).sum(dim=0)


def terminations(
    drone: Drone,
    target: Tensor,
    distances: Tensor,
    observation: dict[str, Tensor],
    margin: float = 0.3,
) -> dict[str, Tensor]:
    """Return bool tensors (N,); the first three end an episode, the two "reached_*" are statistics
    of this step.
    """
    beside = observation["nearest_horizontal"] <= observation["nearest_width"] / 2 + margin
    level = (
        observation["nearest_height_difference"].abs() <= observation["nearest_height"] / 2 + margin
    )
    height, to_target = drone.position[:, 2], (target - drone.position).norm(dim=-1)
    return {
        "static_collision": (distances < margin).flatten(1).any(dim=-1),
        "dynamic_collision": (beside & level).any(dim=-1),
        "out_of_bounds": (height < 0.2) | (height > 4.0),
        "reached_half_metre": to_target < 0.5,
        "reached_one_metre": to_target < 1.0,
    }
