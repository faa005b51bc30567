"""The start of an episode: world, start, target, and the randomised properties of the drone."""

from __future__ import annotations

import math

from numba import float32, int64

from navrl.sim.draws import RESET, uniform
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.kernels.drone import MASS, MAX_THRUST
from navrl.sim.kernels.layout import (
    ACTIVE,
    ATTITUDE,
    COMMAND,
    COUNTERS,
    DELAY,
    DIRECTION,
    DISTANCE,
    EPISODE,
    FIELDS,
    FLYING,
    FORWARD,
    HEIGHT_HIGH,
    HEIGHT_LOW,
    MASS_SCALE,
    MIN_CLEARANCE,
    OUTCOME,
    POSITION,
    STEP,
    TARGET,
    THROTTLE,
    THRUST_SCALE,
    WIND,
    WORLD,
    WORLD_NUMBER,
)
from navrl.sim.kernels.lidar import MISS
from navrl.sim.worlds.world_pool import CELL, GRID, GRID_ORIGIN, SHAPE
from navrl.simd import WIDTH, inner

EDGE = 24.0  # m: starts and targets lie on the square with this half side
LOWEST, HIGHEST = 0.5, 2.5  # m
REDRAW, REDRAWS = 64, 32  # index of the first redraw of a target, and how many at most
EVAL_WIDTH, EVAL_HEIGHT = 32.0, 2.0  # m, of the original's evaluation layout
# Trips across the field (`env.crossing_share`), and starts midway (`env.midway_share`).
ACROSS = 20.0  # m, half the range of starts and targets along an edge
FARTHEST_ALONG = 0.8  # of the trip
CROSSING, CROSSING_DRAWS = 192, 12  # index of their first draw; how many midway starts are tried
CLEARANCE = 0.6  # m from a midway start to the nearest static obstacle


@inner
def _edge_point(seed, drone, episode, first):
    """Return a point on a random edge."""
    side = min(int64(float32(4) * uniform(seed, RESET, drone, episode, first)), 3)
    along = (float32(2) * uniform(seed, RESET, drone, episode, first + 1) - float32(1)) * float32(
        EDGE
    )
    height = float32(LOWEST) + float32(HIGHEST - LOWEST) * uniform(
        seed, RESET, drone, episode, first + 2
    )
    edge = float32(EDGE) if side % 2 == 0 else float32(-EDGE)
    return (along, edge, height) if side < 2 else (edge, along, height)


@inner
def _far_edge_point(seed, drone, episode, sx, sy, sz, shortest):
    """Return a target on a random edge that is not too close to the start."""
    tx, ty, tz = _edge_point(seed, drone, episode, 3)
    for attempt in range(REDRAWS):
        dx, dy, dz = tx - sx, ty - sy, tz - sz
        if dx * dx + dy * dy + dz * dz >= shortest * shortest:
            break
        tx, ty, tz = _edge_point(seed, drone, episode, REDRAW + 3 * attempt)
    return tx, ty, tz


@inner
def _crossing(seed, drone, episode):
    """Return a start and a target on opposite edges, in one of the four directions."""
    first = CROSSING + 1
    side = min(int64(float32(4) * uniform(seed, RESET, drone, episode, first)), 3)
    from_edge = float32(EDGE) if side % 2 == 0 else float32(-EDGE)
    two, one, half = float32(2), float32(1), float32(ACROSS)
    start = (two * uniform(seed, RESET, drone, episode, first + 1) - one) * half
    target = (two * uniform(seed, RESET, drone, episode, first + 2) - one) * half
    low, span = float32(LOWEST), float32(HIGHEST - LOWEST)
    sz = low + span * uniform(seed, RESET, drone, episode, first + 3)
    tz = low + span * uniform(seed, RESET, drone, episode, first + 4)
    if side < 2:
        return start, from_edge, sz, target, -from_edge, tz
    return from_edge, start, sz, -from_edge, target, tz


@inner
def _midway_start(worlds, world, seed, drone, episode, sx, sy, sz, tx, ty, tz):
    """Return a start between the edge and the target that is clear of static obstacles."""
    for attempt in range(CROSSING_DRAWS):
        draw = uniform(seed, RESET, drone, episode, CROSSING + 8 + attempt)
        along = float32(FARTHEST_ALONG) * draw
        x, y, z = sx + along * (tx - sx), sy + along * (ty - sy), sz + along * (tz - sz)
        if _is_free(worlds, world, x, y, z):
            return x, y, z
    return sx, sy, sz


@inner
def _is_free(worlds, world, x, y, z):
    """Return whether no static obstacle is within `CLEARANCE` of a point."""
    cell_x = min(max(int64((x - float32(GRID_ORIGIN)) / float32(CELL)), 0), GRID - 1)
    cell_y = min(max(int64((y - float32(GRID_ORIGIN)) / float32(CELL)), 0), GRID - 1)
    cell = world * (GRID * GRID + 1) + cell_x * GRID + cell_y
    for q in range(int64(worlds.near_start[cell]), int64(worlds.near_start[cell + 1])):
        shape = int64(worlds.near[q]) * SHAPE
        dx = max(worlds.shapes[shape] - x, x - worlds.shapes[shape + 1], float32(0))
        dy = max(worlds.shapes[shape + 2] - y, y - worlds.shapes[shape + 3], float32(0))
        dz = max(worlds.shapes[shape + 4] - z, z - worlds.shapes[shape + 5], float32(0))
        if dx * dx + dy * dy + dz * dz < float32(CLEARANCE * CLEARANCE):
            return False
    return True


@inner
def _listed_point(points, first, number, draw):
    """Return one of the points that the world file lists."""
    row = first + min(int64(draw * float32(number)), number - 1)
    return points[3 * row], points[3 * row + 1], points[3 * row + 2]


@inner
def _draw_world(chances, number, draw):
    """Return the world whose interval of the cumulative probabilities holds the draw."""
    low, high = 0, number - 1
    while low < high:
        middle = (low + high) // 2
        if draw < chances[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def new_episode(drones, worlds, drone, parameters):
    """Begin the next episode of a drone, everything drawn from its own random stream."""
    episode, seed = drones.counters[drone * COUNTERS + EPISODE], parameters.seed
    world = drones.counters[drone * COUNTERS + WORLD]
    if parameters.change_world and episode > 0:
        world = _draw_world(worlds.chances, worlds.number, uniform(seed, RESET, drone, episode, 6))
        drones.counters[drone * COUNTERS + WORLD] = world
    ranges = worlds.point_ranges
    first_start, starts = ranges[4 * world], ranges[4 * world + 1]
    first_goal, goals = ranges[4 * world + 2], ranges[4 * world + 3]
    count = float32(parameters.num_envs)
    sx, sy, sz = _edge_point(seed, drone, episode, 0)
    if parameters.eval_layout:
        sx = (float32(drone) / count - float32(0.5)) * float32(EVAL_WIDTH)
        sy = float32(EDGE)
        sz = float32(EVAL_HEIGHT)
    if starts > 0:
        sx, sy, sz = _listed_point(
            worlds.points, first_start, starts, uniform(seed, RESET, drone, episode, 0)
        )
    tx, ty, tz = _far_edge_point(seed, drone, episode, sx, sy, sz, parameters.shortest_trip)
    if parameters.eval_layout:
        across = float32(drone) / max(count - float32(1), float32(1)) - float32(0.5)
        tx, ty, tz = across * float32(EVAL_WIDTH), float32(-EDGE), float32(EVAL_HEIGHT)
    crosses = uniform(seed, RESET, drone, episode, CROSSING) < parameters.crossing_share
    if crosses and not parameters.eval_layout and starts == 0:
        sx, sy, sz, tx, ty, tz = _crossing(seed, drone, episode)
        if parameters.planar:
            sz, tz = parameters.ride_height, parameters.ride_height
        if uniform(seed, RESET, drone, episode, CROSSING + 6) < parameters.midway_share:
            sx, sy, sz = _midway_start(worlds, world, seed, drone, episode, sx, sy, sz, tx, ty, tz)
    if goals > 0:
        tx, ty, tz = _listed_point(
            worlds.points, first_goal, goals, uniform(seed, RESET, drone, episode, 3)
        )
    begin_at(drones, drone, sx, sy, sz, tx, ty, tz, parameters)


@inner
def begin_at(drones, drone, sx, sy, sz, tx, ty, tz, parameters):
    """Place a drone at its start, at rest, level and facing its target, and reset its episode.

    In two dimensions it stands on the ground, whatever the heights of start and target.
    """
    if parameters.planar:
        sz, tz = parameters.ride_height, parameters.ride_height
    state, base = drones.state, drone // WIDTH * FIELDS * WIDTH + drone % WIDTH
    for field in range(FIELDS):
        state[base + field * WIDTH] = float32(0)
    dx, dy, dz = tx - sx, ty - sy, tz - sz
    horizontal = math.sqrt(dx * dx + dy * dy)
    cosine, sine = float32(1), float32(0)  # for a target straight above the start
    if horizontal > float32(1e-6):
        cosine, sine = dx / horizontal, dy / horizontal
    half_cosine = math.sqrt(max((float32(1) + cosine) * float32(0.5), float32(0)))
    half_sine = math.sqrt(max((float32(1) - cosine) * float32(0.5), float32(0)))
    for axis, start, target in ((0, sx, tx), (1, sy, ty), (2, sz, tz)):
        state[base + (POSITION + axis) * WIDTH] = start
        state[base + (TARGET + axis) * WIDTH] = target
        state[base + (DIRECTION + axis) * WIDTH] = target - start
    state[base + ATTITUDE * WIDTH] = half_cosine
    state[base + (ATTITUDE + 3) * WIDTH] = half_sine if sine >= float32(0) else -half_sine
    state[base + FORWARD * WIDTH] = cosine
    state[base + (FORWARD + 1) * WIDTH] = sine
    state[base + HEIGHT_LOW * WIDTH] = min(sz, tz)
    state[base + HEIGHT_HIGH * WIDTH] = max(sz, tz)
    hover = math.sqrt(float32(MASS / (4 * MAX_THRUST)) * parameters.gravity)
    if parameters.own_motion:
        hover = math.sqrt(parameters.hover_load * parameters.gravity)
    for rotor in range(4):
        state[base + (THROTTLE + rotor) * WIDTH] = hover
    _vary(drones, drone, base, parameters)
    state[base + ACTIVE * WIDTH] = float32(1)
    drones.counters[drone * COUNTERS + STEP] = 0
    drones.counters[drone * COUNTERS + OUTCOME] = FLYING
    for number in range(3 * (parameters.delay + 1)):
        drones.history[drone * 3 * (parameters.delay + 1) + number] = float32(0)
    running = drone * len(STATISTICS)
    for number in range(len(STATISTICS)):
        drones.running[running + number] = float32(0)
    drones.running[running + MIN_CLEARANCE] = float32(MISS)
    drones.running[running + DISTANCE] = math.sqrt(dx * dx + dy * dy + dz * dz)
    drones.running[running + WORLD_NUMBER] = drones.counters[drone * COUNTERS + WORLD]


@inner
def _vary(drones, drone, base, parameters):
    """Draw the randomised properties of the episode: mass, thrust, wind, delay."""
    state = drones.state
    seed = parameters.seed
    episode = drones.counters[drone * COUNTERS + EPISODE]
    one, two = float32(1), float32(2)
    mass = one + parameters.mass_variation * (two * uniform(seed, RESET, drone, episode, 7) - one)
    thrust = one + parameters.thrust_variation * (
        two * uniform(seed, RESET, drone, episode, 8) - one
    )
    speed = parameters.wind * uniform(seed, RESET, drone, episode, 9)
    bearing = two * float32(math.pi) * uniform(seed, RESET, drone, episode, 10)
    state[base + MASS_SCALE * WIDTH] = mass
    state[base + THRUST_SCALE * WIDTH] = thrust
    state[base + WIND * WIDTH] = speed * math.cos(bearing)
    state[base + (WIND + 1) * WIDTH] = speed * math.sin(bearing)
    delay = int64(float32(parameters.delay + 1) * uniform(seed, RESET, drone, episode, 11))
    drones.counters[drone * COUNTERS + DELAY] = min(delay, parameters.delay)


@inner
def set_command(drones, drone, vx, vy, vz, parameters):
    """Set the velocity command of a drone in the world frame, after its delay."""
    state, base = drones.state, drone // WIDTH * FIELDS * WIDTH + drone % WIDTH
    if parameters.delay > 0:
        length = parameters.delay + 1
        step = drones.counters[drone * COUNTERS + STEP]
        delay = drones.counters[drone * COUNTERS + DELAY]
        slot = 3 * (drone * length + step % length)
        past = 3 * (drone * length + (step + length - delay) % length)
        drones.history[slot], drones.history[slot + 1], drones.history[slot + 2] = vx, vy, vz
        vx, vy, vz = drones.history[past], drones.history[past + 1], drones.history[past + 2]
    state[base + COMMAND * WIDTH] = vx
    state[base + (COMMAND + 1) * WIDTH] = vy
    state[base + (COMMAND + 2) * WIDTH] = vz
