"""One step of all environments: a fused, parallel pass over blocks of drones without allocations.

The moving obstacles do not depend on the drones, so their next positions are computed in the same
pass, into the half of `tracks` that no thread reads: one parallel region per step, and no thread
waits for another within it.
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
    EPISODE,
    FIELDS,
    FORWARD,
    GOAL,
    OUTCOME,
    PARAMETERS,
    SCRATCH_AT,
    STEP,
    TIME_OUT,
    WORLD,
    Outputs,
    Scene,
)
from navrl.sim.kernels.pointers import drones_at, lidar_at, moving_at, outputs_at, worlds_at
from navrl.sim.kernels.quadrotor import step_limited_first_order, step_quadrotor
from navrl.sim.kernels.reward import reward_of_step
from navrl.sim.kernels.sensing import sense
from navrl.sim.kernels.termination import finish
from navrl.sim.worlds.obstacles import advance_world
from navrl.simd import FAST, WIDTH, call_at, entry, floats_at, inner

GIVEN, WRITTEN = len(ARRAYS), len(Outputs._fields) - 1  # numbers of input and output addresses


@kernel(nogil=True)
def first_bad_action(actions, limit):
    """Return the first drone with an action that is not finite or beyond the limit, or -1.

    Compiled without fast-math, so that NaN is found.
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
        vz = min(max(vz, -parameters.vertical_limit), parameters.vertical_limit)
        fx, fy = drones.state[base + FORWARD * WIDTH], drones.state[base + (FORWARD + 1) * WIDTH]
        vx, vy = vx * fx - vy * fy, vx * fy + vy * fx
    if parameters.planar:
        vz = float32(0)
    set_command(drones, drone, vx, vy, vz, parameters)


@inner
def _track_of(worlds, moving, world, half, substep, parameters):
    """Return the index in `tracks` of the obstacles of a world at a substep."""
    return ((half * parameters.action_repeat + substep) * worlds.number + world) * 6 * moving.padded


@inner
def _observe(scene, drone, outputs):
    """Write the observation of a drone after the last substep."""
    world = scene.drones.counters[drone * COUNTERS + WORLD]
    last = scene.parameters.action_repeat - 1
    track = _track_of(scene.worlds, scene.moving, world, scene.half, last, scene.parameters)
    sense(scene, drone, track, outputs.observation, drone * outputs.row)


@inner
def _end_of_step(scene, drone, outputs):
    """Report whether the episode has ended and, with auto-reset, begin the next one.

    Returns whether a new episode began, so that the drone has to be observed again.
    """
    drones, parameters = scene.drones, scene.parameters
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
    new_episode(drones, scene.worlds, drone, parameters)
    return True


@inner
def _fly_drone(scene, drone, substep, outputs):
    """Sense and reward one substep of a drone; write its observation at the last one, or at the end
    of its episode.
    """
    drones, parameters = scene.drones, scene.parameters
    drones.counters[drone * COUNTERS + STEP] += 1
    world = drones.counters[drone * COUNTERS + WORLD]
    track = _track_of(scene.worlds, scene.moving, world, scene.half, substep, parameters)
    at = drone * outputs.row
    if substep < parameters.action_repeat - 1:
        at = -1
    sensed = sense(scene, drone, track, outputs.observation, at)
    has_moving = scene.moving.counts[world] > 0
    outputs.reward[drone] += reward_of_step(drones, drone, parameters, has_moving, sensed)
    if at < 0 and drones.counters[drone * COUNTERS + OUTCOME] != 0:
        sense(scene, drone, track, outputs.observation, drone * outputs.row)


@inner
def _move_own(drones, base, parameters):
    """Advance a block of drones with an airframe of their own, or with limited acceleration."""
    state, dt = drones.state, parameters.dt
    if parameters.first_order:
        step_limited_first_order(state, base, dt, parameters.response, parameters.acceleration)
    else:
        step_quadrotor(state, base, dt, parameters.gravity, parameters.keep, drones.airframe)


@inner
def _fly_block(scene, first, last, actions, outputs):
    """Advance a block of drones through the substeps of a step."""
    drones, parameters, base = scene.drones, scene.parameters, first * FIELDS
    for substep in range(parameters.action_repeat):
        for drone in range(first, last):
            _command(drones, actions, drone, parameters)
        if parameters.own_motion:
            _move_own(drones, base, parameters)
        elif parameters.first_order:
            step_first_order(drones.state, base, parameters.dt, parameters.response)
        else:
            step_hummingbird(drones.state, base, parameters.dt, parameters.gravity, parameters.keep)
        for drone in range(first, last):
            if drones.state[base + ACTIVE * WIDTH + drone - first] >= float32(0.5):
                _fly_drone(scene, drone, substep, outputs)


@inner
def _step_block(scene, block, actions, outputs, flying):
    """Step a block of drones: fly, report, reset and observe; unless `flying`, only observe."""
    first = block * WIDTH
    last = min(first + WIDTH, scene.parameters.num_envs)
    active = block * FIELDS * WIDTH + ACTIVE * WIDTH
    for drone in range(first, last):
        outputs.reward[drone] = float32(0)
        if not flying or scene.drones.state[active + drone - first] < float32(0.5):
            _observe(scene, drone, outputs)
    if not flying:
        return
    _fly_block(scene, first, last, actions, outputs)
    for drone in range(first, last):
        if _end_of_step(scene, drone, outputs):
            _observe(scene, drone, outputs)


@inner
def advance_ahead(world, worlds, moving, parameters, half, time):
    """Move the obstacles of a world through one step; write every substep to a half of `tracks`."""
    for substep in range(parameters.action_repeat):
        track = _track_of(worlds, moving, world, half, substep, parameters)
        advance_world(moving, world, time + substep, parameters, track)


def _step_chunk(chunk, chunks, record, arrays, outputs, actions, half, time, flying):
    """Step one of `chunks` parts of the blocks; advance the obstacles of one part of the worlds."""
    parameters, at, out = carray(record, 1)[0], carray(arrays, GIVEN), carray(outputs, WRITTEN)
    drones, worlds, moving = drones_at(at), worlds_at(at, parameters), moving_at(at, parameters)
    lidar = lidar_at(at, parameters)
    scratch = floats_at(at[SCRATCH_AT] + 4 * chunk * parameters.scratch)
    scene = Scene(drones, worlds, moving, lidar, parameters, half, scratch)
    written, commands = outputs_at(out, parameters), floats_at(actions)
    blocks = (parameters.num_envs + WIDTH - 1) // WIDTH
    for block in range(chunk * blocks // chunks, (chunk + 1) * blocks // chunks):
        _step_block(scene, block, commands, written, flying)
    if flying:
        for world in range(chunk * worlds.number // chunks, (chunk + 1) * worlds.number // chunks):
            advance_ahead(world, worlds, moving, parameters, 1 - half, time)


@functools.cache
def step_address() -> int:
    """Compile the step, once, and return its address.

    Serial and parallel steps call the same machine code: two compilations of one source may round
    differently.
    """
    pointer, word = types.CPointer, types.int64
    record, addresses = pointer(from_dtype(PARAMETERS)), pointer(word)
    signature = types.void(word, word, record, addresses, addresses, word, word, word, word)
    return int(c_kernel(signature, fastmath=FAST, error_model="numpy")(_step_chunk).address)


# Every entry point takes the settings (a record) and the addresses of ARRAYS; a step also takes the
# addresses of Outputs, and the actions.


@inner
def _call_step(step, chunk, chunks, record, arrays, outputs, actions, half, time, flying):
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


@kernel(nogil=True)
def step_serial(step, record, arrays, outputs, actions, half, time, flying, chunks):
    """Step all drones in the calling thread, or, unless `flying`, only observe.

    `step` is `step_address()`.
    """
    for chunk in range(chunks):
        _call_step(step, chunk, chunks, record, arrays, outputs, actions, half, time, flying)


@kernel(nogil=True, parallel=True)
def step_parallel(step, record, arrays, outputs, actions, half, time, flying, chunks):
    """Do the same, each chunk in its own thread."""
    for chunk in prange(chunks):
        _call_step(step, chunk, chunks, record, arrays, outputs, actions, half, time, flying)


@entry
def begin_worlds(record, arrays):
    """Compute the first step of the moving obstacles of every world."""
    worlds, moving = worlds_at(arrays, record[0]), moving_at(arrays, record[0])
    for world in range(worlds.number):
        advance_ahead(world, worlds, moving, record[0], 1, 0)


@entry
def reset_where(record, arrays, mask):
    """Begin a new episode for every drone of the mask."""
    drones, worlds = drones_at(arrays), worlds_at(arrays, record[0])
    for drone in range(len(mask)):
        if mask[drone]:
            new_episode(drones, worlds, drone, record[0])


@entry
def place_where(record, arrays, mask, starts, targets):
    """Begin an episode at the given start and target for every drone of the mask."""
    drones = drones_at(arrays)
    for drone in range(len(mask)):
        if mask[drone]:
            sx, sy, sz = starts[drone, 0], starts[drone, 1], starts[drone, 2]
            tx, ty, tz = targets[drone, 0], targets[drone, 1], targets[drone, 2]
            begin_at(drones, drone, sx, sy, sz, tx, ty, tz, record[0])
