"""Weights from the module's parameters into the order the products read them in, and gradients
back.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import float32
from numpy.typing import NDArray

from navrl.rl.fused import buffer_layout as at
from navrl.rl.fused.gemm import transpose
from navrl.simd import WIDTH, ahead, entry, floats_at, inner, integers_at, load, store

# Sizes of the six parameters of the convolutions, which come first and are copied together; nothing
# is at their end.
_PLAIN = (60, 4, 960, 16, 3840, 16)
_W1, _B1, _W2, _B2, _W3, _B3, _NOTHING = np.cumsum((0, *_PLAIN)).tolist()


def _element(
    start: int, channels: int, output: Any, channel: Any, tap: Any, beam: Any
) -> NDArray[Any]:
    """Return where elements of a convolution, [outputs, channels, 5, 3], stand; nothing where it
    does not reach.
    """
    place = start + ((output * channels + channel) * 5 + tap) * 3 + beam
    return np.where((tap >= 0) & (tap < 5) & (beam >= 0) & (beam < 3), place, _NOTHING).ravel()


def _first() -> NDArray[Any]:
    """The first convolution, by azimuth (6), beam (4); then azimuth (2), beam (4), channel (4) of
    what it makes.
    """
    azimuth, beam, made, over, channel = np.ogrid[:6, :4, :2, :4, :4]
    return _element(_W1, 1, channel, 0, azimuth - made, beam - over + 1)


def _second(taps_first: bool) -> NDArray[Any]:
    """The second, by half, beam (3), channel (4), tap (the gradient: by half, tap, beam, channel);
    beam (2), channel.
    """
    if taps_first:
        half, tap, beam, channel, over, made = np.ogrid[:2, :5, :3, :4, :2, :16]
    else:
        half, beam, channel, tap, over, made = np.ogrid[:2, :3, :4, :5, :2, :16]
    return _element(_W2, 4, made, channel, tap, half + beam - (2 * half + over) + 1)


def _third(taps_first: bool) -> NDArray[Any]:
    """The third, by beam (4), channel (16), tap (the gradient: tap first); then beam (2), channel
    (16) of what it makes.
    """
    if taps_first:
        tap, beam, channel, over, made = np.ogrid[:5, :4, :16, :2, :16]
    else:
        beam, channel, tap, over, made = np.ogrid[:4, :16, :5, :2, :16]
    return _element(_W3, 16, made, channel, tap, beam - 2 * over + 1)


def _second_back() -> NDArray[Any]:
    """The second, by what it makes: beam (4), channel (16); tap, in the order it is read; then beam
    (4), channel (4).
    """
    over, made, number, beam, channel = np.ogrid[:4, :16, :5, :4, :4]
    return _element(_W2, 4, made, channel, np.array([2, 3, 0, 1, 4])[number], beam - over + 1)


def _third_back(first: int, seen_by: list[int], taps: list[int]) -> NDArray[Any]:
    """The third, by what it makes: beam, channel (16); tap; then two beams from `first` on, channel
    (16).
    """
    over, made, tap, beam, channel = np.ogrid[: len(seen_by), :16, : len(taps), :2, :16]
    return _element(
        _W3, 16, made, channel, np.array(taps)[tap], first + beam - 2 * np.array(seen_by)[over] + 1
    )


@functools.cache
def maps() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return, for every weight of the convolutions as packed, and every gradient, which parameter
    it is of.
    """
    biases = [
        start + np.arange(number) % size
        for start, number, size in ((_B1, 32, 4), (_B2, 64, 16), (_B3, 32, 16))
    ]
    even, odd = [4, 2, 0], [3, 1]
    forward = [
        _first(),
        biases[0],
        _second(False),
        biases[1],
        _third(False),
        biases[2],
        _second_back(),
    ]
    forward += [
        _third_back(first, seen_by, taps)
        for first, seen_by in ((0, [0, 1]), (2, [1]))
        for taps in (even, odd)
    ]
    unused = np.full((at.deep(320) - 320) * 32, _NOTHING)
    gradients = [_first(), biases[0], _second(True), biases[1], _third(True), unused, biases[2]]
    return np.concatenate(forward).astype(np.int32), np.concatenate(gradients).astype(np.int32)


@inner
def _copy(source, result, number):
    for i in range(number):
        result[i] = source[i]


@inner
def _transposed(source, stride, rows, columns, result, result_stride):
    """Write rows, a multiple of WIDTH unless the columns are, as columns."""
    for row in range(0, rows - WIDTH + 1, WIDTH):
        for column in range(0, columns - WIDTH + 1, WIDTH):
            here = ahead(source, row * stride + column)
            there = ahead(result, column * result_stride + row)
            transpose(here, stride, there, result_stride)
    for row in range(rows):
        first = columns // WIDTH * WIDTH if row < rows // WIDTH * WIDTH else 0
        for column in range(first, columns):
            result[column * result_stride + row] = source[row * stride + column]


@inner
def _sort_flat(source, result, back):
    """Bring the columns of the lidar's dense layer from [channel, position] into [position,
    channel], or back.
    """
    for output in range(128):
        for channel in range(16):
            for position in range(18):
                ours = output * 288 + position * 16 + channel
                theirs = output * 288 + channel * 18 + position
                result[theirs if back else ours] = source[ours if back else theirs]


@inner
def _pack_heads(parameters, w):
    for head in range(at.HEADS):
        number = 26 + 2 * min(head // 3, 2)
        matrix, bias = floats_at(parameters[number]), floats_at(parameters[number + 1])
        w[at.HEAD_BIAS + head] = bias[head % 3]
        for i in range(256):
            value = matrix[head % 3 * 256 + i]
            w[at.HEAD + i * at.PANEL + head] = value
            w[at.HEAD_BACK + (i // at.PANEL * 8 + head) * at.PANEL + i % at.PANEL] = value


@entry
def pack(parameters, scale, chosen, weights):
    """Write the parameters, given by an array of their addresses, as the weights that the products
    read.
    """
    w, which = floats_at(weights), integers_at(chosen)
    plain, place = ahead(w, at.PLAIN), 0
    for number in range(6):
        _copy(floats_at(parameters[number]), ahead(plain, place), _PLAIN[number])
        place += _PLAIN[number]
    for i in range(at.CONVOLUTIONS):
        w[i] = plain[which[i]]
    for first, inputs, outputs, width, start, depth, back, _, _ in at.TABLE:
        matrix = floats_at(parameters[first])
        if first == 6:
            matrix = ahead(w, at.SORTED)
            _sort_flat(floats_at(parameters[first]), matrix, False)
        for output in range(0, outputs, at.PANEL):
            there = ahead(w, start + output * depth)
            _transposed(ahead(matrix, output * inputs), inputs, at.PANEL, inputs, there, at.PANEL)
        for column in range(0, width, WIDTH):
            there = back + column // at.PANEL * at.PANEL * outputs + column % at.PANEL
            for output in range(outputs):
                store(w, there + output * at.PANEL, load(matrix, output * inputs + column))
        for i in range(3):
            _copy(
                floats_at(parameters[first + 1 + i]),
                ahead(w, start + (depth + i) * outputs),
                outputs,
            )
    _pack_heads(parameters, w)
    _copy(floats_at(scale), ahead(w, at.SCALE), at.STATE)


@inner
def _unpack_heads(g, parameters):
    for head in range(at.HEADS):
        number = 26 + 2 * min(head // 3, 2)
        matrix, bias = floats_at(parameters[number]), floats_at(parameters[number + 1])
        bias[head % 3] = g[at.G_HEAD_BIAS + head]
        for i in range(256):
            matrix[head % 3 * 256 + i] = g[at.G_HEAD + i * at.PANEL + head]


@entry
def unpack(gradients, threads, chosen, weights, parameters):
    """Write the sum of the gradients of some threads, one behind the other, to the addresses of
    those of the parameters.
    """
    g, w, which = floats_at(gradients), floats_at(weights), integers_at(chosen)
    for thread in range(1, threads):
        for i in range(0, at.GRADIENTS, WIDTH):
            store(g, i, load(g, i) + load(g, thread * at.GRADIENTS + i))
    plain, place = ahead(w, at.PLAIN), 0
    for i in range(_NOTHING):
        plain[i] = float32(0)
    for i in range(at.G_CONVOLUTIONS):
        plain[which[i]] += g[i]
    plain[_NOTHING] = float32(0)
    for number in range(6):
        _copy(ahead(plain, place), floats_at(parameters[number]), _PLAIN[number])
        place += _PLAIN[number]
    for first, inputs, outputs, _, _, _, _, start, depth in at.TABLE:
        matrix = ahead(w, at.SORTED) if first == 6 else floats_at(parameters[first])
        for output in range(0, outputs, at.PANEL):
            here = ahead(g, start + output * depth)
            _transposed(here, at.PANEL, inputs, at.PANEL, ahead(matrix, output * inputs), inputs)
        if first == 6:
            _sort_flat(matrix, floats_at(parameters[first]), True)
        for i in range(3):
            _copy(
                ahead(g, start + (depth + i) * outputs),
                floats_at(parameters[first + 1 + i]),
                outputs,
            )
    _unpack_heads(g, parameters)
