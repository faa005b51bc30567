"""What the shield keeps away from: moving obstacles, and the columns that the LiDAR hits.

Everything is relative to the robot, in one frame, in m and m/s. A threat is an upright cylinder
that keeps its velocity: a moving obstacle, or the column of a LiDAR hit, which reaches up and down
to the next ray of the same azimuth that sees past it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numba import njit

# Columns of a threat. The gap is the distance from the robot's centre to its surface; one that may
# turn into the robot's way is `NEAR`.
X, Y, Z, VX, VY, VZ, HALF_WIDTH, HALF_HEIGHT, GAP, STANDING, SPEED, NEAR = range(12)
THREAT = 12
UNLIMITED = 1e6  # m: half the height of a column that is passed beside, never above or below
DEPTH = 0.3  # m: hits of neighbouring beams that differ by less belong to one column


class Limits(NamedTuple):
    """The shield's settings as the kernel reads them, as a record of a structured array."""

    speed: float  # m/s on each axis
    climb: float  # m/s up and down
    change: float  # m/s: largest difference between a command and the present velocity
    lag: float  # s
    body: float  # m: least distance to keep, where there is no more room
    static_radius: float  # m, at rest
    static_growth: float  # s: m of radius for each m/s of commanded speed
    static_horizon: float  # s
    moving_margin: float  # m
    moving_horizon: float  # s
    turning_gap: float  # m
    turning_cost: float  # 1/s^2
    lowest: float  # m above the ground
    highest: float  # m above the ground
    height_horizon: float  # s
    reach: float  # m, range of the LiDAR
    ground: float  # m above the ground below which a hit is the ground
    slowing: float  # how much more a loss of speed along the wanted direction costs than a detour
    contact_cost: float  # (m/s)^2


@njit(nogil=True)
def speed_of(velocity):
    """Return the length of a velocity."""
    return math.sqrt(velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2)


@njit(nogil=True)
def _set_threat(threat, x, y, low, high, half_width):
    """Write place and size of a threat that stands still."""
    threat[X], threat[Y], threat[Z] = x, y, 0.5 * (low + high)
    threat[VX] = threat[VY] = threat[VZ] = 0.0
    threat[HALF_WIDTH] = half_width
    threat[HALF_HEIGHT] = 0.5 * (high - low)
    beside = math.sqrt(x * x + y * y) - half_width
    threat[GAP] = max(beside, abs(threat[Z]) - threat[HALF_HEIGHT])
    threat[STANDING] = 1.0
    threat[SPEED] = threat[NEAR] = 0.0


@njit(nogil=True)
def _edge(distances, beam, other, near, cosines, slopes, unseen):
    """Return where a column ends, between the last beam that hits it and the one beyond."""
    if other < 0 or other >= distances.shape[0]:
        return unseen
    if distances[other] * cosines[other] <= near + DEPTH:
        return unseen  # something nearer hides the rest
    return 0.5 * near * (slopes[beam] + slopes[other])


@njit(nogil=True)
def add_columns(limits, height, bearing, lidar, sines, cosines, threats):
    """Write the columns that the LiDAR hits, without the ground; return how many there are."""
    count = 0
    azimuths, beams = lidar.shape
    slopes = sines / cosines
    free = limits.reach - 1e-3
    for azimuth in range(azimuths):
        angle = bearing + 2 * math.pi * azimuth / azimuths
        ahead, left = math.cos(angle), math.sin(angle)
        distances = lidar[azimuth]
        beam = 0
        while beam < beams:
            distance = distances[beam]
            if distance >= free or height + distance * sines[beam] < limits.ground:
                beam += 1
                continue
            first, level = beam, distance * cosines[beam]
            near = level
            while beam + 1 < beams and distances[beam + 1] < free:
                following = distances[beam + 1] * cosines[beam + 1]
                if abs(following - level) > DEPTH:
                    break
                level, near = following, min(near, following)
                beam += 1
            low = _edge(distances, first, first - 1, near, cosines, slopes, -UNLIMITED)
            high = _edge(distances, beam, beam + 1, near, cosines, slopes, UNLIMITED)
            _set_threat(threats[count], near * ahead, near * left, low, high, 0.0)
            count += 1
            beam += 1
    return count


@njit(nogil=True)
def add_moving(limits, times, position, velocity, obstacles, threats, count, tall_from):
    """Write a cylinder for each moving obstacle behind `count` threats; return how many there are.

    An obstacle has x, y, z, vx, vy, vz, width and height; a width of 0 or less is an empty slot.
    Those that no command can bring near within the horizon are left out.
    """
    fastest = max(speed_of(velocity), math.sqrt(2.0) * limits.speed + limits.climb)
    for row in range(obstacles.shape[0]):
        obstacle = obstacles[row]
        if not obstacle[6] > 0.0:
            continue
        threat = threats[count]
        middle, half = obstacle[2] - position[2], 0.5 * obstacle[7]
        if obstacle[7] > tall_from:
            middle, half = 0.0, UNLIMITED
        x, y = obstacle[0] - position[0], obstacle[1] - position[1]
        _set_threat(threat, x, y, middle - half, middle + half, 0.5 * obstacle[6])
        threat[VX], threat[VY] = obstacle[3], obstacle[4]
        threat[VZ] = obstacle[5] if half < UNLIMITED else 0.0
        threat[STANDING] = 0.0
        threat[SPEED] = math.sqrt(threat[VX] ** 2 + threat[VY] ** 2 + threat[VZ] ** 2)
        closing = fastest + threat[SPEED]
        near = threat[GAP] < limits.turning_gap + closing * times[-1]
        threat[NEAR] = 1.0 if near else 0.0
        if near or threat[GAP] < limits.moving_margin + closing * limits.moving_horizon:
            count += 1
    return count


@njit(nogil=True)
def order_nearest_first(threats, count, order):
    """Write the numbers of the threats by their gaps: contacts with near ones end most searches."""
    for number in range(count):
        place = number
        while place > 0 and threats[order[place - 1], GAP] > threats[number, GAP]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = number
