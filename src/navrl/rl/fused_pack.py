"""Weights from the module's parameters into the order the products read them in, and gradients back."""

from __future__ import annotations

from numba import float32

from navrl.rl import fused_layout as at
from navrl.simd import WIDTH, ahead, entry, floats_at, inner, load, store, transpose

_ROWS = tuple(at.padded(inputs) for inputs in (at.FLAT, at.DYNAMIC, 128, at.JOINED, 256))  # of the dense gradients


@inner
def _copy(source, result, number):  # type: ignore[no-untyped-def]
    for i in range(number):
        result[i] = source[i]


@inner
def _transposed(source, stride, rows, columns, result, result_stride):  # type: ignore[no-untyped-def]
    """Write rows as columns."""
    for row in range(0, rows - WIDTH + 1, WIDTH):
        for column in range(0, columns - WIDTH + 1, WIDTH):
            here, there = ahead(source, row * stride + column), ahead(result, column * result_stride + row)
            transpose(here, stride, there, result_stride)
    for row in range(rows):
        first = columns // WIDTH * WIDTH if row < rows // WIDTH * WIDTH else 0
        for column in range(first, columns):
            result[column * result_stride + row] = source[row * stride + column]


@inner
def _panels(matrix, inputs, outputs, result, depth):  # type: ignore[no-untyped-def]
    """Write a layer's matrix, [outputs, inputs], as panels of [depth, 32]."""
    for output in range(0, outputs, at.PANEL):
        _transposed(ahead(matrix, output * inputs), inputs, at.PANEL, inputs, ahead(result, output * depth), at.PANEL)


@inner
def _from_panels(panels, depth, inputs, outputs, result):  # type: ignore[no-untyped-def]
    """The other way round."""
    for output in range(0, outputs, at.PANEL):
        _transposed(ahead(panels, output * depth), at.PANEL, inputs, at.PANEL, ahead(result, output * inputs), inputs)


@inner
def _panels_back(matrix, inputs, outputs, width, result):  # type: ignore[no-untyped-def]
    """Write the first `width` inputs of a layer's matrix, [outputs, inputs], as panels of [outputs, 32]."""
    for first in range(0, width, at.PANEL):
        for output in range(outputs):
            here, there = output * inputs + first, (first * outputs) + output * at.PANEL
            store(result, there, load(matrix, here))
            store(result, there + WIDTH, load(matrix, here + WIDTH))


@inner
def _seen(weight, channels, output, channel, tap, beam):  # type: ignore[no-untyped-def]
    """Return an element of a convolution, [outputs, channels, 5, 3]; zero for a beam that it does not see."""
    return weight[((output * channels + channel) * 5 + tap) * 3 + beam] if 0 <= beam < 3 else float32(0)


@inner
def _pack_first(weight, result):  # type: ignore[no-untyped-def]
    for azimuth in range(6):
        for beam in range(4):
            for column in range(32):
                tap, seen_by = azimuth - column // 16, column // 4 % 4
                value = _seen(weight, 1, column % 4, 0, tap, beam - seen_by + 1) if 0 <= tap < 5 else float32(0)
                result[(azimuth * 4 + beam) * 32 + column] = value


@inner
def _pack_second(weight, result, back):  # type: ignore[no-untyped-def]
    for half in range(2):
        for row in range(12):
            for tap in range(5):
                for column in range(32):
                    beam = half + row // 4 - (2 * half + column // 16) + 1
                    value = _seen(weight, 4, column % 16, row % 4, tap, beam)
                    result[((half * 12 + row) * 5 + tap) * 32 + column] = value
    for row in range(64):
        for order in range(5):
            tap = (order + 2) % 4 if order < 4 else 4  # 2, 3, 0, 1, 4
            for column in range(16):
                value = _seen(weight, 4, row % 16, column % 4, tap, column // 4 - row // 16 + 1)
                back[(row * 5 + order) * 16 + column] = value


@inner
def _pack_third(weight, result, low, high):  # type: ignore[no-untyped-def]
    for row in range(64):
        for tap in range(5):
            for column in range(32):
                value = _seen(weight, 16, column % 16, row % 16, tap, row // 16 - 2 * (column // 16) + 1)
                result[(row * 5 + tap) * 32 + column] = value
    for order in range(5):
        tap, even = 4 - 2 * order if order < 3 else 3 - 2 * (order - 3), order < 3  # 4, 2, 0; 3, 1
        for row in range(32):
            for column in range(32):
                value = _seen(weight, 16, row % 16, column % 16, tap, column // 16 - 2 * (row // 16) + 1)
                low[(row * 3 + order) * 32 + column if even else (96 + row * 2 + order - 3) * 32 + column] = value
        for row in range(16):
            for column in range(32):
                value = _seen(weight, 16, row, column % 16, tap, 2 + column // 16 - 2 + 1)
                high[(row * 3 + order) * 32 + column if even else (48 + row * 2 + order - 3) * 32 + column] = value


@inner
def _sort_flat(source, result, back):  # type: ignore[no-untyped-def]
    """Bring the columns of the lidar's dense layer from [channel, position] into [position, channel], or back."""
    for output in range(128):
        for channel in range(16):
            for position in range(18):
                ours, theirs = output * 288 + position * 16 + channel, output * 288 + channel * 18 + position
                result[theirs if back else ours] = source[ours if back else theirs]


@entry
def pack(parameters, scale, weights):  # type: ignore[no-untyped-def]
    """Write the parameters, given by an array of their addresses, as the weights that the products read."""
    w, p = floats_at(weights), parameters
    _pack_first(floats_at(p[0]), ahead(w, at.C1))
    _pack_second(floats_at(p[2]), ahead(w, at.C2), ahead(w, at.C2_BACK))
    _pack_third(floats_at(p[4]), ahead(w, at.C3), ahead(w, at.C3_LOW), ahead(w, at.C3_HIGH))
    for i in range(32):
        w[at.C1_BIAS + i], w[at.C3_BIAS + i] = floats_at(p[1])[i % 4], floats_at(p[5])[i % 16]
    for i in range(64):
        w[at.C2_BIAS + i] = floats_at(p[3])[i % 16]
    _copy(floats_at(scale), ahead(w, at.SCALE), at.STATE)
    sorted_ = ahead(w, at.LIN_SORTED)
    _sort_flat(floats_at(p[6]), sorted_, False)
    _panels(sorted_, 288, 128, ahead(w, at.LIN), 288)
    _panels_back(sorted_, 288, 128, 288, ahead(w, at.LIN_BACK))
    _panels(floats_at(p[10]), 50, 128, ahead(w, at.D1), 52)
    _panels(floats_at(p[14]), 128, 64, ahead(w, at.D2), 128)
    _panels_back(floats_at(p[14]), 128, 64, 128, ahead(w, at.D2_BACK))
    _panels(floats_at(p[18]), 200, 256, ahead(w, at.T1), 200)
    _panels_back(floats_at(p[18]), 200, 256, 192, ahead(w, at.T1_BACK))
    _panels(floats_at(p[22]), 256, 256, ahead(w, at.T2), 256)
    _panels_back(floats_at(p[22]), 256, 256, 256, ahead(w, at.T2_BACK))
    for first, number, place in (
        (7, 128, at.LIN_BIAS), (11, 128, at.D1_BIAS), (15, 64, at.D2_BIAS), (19, 256, at.T1_BIAS), (23, 256, at.T2_BIAS)
    ):  # fmt: skip
        for i in range(3):
            _copy(floats_at(p[first + i]), ahead(w, place + i * number), number)
    for head in range(at.HEADS):
        matrix, bias = floats_at(p[26 + 2 * min(head // 3, 2)]), floats_at(p[27 + 2 * min(head // 3, 2)])
        w[at.HEAD_BIAS + head] = bias[head % 3]
        for i in range(256):
            value = matrix[head % 3 * 256 + i]
            w[at.HEAD + i * 16 + head] = value
            w[at.HEAD_BACK + i // 32 * 256 + head * 32 + i % 32] = value


@inner
def _unpack_convolutions(g, p):  # type: ignore[no-untyped-def]
    """Add up what the beams and azimuths found for the same element."""
    first, second, third = floats_at(p[0]), floats_at(p[2]), floats_at(p[4])
    for i in range(60):
        first[i] = float32(0)
    for i in range(960):
        second[i] = float32(0)
    for i in range(3840):
        third[i] = float32(0)
    for row in range(24):
        for column in range(32):
            tap, beam = row // 4 - column // 16, row % 4 - column // 4 % 4 + 1
            if 0 <= tap < 5 and 0 <= beam < 3:
                first[(column % 4 * 5 + tap) * 3 + beam] += g[at.G_C1 + row * 32 + column]
    for half in range(2):
        for tap in range(5):
            for row in range(12):
                for column in range(32):
                    beam = half + row // 4 - (2 * half + column // 16) + 1
                    if 0 <= beam < 3:
                        place = ((column % 16 * 4 + row % 4) * 5 + tap) * 3 + beam
                        second[place] += g[at.G_C2 + ((half * 5 + tap) * 12 + row) * 32 + column]
    for row in range(320):
        for column in range(32):
            beam = row // 16 % 4 - 2 * (column // 16) + 1
            if 0 <= beam < 3:
                third[((column % 16 * 16 + row % 16) * 5 + row // 64) * 3 + beam] += g[at.G_C3 + row * 32 + column]


@inner
def _fold(source, number, result, width):  # type: ignore[no-untyped-def]
    for i in range(width):
        result[i] = float32(0)
    for i in range(number):
        result[i % width] += source[i]


@entry
def unpack(gradients, others, number, weights, parameters):  # type: ignore[no-untyped-def]
    """Write the sum of the gradients of `number` threads, each `others` bytes from the last, in the parameters' order."""
    g, w, p = floats_at(gradients), floats_at(weights), parameters
    for thread in range(1, number):
        other = floats_at(gradients + thread * others)
        for i in range(0, at.GRADIENTS, WIDTH):
            store(g, i, load(g, i) + load(other, i))
    _unpack_convolutions(g, p)
    _fold(ahead(g, at.G_C1_BIAS), 32, floats_at(p[1]), 4)
    _fold(ahead(g, at.G_C2_BIAS), 64, floats_at(p[3]), 16)
    _fold(ahead(g, at.G_C3_BIAS), 32, floats_at(p[5]), 16)
    sorted_ = ahead(w, at.LIN_SORTED)
    _from_panels(ahead(g, at.G_LIN), _ROWS[0], 288, 128, sorted_)
    _sort_flat(sorted_, floats_at(p[6]), True)
    _from_panels(ahead(g, at.G_D1), _ROWS[1], 50, 128, floats_at(p[10]))
    _from_panels(ahead(g, at.G_D2), _ROWS[2], 128, 64, floats_at(p[14]))
    _from_panels(ahead(g, at.G_T1), _ROWS[3], 200, 256, floats_at(p[18]))
    _from_panels(ahead(g, at.G_T2), _ROWS[4], 256, 256, floats_at(p[22]))
    for first, count, place in (
        (7, 128, at.G_LIN_BIAS), (11, 128, at.G_D1_BIAS), (15, 64, at.G_D2_BIAS), (19, 256, at.G_T1_BIAS),
        (23, 256, at.G_T2_BIAS),
    ):  # fmt: skip
        for i in range(3):
            _copy(ahead(g, place + i * count), floats_at(p[first + i]), count)
    for head in range(at.HEADS):
        matrix, bias = floats_at(p[26 + 2 * min(head // 3, 2)]), floats_at(p[27 + 2 * min(head // 3, 2)])
        bias[head % 3] = g[at.G_HEAD_BIAS + head]
        for i in range(256):
            matrix[head % 3 * 256 + i] = g[at.G_HEAD + i * 16 + head]
