"""The fused network forward: blocks of samples go through all layers while they are in the cache."""

from __future__ import annotations

import math

from numba import float32

from navrl.rl import fused_layout as at
from navrl.rl.gemm import convolution, product, tile
from navrl.simd import WIDTH, ahead, entry, floats_at, inner, load, longs_at, splat, store, total

# Two neighbouring azimuths at a time: their 4 beams of 4 channels are the columns, six azimuths of 4 beams the depth.
_first = tile(
    [8 * i for i in range(9)], [(k, 32 * k, 2) for k in range(12)], (12, 12 * 32), [32 * i for i in range(9)], vectors=2,
    start="bias", finish="elu",
)  # fmt: skip
# Two beams of 16 channels are the columns; they see 3 beams of 4 channels, in five azimuths.
_second = convolution(32, [(16 * tap, 2) for tap in range(5)], 1, (64, 0), bias=True, finish="elu")
_third = convolution(128, [(64 * tap, 2) for tap in range(5)], 1, (32, 0), bias=True, finish="elu")

_lidar = product(at.THIRD, at.FLAT, 128, at.MIDDLE, bias=True)
_dynamic_1 = product(at.SMALL, 52, 128, at.MIDDLE, bias=True, finish="leaky")
_dynamic_2 = product(at.MIDDLE, 128, 64, at.SMALL, bias=True, finish="leaky")
_trunk_1 = product(at.JOIN, at.JOINED, 256, at.WIDE, bias=True, finish="leaky")
_trunk_2 = product(at.WIDE, 256, 256, at.WIDE, bias=True, finish="leaky")
_heads = product(at.WIDE, 256, 16, 16, bias=True)


@inner
def _take(row, known, image, dynamic, state, scale, circular):  # type: ignore[no-untyped-def]
    """Put the parts of one observation where the layers read them; zeros if there is none."""
    for i in range(0, at.LIDAR, WIDTH):
        store(image, 2 * at.BEAMS + i, load(row, i) if known else splat(float32(0)))
    for i in range(at.DYNAMIC):
        dynamic[i] = row[at.LIDAR + i] if known else float32(0)
    for i in range(at.STATE):
        state[i] = row[at.LIDAR + at.DYNAMIC + i] * scale[i] if known else float32(0)
    if circular:
        wrap(image, at.AZIMUTHS, 2, at.BEAMS)


@inner
def wrap(image, number, edge, size):  # type: ignore[no-untyped-def]
    """Fill the `edge` positions before and behind `number` positions of some size with those of the other end."""
    for i in range(edge * size):
        image[i] = image[number * size + i]
        image[(edge + number) * size + i] = image[edge * size + i]


@inner
def _convolve(image, first, second, third, weights, samples, circular):  # type: ignore[no-untyped-def]
    """Take images through the three convolutions."""
    for sample in range(samples):
        x, y = ahead(image, sample * at.IMAGE), ahead(first, sample * at.FIRST)
        z, end = ahead(second, sample * at.SECOND), ahead(third, sample * at.THIRD)
        for half in range(2):
            _first(ahead(x, 72 * half), ahead(weights, at.C1), ahead(y, 32 + 288 * half), ahead(weights, at.C1_BIAS), 2)
        if circular:
            wrap(y, 36, 2, 16)
        for beams in range(2):
            kernel, bias = ahead(weights, at.C2 + beams * 12 * 5 * 32), ahead(weights, at.C2_BIAS + 32 * beams)
            for half in range(2):
                _second(ahead(y, 288 * half + 4 * beams), kernel, ahead(z, 128 + 576 * half + 32 * beams), bias, 12)
        if circular:
            wrap(z, 18, 2, 64)
        _third(z, ahead(weights, at.C3), end, ahead(weights, at.C3_BIAS), 64)


@inner
def _normalise(source, stride, width, gain, result, result_stride, samples):  # type: ignore[no-untyped-def]
    """Normalise rows, times `gain` plus what follows it; the mean and the scale are noted 8 numbers behind the row."""
    share = float32(1) / float32(width)
    for sample in range(samples):
        row, out = ahead(source, sample * stride), ahead(result, sample * result_stride)
        lanes = splat(float32(0))
        for i in range(0, width, WIDTH):
            lanes = lanes + load(row, i)
        mean = total(lanes) * share
        lanes = splat(float32(0))
        for i in range(0, width, WIDTH):
            difference = load(row, i) - mean
            lanes = lanes + difference * difference
        scale = float32(1) / math.sqrt(total(lanes) * share + float32(1e-5))
        row[width + 8], row[width + 9] = mean, scale
        for i in range(0, width, WIDTH):
            store(out, i, (load(row, i) - mean) * scale * load(gain, i) + load(gain, width + i))


@inner
def _dense(activations, capacity, sample, weights, samples):  # type: ignore[no-untyped-def]
    """Take samples through the layers between the convolutions and the heads."""
    third = ahead(activations, capacity * at.AT_THIRD + sample * at.THIRD)
    lidar = ahead(activations, capacity * at.AT_LIDAR + sample * at.MIDDLE)
    join = ahead(activations, capacity * at.AT_JOIN + sample * at.JOIN)
    _lidar(third, ahead(weights, at.LIN), lidar, ahead(weights, at.LIN_BIAS), samples)
    _normalise(lidar, at.MIDDLE, 128, ahead(weights, at.LIN_GAIN), join, at.JOIN, samples)

    dynamic = ahead(activations, capacity * at.AT_DYNAMIC + sample * at.SMALL)
    d1, d1n = (
        ahead(activations, capacity * at.AT_D1 + sample * at.MIDDLE),
        ahead(activations, capacity * at.AT_D1N + sample * at.MIDDLE),
    )
    d2 = ahead(activations, capacity * at.AT_D2 + sample * at.SMALL)
    _dynamic_1(dynamic, ahead(weights, at.D1), d1, ahead(weights, at.D1_BIAS), samples)
    _normalise(d1, at.MIDDLE, 128, ahead(weights, at.D1_GAIN), d1n, at.MIDDLE, samples)
    _dynamic_2(d1n, ahead(weights, at.D2), d2, ahead(weights, at.D2_BIAS), samples)
    _normalise(d2, at.SMALL, 64, ahead(weights, at.D2_GAIN), ahead(join, 128), at.JOIN, samples)

    t1 = ahead(activations, capacity * at.AT_T1 + sample * at.WIDE)
    t1n = ahead(activations, capacity * at.AT_T1N + sample * at.WIDE)
    t2 = ahead(activations, capacity * at.AT_T2 + sample * at.WIDE)
    t2n = ahead(activations, capacity * at.AT_T2N + sample * at.WIDE)
    _trunk_1(join, ahead(weights, at.T1), t1, ahead(weights, at.T1_BIAS), samples)
    _normalise(t1, at.WIDE, 256, ahead(weights, at.T1_GAIN), t1n, at.WIDE, samples)
    _trunk_2(t1n, ahead(weights, at.T2), t2, ahead(weights, at.T2_BIAS), samples)
    _normalise(t2, at.WIDE, 256, ahead(weights, at.T2_GAIN), t2n, at.WIDE, samples)


@entry
def forward(rows, stride, index, begin, end, weights, activations, capacity, keep, circular, scratch, heads):  # type: ignore[no-untyped-def]
    """Write the heads of the samples from `begin` to `end`; all but numbers are addresses, that of `index` may be 0.

    With `keep`, the activations of sample i stand at i of `capacity`, for the backward pass; else each block's at 0.
    """
    observations, numbers, w, a = floats_at(rows), longs_at(index), floats_at(weights), floats_at(activations)
    out, result = floats_at(scratch), floats_at(heads)
    for first in range(begin, end, at.BLOCK):
        known = min(end - first, at.BLOCK)
        samples = (known + at.GROUP - 1) // at.GROUP * at.GROUP
        sample = first if keep else 0
        image = ahead(a, capacity * at.AT_IMAGE + sample * at.IMAGE)
        dynamic = ahead(a, capacity * at.AT_DYNAMIC + sample * at.SMALL)
        state = ahead(a, capacity * at.AT_JOIN + sample * at.JOIN + 192)
        for i in range(samples):
            number = first + min(i, known - 1)
            row = ahead(observations, (numbers[number] if index != 0 else number) * stride)
            x, y, z = ahead(image, i * at.IMAGE), ahead(dynamic, i * at.SMALL), ahead(state, i * at.JOIN)
            _take(row, i < known, x, y, z, ahead(w, at.SCALE), circular)
        second, third = capacity * at.AT_SECOND + sample * at.SECOND, capacity * at.AT_THIRD + sample * at.THIRD
        y = ahead(a, capacity * at.AT_FIRST + sample * at.FIRST)
        _convolve(image, y, ahead(a, second), ahead(a, third), w, samples, circular)
        _dense(a, capacity, sample, w, samples)
        t2n = ahead(a, capacity * at.AT_T2N + sample * at.WIDE)
        _heads(t2n, ahead(w, at.HEAD), out, ahead(w, at.HEAD_BIAS), samples)
        for i in range(known):
            for head in range(at.HEADS):
                result[(first + i) * at.HEADS + head] = out[i * 16 + head]
