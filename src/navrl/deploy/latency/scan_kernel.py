"""The compiled part of a scan that is seen from another place than it was measured from.

Each beam is a ring of hits. A hit stands for a piece of an upright surface that reaches half way to
the hits beside it, or `EDGE` of the way to the next ray where those lie deeper or nearer. The rays
of the new place are cast at these pieces.
"""

from __future__ import annotations

import math

from numba import njit

from navrl.kernel_cache import kernel

FREE = 1e-3  # m: a ray that is shorter than the range by less has hit nothing
GROUND = 0.08  # m above the ground: hits below are the ground itself
EDGE = 0.65  # more than half: an edge that is seen too late costs more than one that is not there
NOTHING = -1.0  # instead of a distance
TOUCHING = 1e-9  # rad


@njit(nogil=True)
def _levels(ranges, beam, height, sine, cosine, reach, levels):
    """Write the horizontal distances of a beam's hits, without the ground."""
    for azimuth in range(ranges.shape[0]):
        distance = ranges[azimuth, beam]
        hit = distance < reach - FREE and height + distance * sine >= GROUND
        levels[azimuth] = distance * cosine if hit else NOTHING


@njit(nogil=True)
def _cast(x, y, end_x, end_y, bearing, step, slant, beam, out):
    """Shorten the rays of a beam that meet a piece of a surface, given from the new place."""
    first = math.atan2(y, x) - bearing
    width = math.atan2(end_y, end_x) - bearing - first
    width -= 2 * math.pi * round(width / (2 * math.pi))
    low, high = min(first, first + width), max(first, first + width)
    number = math.ceil((low - TOUCHING) / step)
    along_x, along_y = end_x - x, end_y - y
    while number * step <= high + TOUCHING:
        angle = bearing + number * step
        ahead, left = math.cos(angle), math.sin(angle)
        across = ahead * along_y - left * along_x
        if abs(across) > 1e-9:
            distance = (x * along_y - y * along_x) / across
        else:  # seen edge on
            distance = min(math.hypot(x, y), math.hypot(end_x, end_y))
        azimuth = number % out.shape[0]
        if 0.0 < distance * slant < out[azimuth, beam]:
            out[azimuth, beam] = distance * slant
        number += 1


@njit(nogil=True)
def _move_beam(levels, shift, bearing, step, slant, joined, beam, out):
    """Shorten the rays of a beam that meet what the old ones have hit."""
    azimuths = levels.shape[0]
    for azimuth in range(azimuths):
        level = levels[azimuth]
        if level < 0.0:
            continue
        angle = bearing + azimuth * step
        ahead, left = math.cos(angle), math.sin(angle)
        x, y = level * ahead - shift[0], level * left - shift[1]
        for side in (-1, 1):
            other = levels[(azimuth + side) % azimuths]
            if other >= 0.0 and abs(other - level) < joined:
                beside = angle + side * step
                end_x = 0.5 * (x + other * math.cos(beside) - shift[0])
                end_y = 0.5 * (y + other * math.sin(beside) - shift[1])
            else:
                half = side * level * math.tan(EDGE * step)
                end_x, end_y = x - half * left, y + half * ahead
            _cast(x, y, end_x, end_y, bearing, step, slant, beam, out)


@kernel(nogil=True)
def move_scans(ranges, bearings, shifts, heights, sines, cosines, reach, joined, levels, out):
    """Write the ranges that each robot sees after a shift, (N, azimuths, beams).

    `heights` are those at which the scans were measured. The ground stays under the robot.
    """
    step = 2 * math.pi / ranges.shape[1]
    for robot in range(ranges.shape[0]):
        height, rise = heights[robot], shifts[robot, 2]
        for beam in range(ranges.shape[2]):
            sine, cosine = sines[beam], cosines[beam]
            _levels(ranges[robot], beam, height, sine, cosine, reach, levels)
            for azimuth in range(ranges.shape[1]):
                distance = ranges[robot, azimuth, beam]
                ground = levels[azimuth] < 0.0 and distance < reach - FREE
                if ground and height > GROUND:
                    distance = min(distance * max(height + rise, GROUND) / height, reach)
                out[robot, azimuth, beam] = distance if ground else reach
            _move_beam(
                levels, shifts[robot], bearings[robot], step, 1 / cosine, joined, beam, out[robot]
            )
