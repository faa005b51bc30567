"""One step of all environments: a fused pass over blocks of drones, in parallel, with nothing
allocated.

The moving obstacles do not depend on the drones, so their next positions are computed in the same
pass, into the half of `tracks` that nobody reads: one parallel region a step, and no thread waits
for another within it.
"""

from __future__ import annotations

import functools

from numba import carray, float32, from_dtype, prange, types

from navrl.kernel_cache import c_kernel, kernel
from navrl.sim.kernels.drone import step_first_order, step_hummingbird
from navrl.sim.kernels.episode import begin_at, new_episode, set_command
from navrl.sim.kernels.layout import (
    ACTIVE,
    ARRAYS,
    COUNTERS,
    DRONES_AT,
    EPISODE,
    FIELDS,
    FORWARD,
    GOAL,
    LIDAR_AT,
    MOVING_AT,
    OUTCOME,
    PARAMETERS,
    SCRATCH_AT,
    STEP,
    TIME_OUT,
    WORLD,
    WORLDS_AT,
    Drones,
    Lidar,
    Moving,
    Outputs,
    Worlds,
)
from navrl.sim.kernels.reward import reward_of_step
from navrl.sim.kernels.sensing import sense
from navrl.sim.kernels.termination import finish
from navrl.sim.worlds.obstacles import advance_world
from navrl.simd import FAST, WIDTH, call_at, entry, flags_at, floats_at, inner, integers_at

GIVEN, WRITTEN = len(ARRAYS), len(Outputs._fields) - 1  # addresses of arrays, and of outputs


@kernel(nogil=True)
def first_bad_action(actions, limit):
    """Return the first drone with an action that is not finite or beyond the limit, or -1; not
    fast-math: NaN counts.
    """
    for drone in range(actions.shape[0]):
        for axis in range(3):
            if not abs(actions[drone, axis]) <= limit:
                return drone
    return -1


@inner
def _command(drones, actions, drone, parameters):
    """Turn the action of a drone into its velocity command in the world frame."""
    base = drone // WIDTH * FIELDS * WIDTH + drone % WIDTH
    vx, vy, vz = actions[3 * drone], actions[3 * drone + 1], actions[3 * drone + 2]
    if not parameters.world_frame:
        limit = parameters.action_limit
        vx = min(max(vx, -limit), limit)
        vy = min(max(vy, -limit), limit)
        vz = min(max(vz, -limit), limit)
        fx, fy = drones.state[base + FORWARD * WIDTH], drones.state[base + (FORWARD + 1) * WIDTH]
        vx, vy = vx * fx - vy * fy, vx * fy + vy * fx
    set_command(drones, drone, vx, vy, vz, parameters)


@inner
def _track_of(worlds, moving, world, half, substep, parameters):
    """Return where the obstacles of a world at a substep are in `tracks`."""
    return ((half * parameters.action_repeat + substep) * worlds.number + world) * 6 * moving.padded


@inner
def _observe(drone, drones, worlds, moving, lidar, parameters, half, scratch, observation, row):
    """Write what a drone sees now, after the last substep."""
    world = drones.counters[drone * COUNTERS + WORLD]
    track = _track_of(worlds, moving, world, half, parameters.action_repeat - 1, parameters)
    sense(
        drones, worlds, moving, lidar, parameters, drone, track, scratch, observation, drone * row
    )


@inner
def _end_of_step(drone, drones, worlds, parameters, outputs):
    """Report whether the episode has ended, and begin the next one; return whether there is
    something new to see.
    """
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
def _fly_block(
    first, last, drones, worlds, moving, lidar, parameters, actions, outputs, half, scratch
):
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
            drones.counters[drone * COUNTERS + STEP] += 1
            world = drones.counters[drone * COUNTERS + WORLD]
            track = _track_of(worlds, moving, world, half, substep, parameters)
            at = drone * outputs.row
            if substep < parameters.action_repeat - 1:
                at = -1
            seen = sense(
                drones,
                worlds,
                moving,
                lidar,
                parameters,
                drone,
                track,
                scratch,
                outputs.observation,
                at,
            )
            outputs.reward[drone] += reward_of_step(
                drones, drone, parameters, moving.counts[world] > 0, seen
            )
            if (
                at < 0 and drones.counters[drone * COUNTERS + OUTCOME] != 0
            ):  # this is what it saw last
                at = drone * outputs.row
                sense(
                    drones,
                    worlds,
                    moving,
                    lidar,
                    parameters,
                    drone,
                    track,
                    scratch,
                    outputs.observation,
                    at,
                )


@inner
def _step_block(
    block, drones, worlds, moving, lidar, parameters, actions, outputs, half, scratch, flying
):
    """Step a block of drones, or, unless `flying`, only look around; report, reset and observe."""
    first = block * WIDTH
    last = min(first + WIDTH, parameters.num_envs)
    for drone in range(first, last):
        outputs.reward[drone] = float32(0)
        if not flying or drones.state[
            block * FIELDS * WIDTH + ACTIVE * WIDTH + drone - first
        ] < float32(0.5):
            _observe(
                drone,
                drones,
                worlds,
                moving,
                lidar,
                parameters,
                half,
                scratch,
                outputs.observation,
                outputs.row,
            )
    if not flying:
        return
    _fly_block(
        first, last, drones, worlds, moving, lidar, parameters, actions, outputs, half, scratch
    )
    for drone in range(first, last):
        if _end_of_step(drone, drones, worlds, parameters, outputs):
            _observe(
                drone,
                drones,
                worlds,
                moving,
                lidar,
                parameters,
                half,
                scratch,
                outputs.observation,
                outputs.row,
            )


@inner
def _drones_at(at):
    return Drones(
        floats_at(at[DRONES_AT]),
        integers_at(at[DRONES_AT + 1]),
        floats_at(at[DRONES_AT + 2]),
        floats_at(at[DRONES_AT + 3]),
        floats_at(at[DRONES_AT + 4]),
    )


@inner
def _worlds_at(at, parameters):
    return Worlds(
        floats_at(at[WORLDS_AT]),
        integers_at(at[WORLDS_AT + 1]),
        integers_at(at[WORLDS_AT + 2]),
        floats_at(at[WORLDS_AT + 3]),
        integers_at(at[WORLDS_AT + 4]),
        floats_at(at[WORLDS_AT + 5]),
        parameters.worlds,
    )


@inner
def _moving_at(at, parameters):
    return Moving(
        integers_at(at[MOVING_AT]),
        floats_at(at[MOVING_AT + 1]),
        floats_at(at[MOVING_AT + 2]),
        floats_at(at[MOVING_AT + 3]),
        floats_at(at[MOVING_AT + 4]),
        floats_at(at[MOVING_AT + 5]),
        floats_at(at[MOVING_AT + 6]),
        parameters.moving,
    )


@inner
def _lidar_at(at, parameters):
    return Lidar(
        floats_at(at[LIDAR_AT]),
        floats_at(at[LIDAR_AT + 1]),
        parameters.azimuths,
        parameters.padded_azimuths,
        parameters.beams,
    )


@inner
def _outputs_at(at, parameters):
    return Outputs(
        floats_at(at[0]),
        floats_at(at[1]),
        floats_at(at[2]),
        flags_at(at[3]),
        flags_at(at[4]),
        floats_at(at[5]),
        parameters.row,
    )


@inner
def advance_ahead(world, worlds, moving, parameters, half, time):
    """Move the obstacles of a world through one step of the environment, noting every substep in a
    half of `tracks`.
    """
    for substep in range(parameters.action_repeat):
        track = _track_of(worlds, moving, world, half, substep, parameters)
        advance_world(moving, world, time + substep, parameters, track)


def _step_chunk(chunk, chunks, record, arrays, outputs, actions, half, time, flying):
    """Step one of `chunks` parts of the blocks, and move the obstacles of one part of the worlds
    one step ahead.
    """
    parameters, at, out = carray(record, 1)[0], carray(arrays, GIVEN), carray(outputs, WRITTEN)
    drones, worlds, moving = _drones_at(at), _worlds_at(at, parameters), _moving_at(at, parameters)
    lidar = _lidar_at(at, parameters)
    written = _outputs_at(out, parameters)
    commands = floats_at(actions)
    scratch = floats_at(at[SCRATCH_AT] + 4 * chunk * parameters.scratch)
    blocks = (parameters.num_envs + WIDTH - 1) // WIDTH
    for block in range(chunk * blocks // chunks, (chunk + 1) * blocks // chunks):
        _step_block(
            block,
            drones,
            worlds,
            moving,
            lidar,
            parameters,
            commands,
            written,
            half,
            scratch,
            flying,
        )
    if flying:
        for world in range(chunk * worlds.number // chunks, (chunk + 1) * worlds.number // chunks):
            advance_ahead(world, worlds, moving, parameters, 1 - half, time)


@functools.cache
def step_address() -> int:
    """Compile the step, once, and return its address.

    Serial and parallel steps call the same machine code: two compilations of one source may round
    differently.
    """
    pointer = types.CPointer
    signature = types.void(
        types.int64,
        types.int64,
        pointer(from_dtype(PARAMETERS)),
        pointer(types.int64),
        pointer(types.int64),
        types.int64,
        types.int64,
        types.int64,
        types.int64,
    )
    return int(c_kernel(signature, fastmath=FAST, error_model="numpy")(_step_chunk).address)


# Every entry takes the settings (a record) and the addresses of ARRAYS; a step also those of
# Outputs, and the actions.


@kernel(nogil=True)
def step_serial(step, record, arrays, outputs, actions, half, time, flying, chunks):
    """Step all drones in the calling thread, or, unless `flying`, only look around; `step` is
    `step_address()`.
    """
    for chunk in range(chunks):
        call_at(
            step,
            chunk,
            chunks,
            record.ctypes.data,
            arrays.ctypes.data,
            outputs.ctypes.data,
            actions.ctypes.data,
            half,
            time,
            flying,
        )


@kernel(nogil=True, parallel=True)
def step_parallel(step, record, arrays, outputs, actions, half, time, flying, chunks):
    """The same, each chunk in a thread of its own."""
    for chunk in prange(chunks):
        call_at(
            step,
            chunk,
            chunks,
            record.ctypes.data,
            arrays.ctypes.data,
            outputs.ctypes.data,
            actions.ctypes.data,
            half,
            time,
            flying,
        )


@entry
def begin_worlds(record, arrays):
    """Compute the first step of the moving obstacles of every world."""
    worlds, moving = _worlds_at(arrays, record[0]), _moving_at(arrays, record[0])
    for world in range(worlds.number):
        advance_ahead(world, worlds, moving, record[0], 1, 0)


@entry
def reset_where(record, arrays, mask):
    """Begin a new episode for every drone of the mask."""
    drones, worlds = _drones_at(arrays), _worlds_at(arrays, record[0])
    for drone in range(len(mask)):
        if mask[drone]:
            new_episode(drones, worlds, drone, record[0])


@entry
def place_where(record, arrays, mask, starts, targets):
    """Begin an episode at a given start and target for every drone of the mask."""
    drones = _drones_at(arrays)
    for drone in range(len(mask)):
        if mask[drone]:
            start, target = starts[drone], targets[drone]
            begin_at(
                drones,
                drone,
                start[0],
                start[1],
                start[2],
                target[0],
                target[1],
                target[2],
                record[0],
            )
