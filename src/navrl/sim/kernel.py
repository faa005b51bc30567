"""One step of all environments: a fused pass over blocks of drones, in parallel, with nothing allocated.

The moving obstacles do not depend on the drones, so their next positions are computed in the same pass, into the half
of `tracks` that nobody reads: one parallel region a step, and no thread waits for another within it.
"""

from __future__ import annotations

from numba import float32, njit, prange

from navrl.sim.drone import step_first_order, step_hummingbird
from navrl.sim.episode import begin_at, new_episode, set_command
from navrl.sim.layout import (
    ACTIVE,
    COUNTERS,
    EPISODE,
    FIELDS,
    FORWARD,
    GOAL,
    OUTCOME,
    TIME_OUT,
    WORLD,
    Drones,
    Lidar,
    Moving,
    Outputs,
    Worlds,
)  # fmt: skip
from navrl.sim.obstacles import advance_world
from navrl.sim.simd import WIDTH, entry, inner, point_at
from navrl.sim.task import finish, judge, sense


@njit(cache=True, nogil=True)
def first_bad_action(actions, limit):  # type: ignore[no-untyped-def]
    """Return the first drone with an action that is not finite or beyond the limit, or -1; not fast-math: NaN counts."""
    for drone in range(actions.shape[0]):
        for axis in range(3):
            if not abs(actions[drone, axis]) <= limit:
                return drone
    return -1


@inner
def _command(drones, actions, drone, parameters):  # type: ignore[no-untyped-def]
    """Turn the action of a drone into its velocity command in the world frame."""
    base = drone // WIDTH * FIELDS * WIDTH + drone % WIDTH
    vx, vy, vz = actions[3 * drone], actions[3 * drone + 1], actions[3 * drone + 2]
    if not parameters.world_frame:
        limit = parameters.action_limit
        vx, vy, vz = min(max(vx, -limit), limit), min(max(vy, -limit), limit), min(max(vz, -limit), limit)
        fx, fy = drones.state[base + FORWARD * WIDTH], drones.state[base + (FORWARD + 1) * WIDTH]
        vx, vy = vx * fx - vy * fy, vx * fy + vy * fx
    set_command(drones, drone, vx, vy, vz, parameters)


@inner
def _track_of(worlds, moving, world, half, substep, parameters):  # type: ignore[no-untyped-def]
    """Return where the obstacles of a world at a substep are in `tracks`."""
    return ((half * parameters.action_repeat + substep) * worlds.number + world) * 6 * moving.padded


@inner
def _observe(drone, drones, worlds, moving, lidar, parameters, half, scratch, observation, row):  # type: ignore[no-untyped-def]
    """Write what a drone sees now, after the last substep."""
    world = drones.counters[drone * COUNTERS + WORLD]
    track = _track_of(worlds, moving, world, half, parameters.action_repeat - 1, parameters)
    sense(drones, worlds, moving, lidar, parameters, drone, track, scratch, observation, drone * row)


@inner
def _end_of_step(drone, drones, worlds, parameters, outputs):  # type: ignore[no-untyped-def]
    """Report whether the episode has ended, and begin the next one; return whether there is something new to see."""
    outcome = drones.counters[drone * COUNTERS + OUTCOME]
    outputs.terminated[drone] = GOAL <= outcome < TIME_OUT
    outputs.truncated[drone] = outcome == TIME_OUT
    if outcome == 0:
        return False
    finish(drones, drone, outputs.finished, parameters)
    if not parameters.auto_reset:
        return False
    for column in range(drone * outputs.row, (drone + 1) * outputs.row):
        outputs.final_observation[column] = outputs.observation[column]
    drones.counters[drone * COUNTERS + EPISODE] += 1
    new_episode(drones, worlds, drone, parameters)
    return True


@inner
def _fly_block(first, last, drones, worlds, moving, lidar, parameters, actions, outputs, half, scratch):  # type: ignore[no-untyped-def]
    """Take a block of drones through the substeps of a step."""
    base = first * FIELDS
    for substep in range(parameters.action_repeat):
        for drone in range(first, last):
            _command(drones, actions, drone, parameters)
        if parameters.first_order:
            step_first_order(drones.state, base, parameters.dt, parameters.response)
        else:
            step_hummingbird(drones.state, base, parameters.dt, parameters.gravity, parameters.keep)
        for drone in range(first, last):
            if drones.state[base + ACTIVE * WIDTH + drone - first] < float32(0.5):
                continue
            world = drones.counters[drone * COUNTERS + WORLD]
            track = _track_of(worlds, moving, world, half, substep, parameters)
            at = drone * outputs.row
            if substep < parameters.action_repeat - 1:
                at = -1
            seen = sense(drones, worlds, moving, lidar, parameters, drone, track, scratch, outputs.observation, at)
            outputs.reward[drone] += judge(drones, drone, parameters, moving.counts[world] > 0, *seen)
            if at < 0 and drones.counters[drone * COUNTERS + OUTCOME] != 0:  # this is what it saw last
                at = drone * outputs.row
                sense(drones, worlds, moving, lidar, parameters, drone, track, scratch, outputs.observation, at)


@inner
def _step_block(block, drones, worlds, moving, lidar, parameters, actions, outputs, half, scratch, flying):  # type: ignore[no-untyped-def]
    """Step a block of drones, or, unless `flying`, only look around; report, reset and observe."""
    first = block * WIDTH
    last = min(first + WIDTH, parameters.num_envs)
    for drone in range(first, last):
        outputs.reward[drone] = float32(0)
        if not flying or drones.state[block * FIELDS * WIDTH + ACTIVE * WIDTH + drone - first] < float32(0.5):
            _observe(drone, drones, worlds, moving, lidar, parameters, half, scratch, outputs.observation, outputs.row)
    if not flying:
        return
    _fly_block(first, last, drones, worlds, moving, lidar, parameters, actions, outputs, half, scratch)
    for drone in range(first, last):
        if _end_of_step(drone, drones, worlds, parameters, outputs):
            _observe(drone, drones, worlds, moving, lidar, parameters, half, scratch, outputs.observation, outputs.row)


@inner
def _point_worlds(worlds):  # type: ignore[no-untyped-def]
    return Worlds(
        point_at(worlds.shapes), point_at(worlds.near), point_at(worlds.near_start), point_at(worlds.points),
        point_at(worlds.point_ranges), point_at(worlds.chances), worlds.number,
    )  # fmt: skip


@inner
def _point_moving(moving):  # type: ignore[no-untyped-def]
    return Moving(
        point_at(moving.counts), point_at(moving.sizes), point_at(moving.origins), point_at(moving.positions),
        point_at(moving.velocities), point_at(moving.goals), point_at(moving.tracks), moving.padded,
    )  # fmt: skip


@inner
def _point_drones(drones):  # type: ignore[no-untyped-def]
    return Drones(point_at(drones.state), point_at(drones.counters), point_at(drones.running), point_at(drones.history))


@inner
def _point_outputs(outputs):  # type: ignore[no-untyped-def]
    return Outputs(
        point_at(outputs.observation), point_at(outputs.final_observation), point_at(outputs.reward),
        point_at(outputs.terminated), point_at(outputs.truncated), point_at(outputs.finished), outputs.row,
    )  # fmt: skip


@inner
def advance_ahead(world, worlds, moving, parameters, half, time):  # type: ignore[no-untyped-def]
    """Move the obstacles of a world through one step of the environment, noting every substep in a half of `tracks`."""
    for substep in range(parameters.action_repeat):
        track = _track_of(worlds, moving, world, half, substep, parameters)
        advance_world(moving, world, time + substep, parameters, track)


@inner
def _step_chunk(chunk, chunks, drones, worlds, moving, lidar, record, actions, outputs, half, time, scratch, flying):  # type: ignore[no-untyped-def]
    """Step one of `chunks` parts of the blocks, and move the obstacles of one part of the worlds one step ahead."""
    drones, worlds, moving, outputs = (
        _point_drones(drones),
        _point_worlds(worlds),
        _point_moving(moving),
        _point_outputs(outputs),
    )
    lidar = Lidar(point_at(lidar.azimuths), point_at(lidar.beams), lidar.count, lidar.padded, lidar.number)
    parameters, commands, own = record[0], point_at(actions), point_at(scratch[chunk])
    blocks = (parameters.num_envs + WIDTH - 1) // WIDTH
    for block in range(chunk * blocks // chunks, (chunk + 1) * blocks // chunks):
        _step_block(block, drones, worlds, moving, lidar, parameters, commands, outputs, half, own, flying)
    if flying:
        for world in range(chunk * worlds.number // chunks, (chunk + 1) * worlds.number // chunks):
            advance_ahead(world, worlds, moving, parameters, 1 - half, time)


@entry
def step_serial(drones, worlds, moving, lidar, record, actions, outputs, half, time, scratch, flying):  # type: ignore[no-untyped-def]
    """Step all drones in the calling thread, or, unless `flying`, only look around."""
    _step_chunk(0, 1, drones, worlds, moving, lidar, record, actions, outputs, half, time, scratch, flying)


@njit(cache=True, nogil=True, parallel=True)
def step_parallel(drones, worlds, moving, lidar, record, actions, outputs, half, time, scratch, flying):  # type: ignore[no-untyped-def]
    """The same, each row of the scratch in a thread of its own."""
    chunks = scratch.shape[0]
    for chunk in prange(chunks):
        _step_chunk(chunk, chunks, drones, worlds, moving, lidar, record, actions, outputs, half, time, scratch, flying)


@entry
def begin_worlds(worlds, moving, record):  # type: ignore[no-untyped-def]
    """Compute the first step of the moving obstacles of every world."""
    worlds, moving = _point_worlds(worlds), _point_moving(moving)
    for world in range(worlds.number):
        advance_ahead(world, worlds, moving, record[0], 1, 0)


@entry
def reset_where(mask, drones, worlds, record):  # type: ignore[no-untyped-def]
    """Begin a new episode for every drone of the mask."""
    drones, worlds = _point_drones(drones), _point_worlds(worlds)
    for drone in range(len(mask)):
        if mask[drone]:
            new_episode(drones, worlds, drone, record[0])


@entry
def place_where(mask, drones, record, starts, targets):  # type: ignore[no-untyped-def]
    """Begin an episode at a given start and target for every drone of the mask."""
    drones = _point_drones(drones)
    for drone in range(len(mask)):
        if mask[drone]:
            start, target = starts[drone], targets[drone]
            begin_at(drones, drone, start[0], start[1], start[2], target[0], target[1], target[2], record[0])
