"""What a drone observes, and the distances that its reward and termination are computed from."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import float32, int64

from navrl.sim.draws import (
    LIDAR_DROPOUT,
    LIDAR_NOISE,
    PERFECT_EPISODE,
    POSITION_NOISE,
    normal,
    uniform,
)
from navrl.sim.kernels.detection import FEATURES, find_nearest, measure_obstacles, write_detections
from navrl.sim.kernels.fields import Vector, counter, fields_of, length_of, number, vector
from navrl.sim.kernels.layout import (
    ATTITUDE,
    DIRECTION,
    EPISODE,
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
    X0,
    X1,
    Y0,
    Y1,
    Z0,
    Z1,
    cast_at_batch,
    cast_rays,
    find_azimuths,
    measure,
    write_scan,
)
from navrl.sim.worlds.obstacles import FLOATING_HEIGHT, TALL_HEIGHT
from navrl.simd import WIDTH, inner, load


class Sensed(NamedTuple):
    """The noise-free distances that reward and termination are computed from."""

    shortest_ray: Any  # m
    mean_log_ray: Any  # mean of ln(m)
    surface_squared: Any  # m², to the nearest static surface
    mean_log_clearance: Any  # mean of ln(m) over the observed moving obstacles
    least_clearance: Any  # m, to one of them
    hits_moving: Any  # bool


@inner
def sense(scene, drone, track, observation, index):
    """Return the distances of a drone; write its observation from `index` on, unless negative."""
    drones, moving, lidar, parameters = scene.drones, scene.moving, scene.lidar, scene.parameters
    state, base, scratch = drones.state, fields_of(drone), scene.scratch
    world = int64(counter(drones, drone, WORLD))
    position = vector(state, base, POSITION)
    x, y, z = position.x, position.y, position.z
    cosine, sine = _heading(state, base)
    reach, rays = parameters.reach, lidar.count * lidar.number
    half_height = parameters.half_height
    surface = cast_rays(
        scratch, x, y, z, cosine, sine, scene.worlds, world, lidar, reach, half_height
    )
    shortest, mean_log_ray = measure(scratch, lidar, reach)
    moment = (int64(counter(drones, drone, EPISODE)) << 24) + counter(drones, drone, STEP)
    disturbed = index >= 0 and _is_disturbed(drones, drone, parameters)
    interval = parameters.lidar_interval
    if index >= 0 and interval > 1 and _decision(drones, drone, parameters) % interval:
        _write_last_scan(drones, drone, rays, observation, index)
    elif index >= 0:
        if parameters.visible:
            _scan_moving(scratch, moving, world, track, x, y, z, cosine, sine, lidar, reach)
        write_scan(scratch, lidar, reach, observation, index)
        if disturbed and (parameters.noise > float32(0) or parameters.dropout > float32(0)):
            _disturb_scan(observation, index, rays, drone, moment, parameters)
        _blind_scan(observation, index, lidar, parameters)
        if interval > 1:
            _store_scan(drones, drone, rays, observation, index)
    forward = number(state, base, FORWARD), number(state, base, FORWARD + 1)
    nearest, found = (2 + lidar.number) * lidar.padded + BATCH, 0
    if moving.counts[world] > 0:
        count, observed = moving.counts[world], parameters.observed
        found = find_nearest(scratch, nearest, moving, count, track, x, y, observed, reach)
    imperfect = parameters.detection_reach != reach or (
        disturbed
        and (parameters.detection_dropout > float32(0) or parameters.detection_noise > float32(0))
    )
    rows = index + rays
    at = -1 if index < 0 or imperfect else rows
    clearances = measure_obstacles(
        scene, nearest, found, world, track, position, forward, observation, at
    )
    if index >= 0:
        if imperfect:
            write_detections(
                scene,
                nearest,
                world,
                track,
                drone,
                moment,
                position,
                forward,
                disturbed,
                observation,
                rows,
            )
        if disturbed and parameters.position_noise > float32(0):
            position = _disturb_position(position, drone, moment, parameters)
        at = rows + parameters.observed * FEATURES
        _write_state(state, base, position, forward, observation, at)
        if disturbed and parameters.observation_delay > 0:
            _delay_row(drones, drone, parameters, observation, index)
    return Sensed(
        shortest, mean_log_ray, surface, clearances.mean_log, clearances.least, clearances.hit
    )


@inner
def _is_disturbed(drones, drone, parameters):
    """Return whether noise, misses and delay are part of a drone's episode."""
    if parameters.perfect_share == float32(0):
        return True
    episode = int64(counter(drones, drone, EPISODE))
    draw = uniform(parameters.seed, PERFECT_EPISODE, drone, episode, 0)
    return draw >= parameters.perfect_share


@inner
def _heading(state, base):
    """Return the cosine and sine of the yaw."""
    qw, qx = number(state, base, ATTITUDE), number(state, base, ATTITUDE + 1)
    qy, qz = number(state, base, ATTITUDE + 2), number(state, base, ATTITUDE + 3)
    cosine, sine = float32(1) - float32(2) * (qy * qy + qz * qz), float32(2) * (qx * qy + qw * qz)
    inverse = float32(1) / math.sqrt(max(cosine * cosine + sine * sine, float32(1e-12)))
    return cosine * inverse, sine * inverse


@inner
def _scan_moving(scratch, moving, world, track, x, y, z, cosine, sine, lidar, reach):
    """Shorten the rays that hit moving obstacles, a batch of shapes at a time."""
    padded, batch = moving.padded, (2 + lidar.number) * lidar.padded
    widest = reach + float32(1)
    used = 0
    for k in range(moving.counts[world]):
        px, py = moving.tracks[track + k], moving.tracks[track + padded + k]
        if (px - x) ** 2 + (py - y) ** 2 <= widest * widest:
            half = moving.sizes[world * 2 * padded + k] * float32(0.5)
            tall = moving.sizes[(world * 2 + 1) * padded + k]
            pz = moving.tracks[track + 2 * padded + k]
            half_height = float32(FLOATING_HEIGHT / 2)
            if tall > float32(0):
                half_height = float32(TALL_HEIGHT / 2)
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
            visible, _ = find_azimuths(
                scratch,
                batch,
                shapes,
                used,
                x,
                y,
                z,
                cosine,
                sine,
                lidar.count,
                reach * reach,
                float32(0),
            )
            cast_at_batch(scratch, batch, visible, False, lidar)
            used = 0


@inner
def _disturb_scan(observation, index, rays, drone, moment, parameters):
    """Add noise and missing returns to the written scan."""
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
def _blind_scan(observation, index, lidar, parameters):
    """Clear the rays outside of the field of view."""
    first, last = parameters.blind_first * lidar.number, (parameters.blind_last + 1) * lidar.number
    for ray in range(first, last):
        observation[index + ray] = float32(0)


@inner
def _store_scan(drones, drone, rays, observation, index):
    """Store the written scan for the decisions until the next one."""
    for ray in range(rays):
        drones.scans[drone * rays + ray] = observation[index + ray]


@inner
def _write_last_scan(drones, drone, rays, observation, index):
    """Write the scan that was stored."""
    for ray in range(rays):
        observation[index + ray] = drones.scans[drone * rays + ray]


@inner
def _decision(drones, drone, parameters):
    """Return how many decisions of its episode a drone has flown, the current one included."""
    steps = int64(counter(drones, drone, STEP))
    return (steps + parameters.action_repeat - 1) // parameters.action_repeat


@inner
def _disturb_position(position, drone, moment, parameters):
    """Return the position that the drone estimates for itself."""
    seed, noise = parameters.seed, parameters.position_noise
    rise = float32(0) if parameters.planar else noise
    return Vector(
        position.x + noise * normal(seed, POSITION_NOISE, drone, moment, 0),
        position.y + noise * normal(seed, POSITION_NOISE, drone, moment, 1),
        position.z + rise * normal(seed, POSITION_NOISE, drone, moment, 2),
    )


@inner
def _write_state(state, base, position, forward, row, at):
    """Write `navigation_observation.STATE`, then the direction from start to target."""
    fx, fy = forward
    target, velocity = vector(state, base, TARGET), vector(state, base, VELOCITY)
    ahead = Vector(target.x - position.x, target.y - position.y, target.z - position.z)
    inverse = float32(1) / max(length_of(ahead), float32(1e-6))
    row[at] = (ahead.x * fx + ahead.y * fy) * inverse
    row[at + 1] = (ahead.y * fx - ahead.x * fy) * inverse
    row[at + 2] = ahead.z * inverse
    row[at + 3] = math.sqrt(ahead.x * ahead.x + ahead.y * ahead.y)
    row[at + 4] = ahead.z
    row[at + 5] = velocity.x * fx + velocity.y * fy
    row[at + 6] = velocity.y * fx - velocity.x * fy
    row[at + 7] = velocity.z
    row[at + 8] = number(state, base, DIRECTION)
    row[at + 9] = number(state, base, DIRECTION + 1)
    row[at + 10] = float32(0)


@inner
def _delay_row(drones, drone, parameters, observation, index):
    """Store the row of this decision, and replace it by that of an earlier one: the first of the
    episode, until there are enough.
    """
    length, width = parameters.observation_delay + 1, parameters.row
    decision = _decision(drones, drone, parameters)
    now = (drone * length + decision % length) * width
    past = max(decision - parameters.observation_delay, int64(0))
    earlier = (drone * length + past % length) * width
    for column in range(width):
        drones.observed[now + column] = observation[index + column]
        observation[index + column] = drones.observed[earlier + column]
