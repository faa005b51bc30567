"""The fused network forward: blocks of samples go through all layers while they are in the cache.

Compiled functions are made for one layout of the observation, whose sizes are constants in them.
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from navrl.rl.fused import buffer_layout as common
from navrl.rl.fused.gemm import convolution, product, tile
from navrl.rl.networks import relative_motion as motion
from navrl.simd import (
    WIDTH,
    ahead,
    entry_for,
    floats_at,
    inner,
    load,
    longs_at,
    splat,
    store,
    total,
)

HEADS, STATE, STATISTICS = common.HEADS, common.STATE, common.STATISTICS
PANEL, GROUP, JOINED = common.PANEL, common.GROUP, common.JOINED


def rows_finder(at: Any) -> Any:
    """Return a compiled function: one of the matrices of activations, from a sample on."""

    @inner
    def rows_at(activations, capacity, sample, which):
        return ahead(activations, capacity * at.AT_ROWS + (which * capacity + sample) * at.ROW)

    return rows_at


def window_finder(band: tuple[int, ...]) -> Any:
    """Return a compiled function: the kind of a group's matrix, and where its window starts."""
    groups, step, _, last_start, kinds = band

    @inner
    def window_of(group):
        kind = 0 if group == 0 else (kinds - 1 if group == groups - 1 else 1)
        return kind, min(max(step * group - 1, 0), last_start)

    return window_of


@inner
def wrap(image, number, edge, size):
    """Fill `edge` positions before and behind `number` positions periodically."""
    for i in range(edge * size):
        image[i] = image[number * size + i]
        image[(edge + number) * size + i] = image[edge * size + i]


@inner
def _normalise(source, row_stride, width, gain, result, samples):
    """Normalise rows, times the gain plus the shift behind it; keep mean and scale for backward."""
    share = float32(1) / float32(width)
    for sample in range(samples):
        row, out = ahead(source, sample * row_stride), ahead(result, sample * row_stride)
        lanes = splat(float32(0))
        for i in range(0, width, WIDTH):
            lanes = lanes + load(row, i)
        mean = total(lanes) * share
        lanes = splat(float32(0))
        for i in range(0, width, WIDTH):
            difference = load(row, i) - mean
            lanes = lanes + difference * difference
        scale = float32(1) / math.sqrt(total(lanes) * share + float32(1e-5))
        row[width + STATISTICS], row[width + STATISTICS + 1] = mean, scale
        for i in range(0, width, WIDTH):
            store(out, i, (load(row, i) - mean) * scale * load(gain, i) + load(gain, width + i))


@inner
def _relate(obstacle, velocity, found):
    """Write the relative motion of an obstacle; see `relative_motion`."""
    x, y, z = obstacle[0], obstacle[1], obstacle[2]
    if not x * x + y * y + z * z > float32(motion.PRESENT):
        for i in range(len(motion.RELATIVE)):
            found[i] = float32(0)
        return
    flat, height = obstacle[motion.DISTANCE], obstacle[motion.HEIGHT]
    distance = math.sqrt(flat * flat + height * height)
    x, y, z = x * distance, y * distance, z * distance
    vx = obstacle[motion.VELOCITY] - velocity[0]
    vy = obstacle[motion.VELOCITY + 1] - velocity[1]
    vz = (obstacle[motion.VELOCITY + 2] - velocity[2]) * obstacle[motion.FLOATS]
    speed = vx * vx + vy * vy + vz * vz + float32(motion.SLOWEST)
    time = -(x * vx + y * vy + z * vz) / speed
    time = min(max(time, float32(0)), float32(motion.HORIZON))
    x, y, z = x + vx * time, y + vy * time, z + vz * time
    found[0], found[1], found[2], found[3] = vx, vy, vz, time
    found[4], found[5], found[6] = x, y, z
    half_width = (obstacle[motion.WIDTH_CLASS] + float32(1)) * float32(motion.HALF_CLASS)
    found[7] = math.sqrt(x * x + y * y + z * z) - half_width


def _make_take(at: Any) -> Any:
    """Return a compiled function that copies the parts of an observation to where layers read."""
    STATE_START, OBSTACLE = at.LIDAR + at.OBSTACLES, common.FEATURES
    RELATIVE, VELOCITY = len(motion.RELATIVE), STATE_START + motion.OWN_VELOCITY
    RELATED = (at.DYNAMIC - at.OBSTACLES) // RELATIVE  # 0 without relative motion

    @inner
    def take(row, known, image, dynamic, state, scale):
        if known:
            for i in range(0, at.LIDAR // WIDTH * WIDTH, WIDTH):
                store(image, i, load(row, i))
            for i in range(at.LIDAR // WIDTH * WIDTH, at.LIDAR):
                image[i] = row[i]
            for i in range(0, at.OBSTACLES // WIDTH * WIDTH, WIDTH):
                store(dynamic, i, load(row, at.LIDAR + i))
            for i in range(at.OBSTACLES // WIDTH * WIDTH, at.OBSTACLES):
                dynamic[i] = row[at.LIDAR + i]
            for i in range(RELATED):
                obstacle, found = at.LIDAR + OBSTACLE * i, at.OBSTACLES + RELATIVE * i
                _relate(ahead(row, obstacle), ahead(row, VELOCITY), ahead(dynamic, found))
            for i in range(STATE):
                state[i] = row[STATE_START + i] * scale[i]
        else:  # fills up the last group
            for i in range(at.LIDAR):
                image[i] = float32(0)
            for i in range(at.DYNAMIC):
                dynamic[i] = float32(0)
            for i in range(STATE):
                state[i] = float32(0)

    return take


def _make_take_block(at: Any, rows_at: Any) -> Any:
    """Return a compiled function that copies a block of observations."""
    take = _make_take(at)
    MIXED, MIXED_INPUT, JOIN = common.MIXED, common.MIXED_INPUT, common.JOIN

    @inner
    def take_block(
        observations, stride, index, listed, first, known, samples, a, capacity, sample, scale
    ):
        image = ahead(a, sample * at.IMAGE + 2 * at.BEAMS)
        dynamic = ahead(rows_at(a, capacity, sample, MIXED), MIXED_INPUT)
        state = ahead(rows_at(a, capacity, sample, JOIN), JOINED - STATE)
        for i in range(samples):
            number = first + min(i, known - 1)
            row = ahead(observations, (index[number] if listed else number) * stride)
            take(
                row,
                i < known,
                ahead(image, i * at.IMAGE),
                ahead(dynamic, i * at.ROW),
                ahead(state, i * at.ROW),
                scale,
            )

    return take_block


def _convolution_tiles(at: Any) -> tuple[Any, Any, Any]:
    """Return the tiles of the three convolutions."""
    depth = len(at.DEPTH_FIRST)
    # two azimuths at a time: their 4 beams of 4 channels are the columns, a window of six azimuths
    # the depth
    first = tile(
        [2 * at.BEAMS * i for i in range(at.PAIRS)],
        [(offset, 32 * k, 2) for k, offset in enumerate(at.DEPTH_FIRST)],
        (at.DEPTH_STEP, depth * 32),
        [2 * at.FIRST_STRIDE * i for i in range(at.PAIRS)],
        vectors=2,
        start="bias",
        finish="elu",
        apart=(WIDTH, at.FIRST_STRIDE),
    )

    # two beams of 16 channels are the columns; they read a window of beams in five azimuths
    def strided(positions: int, before: int, after: int) -> Any:
        taps = [(before * tap, 2) for tap in range(5)]
        return convolution(positions, 2 * before, taps, 1, after, bias=True, finish="elu")

    second = strided(at.SECOND_TILES[1], at.FIRST_STRIDE, at.SECOND_STRIDE)
    return first, second, strided(at.THIRD_TILES[1], at.SECOND_STRIDE, at.THIRD_STRIDE)


def _make_first(at: Any, first_tile: Any) -> Any:
    """Return a compiled function: the first convolution of an image."""
    window_of, groups, window = window_finder(at.BANDS[0]), at.BANDS[0][0], at.BANDS[0][2]
    rounds = 6 * window // len(at.DEPTH_FIRST)
    last = at.AZIMUTHS - 2 * at.PAIRS

    @inner
    def first(x, y, weights):
        for group in range(groups):
            kind, beam = window_of(group)
            for number in range(at.PAIR_TILES):
                azimuth = min(2 * at.PAIRS * number, last)
                first_tile(
                    ahead(x, azimuth * at.BEAMS + beam),
                    ahead(weights, at.C1 + kind * 6 * window * 32),
                    ahead(y, (2 + azimuth) * at.FIRST_STRIDE + WIDTH * group),
                    ahead(weights, at.C1_BIAS + 32 * kind),
                    rounds,
                )

    return first


def _make_second(at: Any, second_tile: Any) -> Any:
    """Return a compiled function: the second convolution of an image."""
    window_of, pairs, window = window_finder(at.BANDS[1]), at.BANDS[1][0], at.BANDS[1][2]
    tiles, positions = at.SECOND_TILES

    @inner
    def second(y, z, weights):
        for pair in range(pairs):
            kind, beam = window_of(pair)
            kernel = ahead(weights, at.C2 + kind * window * 4 * 5 * 32)
            bias = ahead(weights, at.C2_BIAS + 32 * kind)
            for number in range(tiles):
                position = min(positions * number, at.P2 - positions)
                second_tile(
                    ahead(y, position * 2 * at.FIRST_STRIDE + 4 * beam),
                    kernel,
                    ahead(z, (2 + position) * at.SECOND_STRIDE + 32 * pair),
                    bias,
                    4 * window,
                )

    return second


def _make_third(at: Any, third_tile: Any) -> Any:
    """Return a compiled function: the third convolution of an image."""
    window_of, pairs, window = window_finder(at.BANDS[2]), at.BANDS[2][0], at.BANDS[2][2]
    tiles, positions = at.THIRD_TILES

    @inner
    def third(z, end, weights):
        for pair in range(pairs):
            kind, beam = window_of(pair)
            for number in range(tiles):
                position = min(positions * number, at.P3 - positions)
                third_tile(
                    ahead(z, position * 2 * at.SECOND_STRIDE + 16 * beam),
                    ahead(weights, at.C3 + kind * window * 16 * 5 * 32),
                    ahead(end, position * at.THIRD_STRIDE + 32 * pair),
                    ahead(weights, at.C3_BIAS + 32 * kind),
                    16 * window,
                )

    return third


def _make_convolve(at: Any) -> Any:
    """Return a compiled function that takes images through the three convolutions."""
    tiles = _convolution_tiles(at)
    convolve_first, convolve_second, convolve_third = (
        make(at, made)
        for make, made in zip((_make_first, _make_second, _make_third), tiles, strict=True)
    )

    @inner
    def convolve(image, first, second, third, weights, samples, circular):
        for sample in range(samples):
            x, y = ahead(image, sample * at.IMAGE), ahead(first, sample * at.FIRST)
            z, end = ahead(second, sample * at.SECOND), ahead(third, sample * at.THIRD_ROW)
            if circular:
                wrap(x, at.AZIMUTHS, 2, at.BEAMS)
            convolve_first(x, y, weights)
            if circular:
                wrap(y, at.AZIMUTHS, 2, at.FIRST_STRIDE)
            convolve_second(y, z, weights)
            if circular:
                wrap(z, at.P2, 2, at.SECOND_STRIDE)
            convolve_third(z, end, weights)

    return convolve


def _make_encode(at: Any, rows_at: Any, linear: Any, leaky: Any) -> Any:
    """Return a compiled function: the dense layers of both encoders."""
    same = at.THIRD_ROW == at.ROW
    flatten = linear if same else product(at.THIRD_ROW, at.ROW, bias=True)
    ENCODERS, MIXED, JOIN = common.ENCODERS, common.MIXED, common.JOIN
    DYNAMIC, SECOND, INPUT = common.ENCODER_DYNAMIC, common.MIXED_SECOND, common.MIXED_INPUT

    @inner
    def encode(a, third, capacity, sample, w, samples):
        encoders = rows_at(a, capacity, sample, ENCODERS)
        mixed, join = rows_at(a, capacity, sample, MIXED), rows_at(a, capacity, sample, JOIN)
        flatten(third, ahead(w, at.LIN), encoders, ahead(w, at.LIN_BIAS), at.FLAT, 128, samples)
        _normalise(encoders, at.ROW, 128, ahead(w, at.LIN_BIAS + 128), join, samples)
        encoder, second = ahead(encoders, DYNAMIC), ahead(mixed, SECOND)
        dynamic, bias = ahead(mixed, INPUT), ahead(w, at.D1_BIAS)
        leaky(dynamic, ahead(w, at.D1), encoder, bias, at.D1_DEPTH, 128, samples)
        _normalise(encoder, at.ROW, 128, ahead(w, at.D1_BIAS + 128), mixed, samples)
        leaky(mixed, ahead(w, at.D2), second, ahead(w, at.D2_BIAS), 128, 64, samples)
        _normalise(second, at.ROW, 64, ahead(w, at.D2_BIAS + 64), ahead(join, 128), samples)

    return encode


def _make_trunk(at: Any, rows_at: Any, leaky: Any) -> Any:
    """Return a compiled function: the layers between the encoders and the heads."""
    JOIN, TRUNK_1, TRUNK_2 = common.JOIN, common.TRUNK_1, common.TRUNK_2
    NORMAL_1, NORMAL_2 = common.TRUNK_1_NORMAL, common.TRUNK_2_NORMAL

    @inner
    def trunk(a, capacity, sample, w, samples):
        join = rows_at(a, capacity, sample, JOIN)
        first = rows_at(a, capacity, sample, TRUNK_1)
        second = rows_at(a, capacity, sample, TRUNK_2)
        normal = rows_at(a, capacity, sample, NORMAL_1)
        last = rows_at(a, capacity, sample, NORMAL_2)
        leaky(join, ahead(w, at.T1), first, ahead(w, at.T1_BIAS), JOINED, 256, samples)
        _normalise(first, at.ROW, 256, ahead(w, at.T1_BIAS + 256), normal, samples)
        leaky(normal, ahead(w, at.T2), second, ahead(w, at.T2_BIAS), 256, 256, samples)
        _normalise(second, at.ROW, 256, ahead(w, at.T2_BIAS + 256), last, samples)

    return trunk


def make_forward(at: Any, variant: str) -> Any:
    """Return the compiled forward pass for a layout, which `variant` names."""
    rows_at = rows_finder(at)
    linear = product(at.ROW, at.ROW, bias=True)
    leaky = product(at.ROW, at.ROW, bias=True, finish="leaky")
    take_block, convolve = _make_take_block(at, rows_at), _make_convolve(at)
    encode, trunk = _make_encode(at, rows_at, linear, leaky), _make_trunk(at, rows_at, leaky)
    LAST = common.TRUNK_2_NORMAL

    @entry_for(variant)
    def forward(
        rows,
        stride,
        index,
        begin,
        end,
        weights,
        activations,
        capacity,
        keep,
        circular,
        scratch,
        heads,
    ):
        """Write the heads of samples `begin` to `end`; buffers are addresses, `index` may be 0.

        With `keep`, the activations of sample i are stored at i of `capacity`, for the backward
        pass; otherwise those of each block at 0.
        """
        w, a, result = floats_at(weights), floats_at(activations), floats_at(heads)
        out = ahead(floats_at(scratch), at.WIDE)
        for first in range(begin, end, at.BLOCK):
            known = min(end - first, at.BLOCK)
            samples = (known + GROUP - 1) // GROUP * GROUP
            sample = first if keep else 0
            take_block(
                floats_at(rows),
                stride,
                longs_at(index),
                index != 0,
                first,
                known,
                samples,
                a,
                capacity,
                sample,
                ahead(w, at.SCALE),
            )
            image = ahead(a, sample * at.IMAGE)
            y = ahead(a, capacity * at.AT_FIRST + sample * at.FIRST)
            z = ahead(a, capacity * at.AT_SECOND + sample * at.SECOND)
            third = ahead(a, capacity * at.AT_THIRD + sample * at.THIRD_ROW)
            convolve(image, y, z, third, w, samples, circular)
            encode(a, third, capacity, sample, w, samples)
            trunk(a, capacity, sample, w, samples)
            last = rows_at(a, capacity, sample, LAST)
            linear(last, ahead(w, at.HEAD), out, ahead(w, at.HEAD_BIAS), 256, PANEL, samples)
            for i in range(known):
                for head in range(HEADS):
                    result[(first + i) * HEADS + head] = out[i * at.ROW + head]

    return forward
