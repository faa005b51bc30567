"""The vehicle: four rotors under a Lee velocity controller, or a first-order velocity response.

Both move a whole block of drones at once; `navrl.sim.reference` has the same physics in torch.
"""

from __future__ import annotations

import numpy as np

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
    WIND,
)
from navrl.simd import WIDTH, inner, load, maximum, minimum, sqrt, store, where

MASS = 0.716  # kg
INERTIA = (0.007, 0.007, 0.012)  # kg m²
ARM = 0.17  # m
FORCE_CONSTANT, MOMENT_CONSTANT, FASTEST_ROTOR = 8.54858e-6, 1.3677728816e-7, 838.0
MAX_THRUST = FORCE_CONSTANT * FASTEST_ROTOR**2  # N, of one rotor
MAX_MOMENT = MOMENT_CONSTANT * FASTEST_ROTOR**2  # N m
ROTOR_LAG = 0.43  # fraction of the way to the commanded throttle in a step
VELOCITY_GAIN = 2.2  # 1/s
ATTITUDE_GAIN = tuple(
    gain / inertia for gain, inertia in zip((0.7, 0.7, 0.035), INERTIA, strict=True)
)
RATE_GAIN = tuple(gain / inertia for gain, inertia in zip((0.1, 0.1, 0.025), INERTIA, strict=True))

ANGLES = np.array([0.0, 0.5, 1.0, -0.5]) * np.pi  # of the rotors, from the body's x axis
TURNS = np.array([-1.0, 1.0, -1.0, 1.0])  # and the directions in which they turn
_ALLOCATION = np.stack(
    [
        np.sin(ANGLES) * ARM,
        -np.cos(ANGLES) * ARM,
        -TURNS * MOMENT_CONSTANT / FORCE_CONSTANT,
        np.ones(4),
    ]
)
# From angular accelerations and total thrust to rotor thrusts, as fractions of MAX_THRUST.
_MIXER = np.linalg.pinv(_ALLOCATION) @ np.diag([*INERTIA, 1.0]) / MAX_THRUST
MIXER = tuple(tuple(float(value) for value in row) for row in _MIXER)


@inner
def field_of(state, base, field):
    """Return a field of a block of drones."""
    return load(state, base + field * WIDTH)


@inner
def put(state, base, field, value, active):
    """Write a field of the active drones; the others keep theirs."""
    index = base + field * WIDTH
    store(state, index, where(active, value, load(state, index)))


@inner
def _rotor(state, base, rotor, ax, ay, az, thrust, active):
    """Move a rotor towards its share of the command; return its thrust as a fraction of
    MAX_THRUST.
    """
    mix = MIXER[rotor]
    desired = ax * mix[0] + ay * mix[1] + az * mix[2] + thrust * mix[3]
    throttle = field_of(state, base, THROTTLE + rotor)
    throttle = throttle + (sqrt(minimum(maximum(desired, 0.0), 1.0)) - throttle) * ROTOR_LAG
    put(state, base, THROTTLE + rotor, throttle, active)
    return minimum(throttle * throttle, 1.0)


@inner
def step_hummingbird(state, base, dt, gravity, keep):
    """Advance a block of drones by one step; `keep` is the fraction of speed left by damping."""
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

    # Lee controller: the desired acceleration defines the desired attitude; yaw is kept as it is.
    ax = (vx - field_of(state, base, COMMAND)) * VELOCITY_GAIN
    ay = (vy - field_of(state, base, COMMAND + 1)) * VELOCITY_GAIN
    az = (vz - field_of(state, base, COMMAND + 2)) * VELOCITY_GAIN - gravity
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
    turn_x = -error_x * ATTITUDE_GAIN[0] - bx * RATE_GAIN[0]
    turn_y = -error_y * ATTITUDE_GAIN[1] - by * RATE_GAIN[1]
    turn_z = -error_z * ATTITUDE_GAIN[2] - bz * RATE_GAIN[2]
    thrust = (ax * r02 + ay * r12 + az * r22) * -MASS

    # Rotors, forces and torques.
    p0 = _rotor(state, base, 0, turn_x, turn_y, turn_z, thrust, active)
    p1 = _rotor(state, base, 1, turn_x, turn_y, turn_z, thrust, active)
    p2 = _rotor(state, base, 2, turn_x, turn_y, turn_z, thrust, active)
    p3 = _rotor(state, base, 3, turn_x, turn_y, turn_z, thrust, active)
    scale = field_of(state, base, THRUST_SCALE)
    push = (p0 + p1 + p2 + p3) * scale * MAX_THRUST / (field_of(state, base, MASS_SCALE) * MASS)
    torque_x = (p1 - p3) * scale * (ARM * MAX_THRUST)
    torque_y = (p2 - p0) * scale * (ARM * MAX_THRUST)
    torque_z = (p0 - p1 + p2 - p3) * scale * MAX_MOMENT

    # Rigid body, semi-implicit Euler.
    jx, jy, jz = INERTIA
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
def move(state, base, vx, vy, vz, dt, keep, active):
    """Damp velocities towards the wind, store the previous ones, and integrate the position."""
    wind_x, wind_y = field_of(state, base, WIND), field_of(state, base, WIND + 1)
    new = (wind_x + (vx - wind_x) * keep, wind_y + (vy - wind_y) * keep, vz * keep)
    for axis in range(3):
        put(state, base, PREVIOUS_VELOCITY + axis, field_of(state, base, VELOCITY + axis), active)
        put(state, base, VELOCITY + axis, new[axis], active)
        put(
            state,
            base,
            POSITION + axis,
            field_of(state, base, POSITION + axis) + new[axis] * dt,
            active,
        )


@inner
def step_first_order(state, base, dt, response):
    """Advance a block of drones whose velocity follows the command, by the fraction `response` of
    the difference per step.
    """
    active = field_of(state, base, ACTIVE) > 0.5
    for axis in range(3):
        velocity = field_of(state, base, VELOCITY + axis)
        new = velocity + (field_of(state, base, COMMAND + axis) - velocity) * response
        put(state, base, PREVIOUS_VELOCITY + axis, velocity, active)
        put(state, base, VELOCITY + axis, new, active)
        put(state, base, POSITION + axis, field_of(state, base, POSITION + axis) + new * dt, active)
