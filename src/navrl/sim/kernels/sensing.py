"""What a drone observes, and the distances that its reward and termination are computed from."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import float32, int64

from navrl.navigation_observation import OBSTACLE
from navrl.sim.draws import LIDAR_DROPOUT, LIDAR_NOISE, normal, uniform
from navrl.sim.kernels.layout import (
    ATTITUDE,
    COUNTERS,
    DIRECTION,
    EPISODE,
    FIELDS,
    FORWARD,
    POSITION,
    STEP,
    TARGET,
    VELOCITY,
    WORLD,
)
from navrl.sim.kernels.lidar import (
    BATCH,
    CYLINDER,
    MISS,
    X0,
    X1,
    Y0,
    Y1,
    Z0,
    Z1,
    cast_at_batch,
    cast_rays,
    measure,
    subtend,
    write_scan,
)
from navrl.sim.worlds.terrain import ARENA
from navrl.simd import WIDTH, bits_of, inner, load, lowest_bit

TALL, SHORT = 5.0, 1.0  # m, heights of the moving cylinders and boxes
FEATURES = len(OBSTACLE)  # numbers of an observed moving obstacle


class Sensed(NamedTuple):
    """What reward and termination are computed from, free of noise."""

    shortest_ray: Any  # m
    mean_log_ray: Any  # mean of ln(m)
    surface_squared: Any  # m², to the nearest static surface
    mean_log_clearance: Any  # mean of ln(m) over the observed moving obstacles
    least_clearance: Any  # m, to one of them
    hits_moving: Any  # bool


NEAREST = 64  # floats of scratch for the nearest obstacles: squared distances, then numbers


@inner
def _find_nearest(scratch, nearest, moving, count, track, x, y, observed, reach):
    """Write the nearest moving obstacles within reach, nearest first; return how many there are."""
    # In a crowd, look first no farther than twice as many as needed should be; most of the time
    # that is enough.
    crowd = float32(2 * observed * (2 * ARENA) ** 2 / math.pi) / float32(count)
    limit = min(crowd, reach * reach)
    while True:
        found = _find_within(scratch, nearest, moving, track, x, y, observed, limit)
        if found == observed or limit >= reach * reach:
            return found
        limit = reach * reach


@inner
def _find_within(scratch, nearest, moving, track, x, y, observed, limit):
    """Write the nearest moving obstacles within the root of `limit`, nearest first; return how many
    there are.
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
            place = found
            while place > 0 and scratch[nearest + place - 1] > distance:
                place -= 1
            if place >= observed:
                continue
            found = min(found + 1, observed)
            for other in range(found - 1, place, -1):
                scratch[nearest + other] = scratch[nearest + other - 1]
                scratch[nearest + NEAREST // 2 + other] = scratch[
                    nearest + NEAREST // 2 + other - 1
                ]
            scratch[nearest + place], scratch[nearest + NEAREST // 2 + place] = distance, float32(k)
            if found == observed:
                limit = scratch[nearest + observed - 1]
    return found


@inner
def _meet_obstacles(
    scratch, nearest, found, moving, world, track, x, y, z, fx, fy, parameters, row, index
):
    """Return the clearance term, the least clearance, and whether one is hit; write their rows
    unless `index` < 0.
    """
    padded, reach, margin = moving.padded, parameters.reach, parameters.collision_radius
    product, least, hit = 1.0, float32(MISS), False
    for place in range(found):
        k = int64(scratch[nearest + NEAREST // 2 + place])
        tall = moving.sizes[(world * 2 + 1) * padded + k] > float32(0)
        width = moving.sizes[world * 2 * padded + k]
        dx, dy = moving.tracks[track + k] - x, moving.tracks[track + padded + k] - y
        dz = float32(0) if tall else moving.tracks[track + 2 * padded + k] - z
        horizontal = math.sqrt(scratch[nearest + place])
        distance = math.sqrt(dx * dx + dy * dy + dz * dz)
        half_height = float32(TALL / 2) if tall else float32(SHORT / 2)
        if horizontal <= width * float32(0.5) + margin and abs(dz) <= half_height + margin:
            hit = True
        clearance = distance - width * float32(0.5)
        least = min(least, clearance)
        product *= min(max(clearance, float32(1e-6)), reach)
        if index >= 0:
            at = index + place * FEATURES
            inverse = float32(1) / max(distance, float32(1e-6))
            vx, vy = moving.tracks[track + 3 * padded + k], moving.tracks[track + 4 * padded + k]
            row[at], row[at + 1] = (dx * fx + dy * fy) * inverse, (dy * fx - dx * fy) * inverse
            row[at + 2], row[at + 3], row[at + 4] = dz * inverse, horizontal, dz
            row[at + 5], row[at + 6] = vx * fx + vy * fy, vy * fx - vx * fy
            row[at + 7] = moving.tracks[track + 5 * padded + k]
            row[at + 8] = width * float32(4) - float32(1)
            row[at + 9] = float32(0) if tall else float32(1)
    absent = parameters.observed - found
    if index >= 0:
        for feature in range(absent * FEATURES):
            row[index + found * FEATURES + feature] = float32(0)
    logarithms = float32(absent) * parameters.log_reach
    if found > 0:
        logarithms += float32(math.log(product))
    return logarithms / float32(parameters.observed), max(least, float32(0)), hit


@inner
def _scan_moving(scratch, moving, world, track, x, y, z, cosine, sine, lidar, reach):
    """Let the rays meet the moving obstacles too, a batch of shapes at a time."""
    padded, batch = moving.padded, (2 + lidar.number) * lidar.padded
    widest = reach + float32(1)
    used = 0
    for k in range(moving.counts[world]):
        px, py = moving.tracks[track + k], moving.tracks[track + padded + k]
        if (px - x) ** 2 + (py - y) ** 2 <= widest * widest:
            half = moving.sizes[world * 2 * padded + k] * float32(0.5)
            tall = moving.sizes[(world * 2 + 1) * padded + k]
            pz = moving.tracks[track + 2 * padded + k]
            half_height = float32(TALL / 2) if tall > float32(0) else float32(SHORT / 2)
            lane = batch + used
            scratch[lane + X0] = px - half
            scratch[lane + X1] = px + half
            scratch[lane + Y0] = py - half
            scratch[lane + Y1] = py + half
            scratch[lane + Z0] = pz - half_height
            scratch[lane + Z1] = pz + half_height
            scratch[lane + CYLINDER] = tall
            used += 1
        if used == WIDTH or (used > 0 and k == moving.counts[world] - 1):
            shapes = (
                load(scratch, batch + X0),
                load(scratch, batch + X1),
                load(scratch, batch + Y0),
                load(scratch, batch + Y1),
                load(scratch, batch + Z0),
                load(scratch, batch + Z1),
                load(scratch, batch + CYLINDER),
                load(scratch, batch),
            )
            met, _ = subtend(
                scratch, batch, shapes, used, x, y, z, cosine, sine, lidar.count, reach * reach
            )
            cast_at_batch(scratch, batch, met, False, lidar)
            used = 0


@inner
def _disturb_scan(observation, index, rays, drone, episode, step, parameters):
    """Add noise and drop-outs to the written scan."""
    moment = (int64(episode) << 24) + step
    for ray in range(rays):
        value = observation[index + ray]
        if parameters.noise > float32(0) and value > float32(0):
            value -= parameters.noise * normal(parameters.seed, LIDAR_NOISE, drone, moment, ray)
        if (
            parameters.dropout > float32(0)
            and uniform(parameters.seed, LIDAR_DROPOUT, drone, moment, ray) < parameters.dropout
        ):
            value = float32(0)
        observation[index + ray] = min(max(value, float32(0)), parameters.reach)


@inner
def sense(drones, worlds, moving, lidar, parameters, drone, track, scratch, observation, index):
    """Look around: return what reward and termination need; write the observation from `index` on,
    unless it is < 0.

    """
    state, base = drones.state, drone // WIDTH * FIELDS * WIDTH + drone % WIDTH
    world = int64(drones.counters[drone * COUNTERS + WORLD])
    x, y = state[base + POSITION * WIDTH], state[base + (POSITION + 1) * WIDTH]
    z = state[base + (POSITION + 2) * WIDTH]
    qw, qx = state[base + ATTITUDE * WIDTH], state[base + (ATTITUDE + 1) * WIDTH]
    qy, qz = state[base + (ATTITUDE + 2) * WIDTH], state[base + (ATTITUDE + 3) * WIDTH]
    cosine, sine = float32(1) - float32(2) * (qy * qy + qz * qz), float32(2) * (qx * qy + qw * qz)
    inverse = float32(1) / math.sqrt(max(cosine * cosine + sine * sine, float32(1e-12)))
    cosine, sine = cosine * inverse, sine * inverse
    reach = parameters.reach
    surface = cast_rays(scratch, x, y, z, cosine, sine, worlds, world, lidar, reach)
    shortest, static_term = measure(scratch, lidar, reach)
    rays = lidar.count * lidar.number
    write = index >= 0
    if write:
        if parameters.visible:
            _scan_moving(scratch, moving, world, track, x, y, z, cosine, sine, lidar, reach)
        write_scan(scratch, lidar, reach, observation, index)
        if parameters.noise > float32(0) or parameters.dropout > float32(0):
            episode = drones.counters[drone * COUNTERS + EPISODE]
            step = drones.counters[drone * COUNTERS + STEP]
            _disturb_scan(observation, index, rays, drone, episode, step, parameters)
    fx, fy = state[base + FORWARD * WIDTH], state[base + (FORWARD + 1) * WIDTH]
    nearest, found = (2 + lidar.number) * lidar.padded + BATCH, 0
    count = moving.counts[world]
    if count > 0:
        found = _find_nearest(
            scratch, nearest, moving, count, track, x, y, parameters.observed, reach
        )
    at = index + rays if write else -1
    dynamic_term, least, hit = _meet_obstacles(
        scratch, nearest, found, moving, world, track, x, y, z, fx, fy, parameters, observation, at
    )
    if write:
        _write_state(
            state, base, x, y, z, fx, fy, observation, index + rays + parameters.observed * FEATURES
        )
    return Sensed(shortest, static_term, surface, dynamic_term, least, hit)


@inner
def _write_state(state, base, x, y, z, fx, fy, row, at):
    """Write the eight numbers of the drone's state, then the direction from start to target."""
    dx, dy = state[base + TARGET * WIDTH] - x, state[base + (TARGET + 1) * WIDTH] - y
    dz = state[base + (TARGET + 2) * WIDTH] - z
    vx, vy = state[base + VELOCITY * WIDTH], state[base + (VELOCITY + 1) * WIDTH]
    inverse = float32(1) / max(math.sqrt(dx * dx + dy * dy + dz * dz), float32(1e-6))
    row[at], row[at + 1] = (dx * fx + dy * fy) * inverse, (dy * fx - dx * fy) * inverse
    row[at + 2], row[at + 3], row[at + 4] = dz * inverse, math.sqrt(dx * dx + dy * dy), dz
    row[at + 5], row[at + 6] = vx * fx + vy * fy, vy * fx - vx * fy
    row[at + 7] = state[base + (VELOCITY + 2) * WIDTH]
    row[at + 8] = state[base + DIRECTION * WIDTH]
    row[at + 9] = state[base + (DIRECTION + 1) * WIDTH]
    row[at + 10] = float32(0)
