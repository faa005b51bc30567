"""The fused network forward: blocks of samples go through all layers while they are in the
cache.
"""

from __future__ import annotations

import math

from numba import float32

from navrl.rl.fused import buffer_layout as at
from navrl.rl.fused.gemm import convolution, product, tile
from navrl.simd import WIDTH, ahead, entry, floats_at, inner, load, longs_at, splat, store, total

# Two neighbouring azimuths at a time: their 4 beams of 4 channels are the columns, six azimuths of
# 4 beams the depth.
_first = tile(
    [8 * i for i in range(9)],
    [(k, 32 * k, 2) for k in range(12)],
    (12, 12 * 32),
    [32 * i for i in range(9)],
    vectors=2,
    start="bias",
    finish="elu",
)
# Two beams of 16 channels are the columns; they see 3 beams of 4 channels, in five azimuths.
_second = convolution(32, [(16 * tap, 2) for tap in range(5)], 1, (64, 0), bias=True, finish="elu")
_third = convolution(128, [(64 * tap, 2) for tap in range(5)], 1, (32, 0), bias=True, finish="elu")
_linear = product(at.ROW, at.ROW, bias=True)
_leaky = product(at.ROW, at.ROW, bias=True, finish="leaky")


@inner
def rows_at(activations, capacity, sample, which):
    """Return one of the matrices of activations, from a sample on."""
    return ahead(activations, capacity * at.AT_ROWS + (which * capacity + sample) * at.ROW)


@inner
def wrap(image, number, edge, size):
    """Fill the `edge` positions before and behind `number` positions of some size with those of the
    other end.
    """
    for i in range(edge * size):
        image[i] = image[number * size + i]
        image[(edge + number) * size + i] = image[edge * size + i]


@inner
def _take(row, known, image, dynamic, state, scale):
    """Put the parts of one observation where the layers read them; zeros if there is none."""
    if known:
        for i in range(0, at.LIDAR, WIDTH):
            store(image, i, load(row, i))
        for i in range(0, at.DYNAMIC - WIDTH, WIDTH):
            store(dynamic, i, load(row, at.LIDAR + i))
        for i in range(at.DYNAMIC // WIDTH * WIDTH, at.DYNAMIC):
            dynamic[i] = row[at.LIDAR + i]
        for i in range(at.STATE):
            state[i] = row[at.LIDAR + at.DYNAMIC + i] * scale[i]
    else:
        for i in range(at.LIDAR):
            image[i] = float32(0)
        for i in range(at.DYNAMIC):
            dynamic[i] = float32(0)
        for i in range(at.STATE):
            state[i] = float32(0)


@inner
def _take_block(
    observations, stride, index, listed, first, known, samples, a, capacity, sample, scale
):
    image = ahead(a, sample * at.IMAGE + 2 * at.BEAMS)
    dynamic = ahead(rows_at(a, capacity, sample, at.MIXED), at.MIXED_INPUT)
    state = ahead(rows_at(a, capacity, sample, at.JOIN), at.JOINED - at.STATE)
    for i in range(samples):
        number = first + min(i, known - 1)
        row = ahead(observations, (index[number] if listed else number) * stride)
        _take(
            row,
            i < known,
            ahead(image, i * at.IMAGE),
            ahead(dynamic, i * at.ROW),
            ahead(state, i * at.ROW),
            scale,
        )


@inner
def _convolve(image, first, second, third, weights, samples, circular):
    """Take images through the three convolutions."""
    for sample in range(samples):
        x, y = ahead(image, sample * at.IMAGE), ahead(first, sample * at.FIRST)
        z, end = ahead(second, sample * at.SECOND), ahead(third, sample * at.ROW)
        if circular:
            wrap(x, 36, 2, 4)
        for half in range(2):
            _first(
                ahead(x, 72 * half),
                ahead(weights, at.C1),
                ahead(y, 32 + 288 * half),
                ahead(weights, at.C1_BIAS),
                2,
            )
        if circular:
            wrap(y, 36, 2, 16)
        for beams in range(2):
            kernel = ahead(weights, at.C2 + beams * 12 * 5 * 32)
            bias = ahead(weights, at.C2_BIAS + 32 * beams)
            for half in range(2):
                _second(
                    ahead(y, 288 * half + 4 * beams),
                    kernel,
                    ahead(z, 128 + 576 * half + 32 * beams),
                    bias,
                    12,
                )
        if circular:
            wrap(z, 18, 2, 64)
        _third(z, ahead(weights, at.C3), end, ahead(weights, at.C3_BIAS), 64)


@inner
def _normalise(source, width, gain, result, samples):
    """Normalise rows, times the gain plus what follows it; note the mean and the scale behind the
    source.
    """
    share = float32(1) / float32(width)
    for sample in range(samples):
        row, out = ahead(source, sample * at.ROW), ahead(result, sample * at.ROW)
        lanes = splat(float32(0))
        for i in range(0, width, WIDTH):
            lanes = lanes + load(row, i)
        mean = total(lanes) * share
        lanes = splat(float32(0))
        for i in range(0, width, WIDTH):
            difference = load(row, i) - mean
            lanes = lanes + difference * difference
        scale = float32(1) / math.sqrt(total(lanes) * share + float32(1e-5))
        row[width + at.STATISTICS], row[width + at.STATISTICS + 1] = mean, scale
        for i in range(0, width, WIDTH):
            store(out, i, (load(row, i) - mean) * scale * load(gain, i) + load(gain, width + i))


@inner
def _dense(a, capacity, sample, w, samples):
    """Take samples through the layers between the convolutions and the heads."""
    third = rows_at(a, capacity, sample, at.THIRD)
    encoders = rows_at(a, capacity, sample, at.ENCODERS)
    mixed, join = rows_at(a, capacity, sample, at.MIXED), rows_at(a, capacity, sample, at.JOIN)
    _linear(third, ahead(w, at.LIN), encoders, ahead(w, at.LIN_BIAS), at.FLAT, 128, samples)
    _normalise(encoders, 128, ahead(w, at.LIN_BIAS + 128), join, samples)

    encoder, second = ahead(encoders, at.ENCODER_DYNAMIC), ahead(mixed, at.MIXED_SECOND)
    _leaky(
        ahead(mixed, at.MIXED_INPUT),
        ahead(w, at.D1),
        encoder,
        ahead(w, at.D1_BIAS),
        52,
        128,
        samples,
    )
    _normalise(encoder, 128, ahead(w, at.D1_BIAS + 128), mixed, samples)
    _leaky(mixed, ahead(w, at.D2), second, ahead(w, at.D2_BIAS), 128, 64, samples)
    _normalise(second, 64, ahead(w, at.D2_BIAS + 64), ahead(join, 128), samples)

    first = rows_at(a, capacity, sample, at.TRUNK_1)
    second = rows_at(a, capacity, sample, at.TRUNK_2)
    normal = rows_at(a, capacity, sample, at.TRUNK_1_NORMAL)
    last = rows_at(a, capacity, sample, at.TRUNK_2_NORMAL)
    _leaky(join, ahead(w, at.T1), first, ahead(w, at.T1_BIAS), at.JOINED, 256, samples)
    _normalise(first, 256, ahead(w, at.T1_BIAS + 256), normal, samples)
    _leaky(normal, ahead(w, at.T2), second, ahead(w, at.T2_BIAS), 256, 256, samples)
    _normalise(second, 256, ahead(w, at.T2_BIAS + 256), last, samples)


@entry
def forward(
    rows, stride, index, begin, end, weights, activations, capacity, keep, circular, scratch, heads
):
    """Write the heads of the samples from `begin` to `end`; all but numbers are addresses, that of
    `index` may be 0.

    With `keep`, the activations of sample i stand at i of `capacity`, for the backward pass; else
    each block's at 0.
    """
    w = floats_at(weights)
    a = floats_at(activations)
    out = ahead(floats_at(scratch), at.WIDE)
    result = floats_at(heads)
    for first in range(begin, end, at.BLOCK):
        known = min(end - first, at.BLOCK)
        samples = (known + at.GROUP - 1) // at.GROUP * at.GROUP
        sample = first if keep else 0
        _take_block(
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
        image, third = ahead(a, sample * at.IMAGE), rows_at(a, capacity, sample, at.THIRD)
        y = ahead(a, capacity * at.AT_FIRST + sample * at.FIRST)
        z = ahead(a, capacity * at.AT_SECOND + sample * at.SECOND)
        _convolve(image, y, z, third, w, samples, circular)
        _dense(a, capacity, sample, w, samples)
        last = rows_at(a, capacity, sample, at.TRUNK_2_NORMAL)
        _linear(last, ahead(w, at.HEAD), out, ahead(w, at.HEAD_BIAS), 256, at.PANEL, samples)
        for i in range(known):
            for head in range(at.HEADS):
                result[(first + i) * at.HEADS + head] = out[i * at.ROW + head]
