"""The moving obstacles near a drone: true positions for the reward, detections to observe."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import float32, int64

from navrl.navigation_observation import OBSTACLE
from navrl.sim.draws import DETECTION_DROPOUT, DETECTION_NOISE, normal, uniform
from navrl.sim.kernels.lidar import MISS
from navrl.sim.worlds.obstacles import FLOATING_HEIGHT, TALL_HEIGHT
from navrl.sim.worlds.terrain import ARENA
from navrl.simd import WIDTH, bits_of, inner, load, lowest_bit

FEATURES = len(OBSTACLE)  # of an observed moving obstacle
NEAREST = 64  # floats of scratch for the nearest obstacles: squared distances, then indices
NUMBERS = NEAREST // 2  # where the indices begin


class Clearances(NamedTuple):
    """The true distances to the surfaces of the nearest moving obstacles."""

    mean_log: Any  # mean of ln(m)
    least: Any  # m
    hit: Any  # bool, a collision with one of them


@inner
def find_nearest(scratch, nearest, moving, count, track, x, y, observed, reach):
    """Write the nearest moving obstacles within reach, nearest first; return their number."""
    # First search only the radius in which twice as many as needed are expected: usually enough.
    crowd = float32(2 * observed * (2 * ARENA) ** 2 / math.pi) / float32(count)
    limit = min(crowd, reach * reach)
    while True:
        found = _find_within(scratch, nearest, moving, track, x, y, observed, limit)
        if found == observed or limit >= reach * reach:
            return found
        limit = reach * reach


@inner
def _find_within(scratch, nearest, moving, track, x, y, observed, limit):
    """Write the nearest moving obstacles whose squared distance is at most `limit`, nearest first;
    return their number.
    """
    found, padded = 0, moving.padded
    for lane in range(0, padded, WIDTH):
        dx = load(moving.tracks, track + lane) - x
        dy = load(moving.tracks, track + padded + lane) - y
        close = bits_of(dx * dx + dy * dy <= limit)
        while close:
            k = lane + lowest_bit(close)
            close &= close - 1
            gap_x, gap_y = moving.tracks[track + k] - x, moving.tracks[track + padded + k] - y
            distance = gap_x * gap_x + gap_y * gap_y
            found = _insert(scratch, nearest, found, observed, distance, k)
            if found == observed:
                limit = scratch[nearest + observed - 1]
    return found


@inner
def _insert(scratch, nearest, found, observed, distance, k):
    """Insert obstacle `k` into the list of the nearest, unless it is too far; return the new
    length.
    """
    place = found
    while place > 0 and scratch[nearest + place - 1] > distance:
        place -= 1
    if place >= observed:
        return found
    found = min(found + 1, observed)
    for other in range(found - 1, place, -1):
        scratch[nearest + other] = scratch[nearest + other - 1]
        scratch[nearest + NUMBERS + other] = scratch[nearest + NUMBERS + other - 1]
    scratch[nearest + place], scratch[nearest + NUMBERS + place] = distance, float32(k)
    return found


@inner
def measure_obstacles(scene, nearest, found, world, track, position, forward, row, index):
    """Return the clearances of the nearest obstacles; write their rows from `index` on, unless
    negative.
    """
    scratch, moving, parameters = scene.scratch, scene.moving, scene.parameters
    x, y, z = position
    padded, reach, margin = moving.padded, parameters.reach, parameters.collision_radius
    rise = parameters.vertical_margin
    product, least, hit = 1.0, float32(MISS), False
    for place in range(found):
        k = int64(scratch[nearest + NUMBERS + place])
        tall = moving.sizes[(world * 2 + 1) * padded + k] > float32(0)
        width = moving.sizes[world * 2 * padded + k]
        dx, dy = moving.tracks[track + k] - x, moving.tracks[track + padded + k] - y
        dz = float32(0) if tall else moving.tracks[track + 2 * padded + k] - z
        horizontal = math.sqrt(scratch[nearest + place])
        distance = math.sqrt(dx * dx + dy * dy + dz * dz)
        half_height = float32(TALL_HEIGHT / 2) if tall else float32(FLOATING_HEIGHT / 2)
        if horizontal <= width * float32(0.5) + margin and abs(dz) <= half_height + rise:
            hit = True
        clearance = distance - width * float32(0.5)
        least = min(least, clearance)
        product *= min(max(clearance, float32(1e-6)), reach)
        if index >= 0:
            at = index + place * FEATURES
            _write_row(moving, world, track, k, dx, dy, dz, horizontal, forward, row, at)
    if index >= 0:
        _clear_rows(found, parameters.observed, row, index)
    logarithms = float32(parameters.observed - found) * parameters.log_reach
    if found > 0:
        logarithms += float32(math.log(product))
    mean_log = logarithms / float32(parameters.observed)
    return Clearances(mean_log, max(least, float32(0)), hit)


@inner
def _write_row(moving, world, track, k, dx, dy, dz, horizontal, forward, row, at):
    """Write `navigation_observation.OBSTACLE` of an obstacle; `forward` is x of the goal frame."""
    padded, (fx, fy) = moving.padded, forward
    inverse = float32(1) / max(math.sqrt(dx * dx + dy * dy + dz * dz), float32(1e-6))
    vx, vy = moving.tracks[track + 3 * padded + k], moving.tracks[track + 4 * padded + k]
    row[at], row[at + 1] = (dx * fx + dy * fy) * inverse, (dy * fx - dx * fy) * inverse
    row[at + 2], row[at + 3], row[at + 4] = dz * inverse, horizontal, dz
    row[at + 5], row[at + 6] = vx * fx + vy * fy, vy * fx - vx * fy
    row[at + 7] = moving.tracks[track + 5 * padded + k]
    row[at + 8] = moving.sizes[world * 2 * padded + k] * float32(4) - float32(1)
    is_tall = moving.sizes[(world * 2 + 1) * padded + k] > float32(0)
    row[at + 9] = float32(0) if is_tall else float32(1)


@inner
def _clear_rows(found, observed, row, index):
    """Write zeros into the rows without an obstacle."""
    for feature in range(found * FEATURES, observed * FEATURES):
        row[index + feature] = float32(0)


@inner
def write_detections(
    scene, nearest, world, track, drone, moment, position, forward, disturbed, row, index
):
    """Write the rows of the nearest obstacles as a detector reports them, which misses some and
    misplaces the others if `disturbed`.
    """
    scratch, moving, parameters = scene.scratch, scene.moving, scene.parameters
    x, y, z = position
    padded, reach, found = moving.padded, parameters.detection_reach, 0
    seed, spread = parameters.seed, parameters.detection_noise if disturbed else float32(0)
    for k in range(moving.counts[world]):
        if disturbed and _is_missed(drone, moment, k, parameters):
            continue
        dx = moving.tracks[track + k] - x + _error(drone, moment, k, 0, spread, seed)
        dy = moving.tracks[track + padded + k] - y + _error(drone, moment, k, 1, spread, seed)
        squared = dx * dx + dy * dy
        if squared <= reach * reach:
            found = _insert(scratch, nearest, found, parameters.observed, squared, k)
    for place in range(found):
        k = int64(scratch[nearest + NUMBERS + place])
        dx = moving.tracks[track + k] - x + _error(drone, moment, k, 0, spread, seed)
        dy = moving.tracks[track + padded + k] - y + _error(drone, moment, k, 1, spread, seed)
        dz = moving.tracks[track + 2 * padded + k] - z + _error(drone, moment, k, 2, spread, seed)
        if moving.sizes[(world * 2 + 1) * padded + k] > float32(0):
            dz = float32(0)
        horizontal, at = math.sqrt(scratch[nearest + place]), index + place * FEATURES
        _write_row(moving, world, track, k, dx, dy, dz, horizontal, forward, row, at)
    _clear_rows(found, parameters.observed, row, index)


@inner
def _is_missed(drone, moment, k, parameters):
    """Return whether the detector misses an obstacle at this step."""
    if parameters.detection_dropout == float32(0):
        return False
    draw = uniform(parameters.seed, DETECTION_DROPOUT, drone, moment, k)
    return draw < parameters.detection_dropout


@inner
def _error(drone, moment, k, axis, spread, seed):
    """Return the error of a detected position along an axis, m."""
    if spread == float32(0):
        return float32(0)
    return spread * normal(seed, DETECTION_NOISE, drone, moment, 3 * k + axis)
