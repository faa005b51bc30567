"""The quadrotor: its constants, Lee controller, rigid-body step and first-order alternative."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = [
    "HUMMINGBIRD",
    "Airframe",
    "Drone",
    "first_order",
    "hover",
    "lee_controller",
    "limited",
    "rotation_matrix",
    "step_rigid_body",
    "unit",
    "yaw_of",
]

TINY = 1e-6  # lower limit of every distance that is divided by, or whose logarithm is taken


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
    # fraction of the way to the commanded throttle in a step, whatever dt is
    rotor_lag: float = 0.43
    velocity_gain: float = 2.2
    max_acceleration: float = math.inf  # length of the acceleration that the controller asks for
    # divided by the inertia when used
    attitude_gain: tuple[float, float, float] = (0.7, 0.7, 0.035)
    rate_gain: tuple[float, float, float] = (0.1, 0.1, 0.025)  # divided by the inertia when used
    damping: float = 0.2  # 1/s, linear and angular
    gravity: float = 9.81
    dt: float = 0.016

    @property
    def max_thrust(self) -> float:
        """Thrust of one rotor at full speed, 6.003 N. Choice: from the constants, not rounded."""
        return self.force_constant * self.max_rotor_speed**2

    @property
    def hover_throttle(self) -> float:
        """Throttle at which four rotors carry the nominal mass."""
        return math.sqrt(self.mass * self.gravity / (4 * self.max_thrust))

    def allocation(self, like: Tensor) -> Tensor:
        """Return the (4, 4) matrix from rotor thrusts to body torques x, y, z and total thrust."""
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
    """Return drones that hover at `position` (N, 3) with heading `yaw` (N,)."""
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


def unit(vector: Tensor) -> Tensor:
    """Return vectors (..., 3) of length 1."""
    return vector / vector.norm(dim=-1, keepdim=True).clamp(min=TINY)


def limited(vector: Tensor, length: float) -> Tensor:
    """Return vectors (..., 3) shortened to a length where they are longer."""
    return vector * (length / vector.norm(dim=-1, keepdim=True).clamp(min=1e-9)).clamp(max=1.0)


def lee_controller(
    drone: Drone, velocity_command_world: Tensor, airframe: Airframe = HUMMINGBIRD
) -> Tensor:
    """Return rotor commands (N, 4), nominally in [-1, 1] but not clipped, for velocities (N, 3).

    Geometric control without position and yaw terms: the desired heading is the current one. The
    nominal mass is used whatever the actual one is.
    """
    like, rotation, yaw = drone.velocity, rotation_matrix(drone.attitude), yaw_of(drone.attitude)
    gravity = like.new_tensor([0.0, 0.0, airframe.gravity])
    wanted = airframe.velocity_gain * (drone.velocity - velocity_command_world)
    acceleration = limited(wanted, airframe.max_acceleration) - gravity  # (N, 3), minus desired
    heading = torch.stack([torch.cos(yaw), torch.sin(yaw), torch.zeros_like(yaw)], dim=-1)
    up = -unit(acceleration)
    left = unit(torch.linalg.cross(up, heading))
    # (N, 3, 3), the axes are columns
    desired = torch.stack([torch.linalg.cross(left, up), left, up], dim=-1)
    difference = desired.mT @ rotation
    skew = 0.5 * (difference - difference.mT)
    attitude_error = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], dim=-1)  # (N, 3)
    rate = torch.einsum("nij,ni->nj", rotation, drone.angular_velocity)  # into the body frame
    # Gains include the inertia, so the desired torque is the gains times the errors.
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
    accelerated and then damped; position and attitude from the new velocities; quaternion to first
    order, then normalised.

    `mass_scale`, `thrust_scale`: number or (N,). `wind`: number or (3,) or (N, 3), the air velocity
    that linear damping pulls towards. Choice: `mass_scale` leaves the inertia unchanged (a load at
    the centre); `thrust_scale` scales the thrust and drag moment of a rotor (a weak battery).
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
    attitude = unit(drone.attitude + 0.5 * dt * torch.cat([change_real, change_imaginary], dim=-1))
    return Drone(position, attitude, velocity, torch.einsum("nij,nj->ni", rotation, rate), throttle)


def first_order(
    drone: Drone,
    velocity_command: Tensor,
    time_constant: Tensor | float,
    airframe: Airframe = HUMMINGBIRD,
) -> Drone:
    """Return the drones one step later if velocity follows its command with a lag, without tilt."""
    share = 1 - torch.exp(-airframe.dt / _column(time_constant, drone.velocity))  # (N, 1) or (1, 1)
    change = (velocity_command - drone.velocity) * share
    velocity = drone.velocity + limited(change, airframe.max_acceleration * airframe.dt)
    position, still = drone.position + airframe.dt * velocity, torch.zeros_like(velocity)
    return replace(drone, position=position, velocity=velocity, angular_velocity=still)


def _column(value: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(-1, 1)
