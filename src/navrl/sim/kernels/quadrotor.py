"""Vehicles with constants of their own: a quadrotor of `drone.*`, and limits of the acceleration.

The Hummingbird of `drone.py` is code apart, with its constants compiled in: that is faster, and
its results are the same to the bit whatever is added here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from navrl.sim.kernels.drone import (
    ANGLES,
    ARM,
    ATTITUDE_GAIN,
    INERTIA,
    MASS,
    MAX_MOMENT,
    MAX_THRUST,
    MIXER,
    RATE_GAIN,
    ROTOR_LAG,
    TURNS,
    VELOCITY_GAIN,
    field_of,
    move,
    put,
)
from navrl.sim.kernels.layout import (
    ACTIVE,
    ATTITUDE,
    COMMAND,
    MASS_SCALE,
    POSITION,
    PREVIOUS_VELOCITY,
    RATE,
    THROTTLE,
    THRUST_SCALE,
    VELOCITY,
)
from navrl.sim.settings import DroneSettings
from navrl.simd import inner, maximum, minimum, sqrt

# Where the rotors' lag and the mixer are in the array, behind the numbers of an Airframe.
LAG_AT, MIXER_AT = 15, 16


class Airframe(NamedTuple):
    """The constants of a quadrotor with rotors on its body axes, and of its controller."""

    mass: Any  # kg
    inertia: Any  # (3,) kg m²
    velocity_gain: Any  # 1/s
    attitude_gain: Any  # (3,) 1/s²
    rate_gain: Any  # (3,) 1/s
    thrust: Any  # N, the most of one rotor
    torque: Any  # N m, of that thrust about the centre
    moment: Any  # N m, its drag
    acceleration: Any  # m/s², the most that the controller asks for; 0: no limit


def _mixer(
    arm: float, moment_ratio: float, inertia: Any, max_thrust: float
) -> tuple[tuple[float, ...], ...]:
    """Return, for each rotor, its thrust as a fraction of the greatest, of angular accelerations
    (3) and total thrust.
    """
    allocation = np.stack(
        [np.sin(ANGLES) * arm, -np.cos(ANGLES) * arm, -TURNS * moment_ratio, np.ones(4)]
    )
    rows = np.linalg.pinv(allocation) @ np.diag([*inertia, 1.0]) / max_thrust
    return tuple(tuple(float(value) for value in row) for row in rows)


@inner
def given(constants):
    """Return the quadrotor of the array that `airframe_constants` makes."""
    c = constants
    return Airframe(
        c[0],
        (c[1], c[2], c[3]),
        c[4],
        (c[5], c[6], c[7]),
        (c[8], c[9], c[10]),
        c[11],
        c[12],
        c[13],
        c[14],
    )


def airframe_constants(drone: DroneSettings, dt: float) -> NDArray[np.float32]:
    """Return the array of constants of a vehicle: an Airframe, the rotors' lag and the mixer."""
    if drone.model_name == "quadrotor":
        frame = Airframe(
            drone.mass,
            drone.inertia,
            drone.velocity_gain,
            drone.attitude_gain,
            drone.rate_gain,
            drone.rotor_thrust,
            drone.arm * drone.rotor_thrust,
            drone.rotor_moment * drone.rotor_thrust,
            drone.max_acceleration,
        )
        lag = 1 - math.exp(-dt / drone.rotor_time_constant)
        mixer = _mixer(drone.arm, drone.rotor_moment, drone.inertia, drone.rotor_thrust)
    else:
        frame = Airframe(
            MASS,
            INERTIA,
            VELOCITY_GAIN,
            ATTITUDE_GAIN,
            RATE_GAIN,
            MAX_THRUST,
            ARM * MAX_THRUST,
            MAX_MOMENT,
            drone.max_acceleration,
        )
        lag, mixer = ROTOR_LAG, MIXER
    return np.concatenate([*map(np.ravel, frame), [lag], np.ravel(mixer)]).astype(np.float32)


def hover_load(drone: DroneSettings) -> float:
    """Return the mass that a rotor carries, as a fraction of its greatest thrust, s²/m."""
    if drone.model_name == "quadrotor":
        return drone.mass / (4 * drone.rotor_thrust)
    return MASS / (4 * MAX_THRUST)


@inner
def _rotor(state, base, rotor, ax, ay, az, thrust, active, constants):
    """Move a rotor towards its share of the command; return its thrust as a fraction of the
    greatest.
    """
    mix = MIXER_AT + 4 * rotor
    turn = ax * constants[mix] + ay * constants[mix + 1] + az * constants[mix + 2]
    wanted = turn + thrust * constants[mix + 3]
    throttle = field_of(state, base, THROTTLE + rotor)
    lag = constants[LAG_AT]
    throttle = throttle + (sqrt(minimum(maximum(wanted, 0.0), 1.0)) - throttle) * lag
    put(state, base, THROTTLE + rotor, throttle, active)
    return minimum(throttle * throttle, 1.0)


@inner
def _share(limit, x, y, z):
    """Return by what a vector of lanes is to be multiplied so that it is no longer than `limit`."""
    return minimum(limit / maximum(sqrt(x * x + y * y + z * z), 1e-9), 1.0)


@inner
def step_quadrotor(state, base, dt, gravity, keep, constants):
    """Advance a block of drones by one step; `keep` is the fraction of its speed that damping
    leaves.
    """
    frame = given(constants)
    active = field_of(state, base, ACTIVE) > 0.5
    w, x = field_of(state, base, ATTITUDE), field_of(state, base, ATTITUDE + 1)
    y, z = field_of(state, base, ATTITUDE + 2), field_of(state, base, ATTITUDE + 3)
    r00, r01, r02 = 1.0 - (y * y + z * z) * 2.0, (x * y - w * z) * 2.0, (x * z + w * y) * 2.0
    r10, r11, r12 = (x * y + w * z) * 2.0, 1.0 - (x * x + z * z) * 2.0, (y * z - w * x) * 2.0
    r20, r21, r22 = (x * z - w * y) * 2.0, (y * z + w * x) * 2.0, 1.0 - (x * x + y * y) * 2.0
    rate_x = field_of(state, base, RATE)
    rate_y = field_of(state, base, RATE + 1)
    rate_z = field_of(state, base, RATE + 2)
    bx = r00 * rate_x + r10 * rate_y + r20 * rate_z  # body rates
    by = r01 * rate_x + r11 * rate_y + r21 * rate_z
    bz = r02 * rate_x + r12 * rate_y + r22 * rate_z
    vx = field_of(state, base, VELOCITY)
    vy = field_of(state, base, VELOCITY + 1)
    vz = field_of(state, base, VELOCITY + 2)

    # Lee controller: the wanted acceleration gives the wanted attitude, with the yaw that the
    # drone has.
    ax = (vx - field_of(state, base, COMMAND)) * frame.velocity_gain
    ay = (vy - field_of(state, base, COMMAND + 1)) * frame.velocity_gain
    az = (vz - field_of(state, base, COMMAND + 2)) * frame.velocity_gain
    if frame.acceleration > 0.0:
        share = _share(frame.acceleration, ax, ay, az)
        ax, ay, az = ax * share, ay * share, az * share
    az = az - gravity
    inverse = -1.0 / maximum(sqrt(ax * ax + ay * ay + az * az), 1e-6)
    up_x, up_y, up_z = ax * inverse, ay * inverse, az * inverse
    inverse = 1.0 / maximum(sqrt(r00 * r00 + r10 * r10), 1e-6)
    yaw_cosine, yaw_sine = r00 * inverse, r10 * inverse
    left_x = -up_z * yaw_sine
    left_y = up_z * yaw_cosine
    left_z = up_x * yaw_sine - up_y * yaw_cosine
    inverse = 1.0 / maximum(sqrt(left_x * left_x + left_y * left_y + left_z * left_z), 1e-6)
    left_x, left_y, left_z = left_x * inverse, left_y * inverse, left_z * inverse
    front_x = left_y * up_z - left_z * up_y
    front_y = left_z * up_x - left_x * up_z
    front_z = left_x * up_y - left_y * up_x
    error_x = (
        (up_x * r01 + up_y * r11 + up_z * r21) - (left_x * r02 + left_y * r12 + left_z * r22)
    ) * 0.5
    error_y = (
        (front_x * r02 + front_y * r12 + front_z * r22) - (up_x * r00 + up_y * r10 + up_z * r20)
    ) * 0.5
    error_z = (
        (left_x * r00 + left_y * r10 + left_z * r20)
        - (front_x * r01 + front_y * r11 + front_z * r21)
    ) * 0.5
    turn_x = -error_x * frame.attitude_gain[0] - bx * frame.rate_gain[0]
    turn_y = -error_y * frame.attitude_gain[1] - by * frame.rate_gain[1]
    turn_z = -error_z * frame.attitude_gain[2] - bz * frame.rate_gain[2]
    thrust = (ax * r02 + ay * r12 + az * r22) * -frame.mass

    # Rotors, forces and torques.
    p0 = _rotor(state, base, 0, turn_x, turn_y, turn_z, thrust, active, constants)
    p1 = _rotor(state, base, 1, turn_x, turn_y, turn_z, thrust, active, constants)
    p2 = _rotor(state, base, 2, turn_x, turn_y, turn_z, thrust, active, constants)
    p3 = _rotor(state, base, 3, turn_x, turn_y, turn_z, thrust, active, constants)
    scale = field_of(state, base, THRUST_SCALE)
    mass = field_of(state, base, MASS_SCALE) * frame.mass
    push = (p0 + p1 + p2 + p3) * scale * frame.thrust / mass
    torque_x = (p1 - p3) * scale * frame.torque
    torque_y = (p2 - p0) * scale * frame.torque
    torque_z = (p0 - p1 + p2 - p3) * scale * frame.moment

    # Rigid body, semi-implicit Euler.
    jx, jy, jz = frame.inertia
    new_x = (bx + (torque_x - by * bz * (jz - jy)) * (dt / jx)) * keep
    new_y = (by + (torque_y - bz * bx * (jx - jz)) * (dt / jy)) * keep
    new_z = (bz + (torque_z - bx * by * (jy - jx)) * (dt / jz)) * keep
    put(state, base, RATE, r00 * new_x + r01 * new_y + r02 * new_z, active)
    put(state, base, RATE + 1, r10 * new_x + r11 * new_y + r12 * new_z, active)
    put(state, base, RATE + 2, r20 * new_x + r21 * new_y + r22 * new_z, active)
    move(
        state,
        base,
        vx + r02 * push * dt,
        vy + r12 * push * dt,
        vz + (r22 * push - gravity) * dt,
        dt,
        keep,
        active,
    )
    hx, hy, hz = new_x * (0.5 * dt), new_y * (0.5 * dt), new_z * (0.5 * dt)
    qw, qx = w - x * hx - y * hy - z * hz, x + w * hx + y * hz - z * hy
    qy, qz = y + w * hy + z * hx - x * hz, z + w * hz + x * hy - y * hx
    inverse = 1.0 / sqrt(qw * qw + qx * qx + qy * qy + qz * qz)
    put(state, base, ATTITUDE, qw * inverse, active)
    put(state, base, ATTITUDE + 1, qx * inverse, active)
    put(state, base, ATTITUDE + 2, qy * inverse, active)
    put(state, base, ATTITUDE + 3, qz * inverse, active)


@inner
def step_limited_first_order(state, base, dt, response, acceleration):
    """Advance a block of drones whose velocity follows the command, no faster than `acceleration`
    allows.
    """
    active = field_of(state, base, ACTIVE) > 0.5
    vx = field_of(state, base, VELOCITY)
    vy = field_of(state, base, VELOCITY + 1)
    vz = field_of(state, base, VELOCITY + 2)
    dx = (field_of(state, base, COMMAND) - vx) * response
    dy = (field_of(state, base, COMMAND + 1) - vy) * response
    dz = (field_of(state, base, COMMAND + 2) - vz) * response
    share = _share(acceleration * dt, dx, dy, dz)
    old, change = (vx, vy, vz), (dx, dy, dz)
    for axis in range(3):
        new = old[axis] + change[axis] * share
        put(state, base, PREVIOUS_VELOCITY + axis, old[axis], active)
        put(state, base, VELOCITY + axis, new, active)
        put(state, base, POSITION + axis, field_of(state, base, POSITION + axis) + new * dt, active)
