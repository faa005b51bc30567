"""The shield's compiled part: the nearest velocity command that meets nothing within its horizon.

Everything is relative to the robot, in one frame, in m and m/s. A threat is a sphere (a LiDAR hit),
a standing cylinder (a tall obstacle) or a cylinder of limited height (a floating obstacle) that
keeps its velocity. The robot follows a command only after a lag, so every threat is first moved by
what both fly during that lag; from then on the robot flies exactly as commanded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from navrl.kernel_cache import kernel

# Why a command was changed, in the order of `navrl.deploy.shield.REASONS`.
CLEAN, STATIC, MOVING, HEIGHT, NO_CLEAN_VELOCITY, INVALID = range(6)
SPHERE, TALL, FLOATING = range(3)
THREAT = 9  # numbers of a threat: relative position (3), velocity (3), radius, half height, kind
NEVER = 1e9  # s
CONTACT_COST = 60.0  # (m/s)^2 for a contact now, falling to 20 for one at the end of the horizon
ESCAPE_SPEED = 0.3  # m/s: inside a margin, a command must open the distance at least this fast
PASSING_TIME = 0.5  # s: how long a floating obstacle may take to pass above or below


class Limits(NamedTuple):
    """The shield's settings as the kernel reads them."""

    speed: float  # m/s on each axis
    change: float  # m/s: largest difference between a command and the present velocity
    lag: float  # s
    static_radius: float  # m, at rest
    static_growth: float  # s: m of radius for each m/s of commanded speed
    static_horizon: float  # s
    moving_margin: float  # m
    moving_horizon: float  # s
    lowest: float  # m above the ground
    highest: float  # m above the ground
    height_horizon: float  # s
    reach: float  # m, range of the LiDAR
    ground: float  # m above the ground below which a hit is the ground
    slowing: float  # how much more a loss of speed along the wanted direction costs than a detour


@njit(nogil=True)
def _static_threats(limits, height, bearing, velocity, lidar, sines, cosines, threats):
    """Write a sphere for each LiDAR hit that is not the ground; return how many there are."""
    count = 0
    azimuths, beams = lidar.shape
    lag = limits.lag
    for azimuth in range(azimuths):
        angle = bearing + 2 * math.pi * azimuth / azimuths
        ahead, left = math.cos(angle), math.sin(angle)
        for beam in range(beams):
            distance = lidar[azimuth, beam]
            if distance >= limits.reach - 1e-3:
                continue
            if height + distance * sines[beam] < limits.ground:
                continue
            threat = threats[count]
            threat[0] = distance * ahead * cosines[beam] - lag * velocity[0]
            threat[1] = distance * left * cosines[beam] - lag * velocity[1]
            threat[2] = distance * sines[beam] - lag * velocity[2]
            threat[3] = threat[4] = threat[5] = 0.0
            threat[6] = limits.static_radius
            threat[7] = 0.0
            threat[8] = SPHERE
            count += 1
    return count


@njit(nogil=True)
def _moving_threats(limits, position, velocity, obstacles, threats, count, tall_from):
    """Write a cylinder for each moving obstacle behind `count` threats; return how many there are.

    An obstacle has x, y, z, vx, vy, vz, width and height; a width of 0 or less is an empty slot.
    """
    lag = limits.lag
    for row in range(obstacles.shape[0]):
        obstacle = obstacles[row]
        if not obstacle[6] > 0.0:
            continue
        threat = threats[count]
        for axis in range(3):
            threat[axis] = obstacle[axis] - position[axis]
            threat[axis] += lag * (obstacle[3 + axis] - velocity[axis])
            threat[3 + axis] = obstacle[3 + axis]
        threat[6] = 0.5 * obstacle[6] + limits.moving_margin
        threat[7] = 0.5 * obstacle[7] + limits.moving_margin
        threat[8] = FLOATING
        if obstacle[7] > tall_from:
            threat[8] = TALL
        count += 1
    return count


@njit(nogil=True)
def _contact(threat, radius, horizon, vx, vy, vz):
    """Return when a robot with this velocity first touches a threat; `NEVER` within the horizon."""
    rx, ry, rz = threat[0], threat[1], threat[2]
    qx, qy, qz = threat[3] - vx, threat[4] - vy, threat[5] - vz
    kind = threat[8]
    flat_z, flat_qz = (rz, qz) if kind == SPHERE else (0.0, 0.0)
    squared = rx * rx + ry * ry + flat_z * flat_z
    closing = rx * qx + ry * qy + flat_z * flat_qz
    outside = squared - radius * radius
    time = 0.0
    if outside <= 0.0:
        if closing >= ESCAPE_SPEED * math.sqrt(squared):
            return NEVER
    else:
        speed = qx * qx + qy * qy + flat_qz * flat_qz
        discriminant = closing * closing - speed * outside
        if closing >= 0.0 or discriminant <= 0.0:
            return NEVER
        time = (-closing - math.sqrt(discriminant)) / max(speed, 1e-9)
    if time >= horizon:
        return NEVER
    if kind == FLOATING:
        later = min(time + PASSING_TIME, horizon)
        now_z, later_z = rz + qz * time, rz + qz * later
        if abs(now_z) > threat[7] and abs(later_z) > threat[7] and now_z * later_z > 0.0:
            return NEVER
    return time


@njit(nogil=True)
def _first_contact(limits, threats, count, goal_distance, vx, vy, vz):
    """Return the earliest contact as a share of its horizon (2 if there is none), and its kind."""
    speed = math.sqrt(vx * vx + vy * vy + vz * vz)
    arrival = goal_distance / max(speed, 1e-6)
    radius = limits.static_radius + limits.static_growth * speed
    first, kind = 2.0, CLEAN
    for number in range(count):
        threat = threats[number]
        static = threat[8] == SPHERE
        horizon = limits.static_horizon if static else limits.moving_horizon
        time = _contact(threat, radius if static else threat[6], horizon, vx, vy, vz)
        if time < arrival and time < horizon and 2.0 * time / horizon < first:
            first = 2.0 * time / horizon
            kind = STATIC if static else MOVING
    return first, kind


@njit(nogil=True)
def _climbs(limits, height, climb):
    """Return the lowest and highest vertical velocity that keeps the robot within its heights."""
    after = height + limits.lag * climb
    low = (limits.lowest - after) / limits.height_horizon
    high = (limits.highest - after) / limits.height_horizon
    return max(min(low, limits.speed), -limits.speed), min(max(high, -limits.speed), limits.speed)


@njit(nogil=True)
def _within_limits(limits, velocity, climbs, vx, vy, vz):
    """Return a command within the limits of height, change and speed."""
    vz = min(max(vz, climbs[0]), climbs[1])
    dx, dy, dz = vx - velocity[0], vy - velocity[1], vz - velocity[2]
    change = math.sqrt(dx * dx + dy * dy + dz * dz)
    if change > limits.change:
        scale = limits.change / change
        vx = velocity[0] + scale * dx
        vy = velocity[1] + scale * dy
        vz = velocity[2] + scale * dz
    top = limits.speed
    return min(max(vx, -top), top), min(max(vy, -top), top), min(max(vz, -top), top)


@njit(nogil=True)
def _nearest_clean(
    limits, threats, count, climbs, velocity, wanted, goal_distance, candidates, out
):
    """Write the cheapest command; return why it is not the wanted one."""
    first, why = _first_contact(
        limits, threats, count, goal_distance, wanted[0], wanted[1], wanted[2]
    )
    out[0], out[1], out[2] = wanted[0], wanted[1], wanted[2]
    if why == CLEAN:
        return CLEAN
    best, best_first = CONTACT_COST - 20.0 * first, first
    speed = max(math.sqrt(wanted[0] ** 2 + wanted[1] ** 2 + wanted[2] ** 2), 1e-6)
    for number in range(candidates.shape[0]):
        vx, vy, vz = _within_limits(
            limits,
            velocity,
            climbs,
            candidates[number, 0],
            candidates[number, 1],
            wanted[2] + candidates[number, 2],
        )
        cost = (vx - wanted[0]) ** 2 + (vy - wanted[1]) ** 2 + (vz - wanted[2]) ** 2
        along = (vx * wanted[0] + vy * wanted[1] + vz * wanted[2]) / speed
        cost += limits.slowing * max(speed - along, 0.0) ** 2
        if cost >= best:
            continue
        first, _ = _first_contact(limits, threats, count, goal_distance, vx, vy, vz)
        if first < 2.0:
            cost += CONTACT_COST - 20.0 * first
        if cost < best:
            best, best_first = cost, first
            out[0], out[1], out[2] = vx, vy, vz
    return why if best_first >= 2.0 else NO_CLEAN_VELOCITY


@njit(nogil=True)
def _is_finite(values):
    for value in values.flat:
        if not math.isfinite(value):
            return False
    return True


@kernel(nogil=True)
def filter_velocities(
    limits,
    desired,
    position,
    velocity,
    bearing,
    lidar,
    obstacles,
    goal_distance,
    sines,
    cosines,
    candidates,
    tall_from,
    out,
    reason,
):
    """Write the safe command of every robot, and why it differs from the desired one."""
    threats = np.zeros((lidar.shape[1] * lidar.shape[2] + obstacles.shape[1], THREAT))
    wanted = np.zeros(3)
    for robot in range(desired.shape[0]):
        usable = _is_finite(desired[robot]) and _is_finite(position[robot])
        usable = usable and _is_finite(velocity[robot]) and _is_finite(lidar[robot])
        usable = usable and _is_finite(obstacles[robot]) and math.isfinite(bearing[robot])
        if not usable:
            out[robot, 0] = out[robot, 1] = out[robot, 2] = 0.0
            reason[robot] = INVALID
            continue
        own = velocity[robot]
        height = position[robot, 2]
        climbs = _climbs(limits, height, own[2])
        climb = min(max(desired[robot, 2], -limits.speed), limits.speed)
        wanted[0], wanted[1], wanted[2] = _within_limits(
            limits, own, climbs, desired[robot, 0], desired[robot, 1], climb
        )
        count = _static_threats(
            limits, height, bearing[robot], own, lidar[robot], sines, cosines, threats
        )
        count = _moving_threats(
            limits, position[robot], own, obstacles[robot], threats, count, tall_from
        )
        distance = goal_distance[robot]
        why = _nearest_clean(
            limits, threats, count, climbs, own, wanted, distance, candidates, out[robot]
        )
        limited = climb < climbs[0] or climb > climbs[1]
        reason[robot] = HEIGHT if why == CLEAN and limited else why
