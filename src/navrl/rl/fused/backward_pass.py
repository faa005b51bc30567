"""The fused network backward: gradients of all weights from those of the heads, block by block as
it went forward.
"""

from __future__ import annotations

from numba import float32

from navrl.rl.fused import buffer_layout as at
from navrl.rl.fused.forward_pass import rows_at, wrap
from navrl.rl.fused.gemm import convolution, outer_product, product, tile
from navrl.simd import WIDTH, ahead, entry, floats_at, inner, load, splat, store, total, where

# Gradients of activations.
_back = product(at.ROW, at.ROW)
_back_flat = product(at.ROW, at.BACK_THIRD, finish="slope", asides=at.ROW)
# An azimuth was seen, with stride two, by three positions through taps 4, 2, 0 or by two through
# taps 3, 1.
_back_third_even = convolution(
    32, [(0, 2), (32, 2), (64, 2)], 2, (128, 64), 128, bias=False, finish="slope"
)
_back_third_odd = convolution(
    32, [(32, 2), (64, 2)], 2, (128, 128), 128, bias=False, finish="slope"
)
# Both kinds at once: 4 beams of 4 channels are only one vector.
_back_second = convolution(
    64, [(64, 2), (128, 2), (0, 1)], 1, (32, 0), 32, bias=False, finish="slope"
)

# Gradients of weights; for the convolutions, one round is a whole sample.
_weights = outer_product(at.ROW, at.ROW, at.DEEP)
_weight_first = tile(
    range(12),
    [(8 * i, 32 * i, 2) for i in range(18)],
    (at.IMAGE, at.BACK_FIRST),
    [32 * row for row in range(12)],
    vectors=2,
    start="add",
)
_weight_second = tile(
    range(12),
    [(32 * i, 64 * i, 2) for i in range(18)],
    (at.FIRST, at.BACK_SECOND),
    [32 * row for row in range(12)],
    vectors=2,
    start="add",
)
_weight_third = tile(
    range(at.DEEP),
    [(128 * i, 32 * i, 2) for i in range(9)],
    (at.SECOND, at.BACK_THIRD),
    [32 * row for row in range(at.DEEP)],
    vectors=2,
    start="add",
)
_THIRD_ROWS = at.deep(320)


@inner
def _add_up(source, stride, rows, width, result):
    """Add rows to the result."""
    for i in range(0, width, WIDTH):
        lanes = load(result, i)
        for row in range(rows):
            lanes = lanes + load(source, row * stride + i)
        store(result, i, lanes)


@inner
def _back_normalise(gradient, source, width, gain, slope, sums, result, samples):
    """Go back through a normalisation and the leaky unit before it, whose value is the source.

    The result is the gradient of the layer; its sum, and those of the gain and the shift, are added
    to `sums`.
    """
    share = float32(1) / float32(width)
    for sample in range(samples):
        given = ahead(gradient, sample * at.ROW)
        row = ahead(source, sample * at.ROW)
        out = ahead(result, sample * at.ROW)
        mean, scale = row[width + at.STATISTICS], row[width + at.STATISTICS + 1]
        plain, along = splat(float32(0)), splat(float32(0))
        for i in range(0, width, WIDTH):
            weighted = load(given, i) * load(gain, i)
            plain = plain + weighted
            along = along + weighted * (load(row, i) - mean)
        first, second = total(plain) * share * scale, total(along) * share * scale * scale * scale
        for i in range(0, width, WIDTH):
            value, incoming = load(row, i), load(given, i)
            centred = value - mean
            before = incoming * load(gain, i) * scale - first - centred * second
            before = where(value > float32(0), before, before * slope)
            store(out, i, before)
            store(sums, i, load(sums, i) + before)
            store(sums, width + i, load(sums, width + i) + incoming * centred * scale)
            store(sums, 2 * width + i, load(sums, 2 * width + i) + incoming)


@inner
def _back_trunk(a, capacity, sample, w, g, s, samples):
    """Go back from the heads to what both encoders gave."""
    heads, wide, before = ahead(s, at.PARTS + at.PART_HEADS), ahead(s, at.WIDE), ahead(s, at.BEFORE)
    leak = float32(0.01)
    _weights(
        rows_at(a, capacity, sample, at.TRUNK_2_NORMAL),
        heads,
        ahead(g, at.G_HEAD),
        256,
        at.PANEL,
        samples,
    )
    _add_up(heads, at.ROW, samples, at.PANEL, ahead(g, at.G_HEAD_BIAS))
    _back(heads, ahead(w, at.HEAD_BACK), wide, w, 8, 256, samples)

    source = rows_at(a, capacity, sample, at.TRUNK_2)
    _back_normalise(
        wide, source, 256, ahead(w, at.T2_BIAS + 256), leak, ahead(g, at.G_T2_BIAS), before, samples
    )
    _weights(
        rows_at(a, capacity, sample, at.TRUNK_1_NORMAL),
        before,
        ahead(g, at.G_T2),
        256,
        256,
        samples,
    )
    _back(before, ahead(w, at.T2_BACK), wide, w, 256, 256, samples)

    source = rows_at(a, capacity, sample, at.TRUNK_1)
    _back_normalise(
        wide, source, 256, ahead(w, at.T1_BIAS + 256), leak, ahead(g, at.G_T1_BIAS), before, samples
    )
    _weights(
        rows_at(a, capacity, sample, at.JOIN), before, ahead(g, at.G_T1), at.JOINED, 256, samples
    )
    _back(before, ahead(w, at.T1_BACK), ahead(s, at.BACK_JOIN), w, 256, 192, samples)


@inner
def _back_encoders(a, capacity, sample, w, g, s, samples):
    """Go back from what both encoders gave to the dynamic input and to the third convolution."""
    join, mixed = ahead(s, at.BACK_JOIN), rows_at(a, capacity, sample, at.MIXED)
    small = ahead(s, at.PARTS + at.PART_SMALL)
    middle = ahead(s, at.PARTS + at.PART_MIDDLE)
    other = ahead(s, at.OTHER)
    encoders = rows_at(a, capacity, sample, at.ENCODERS)
    leak, none = float32(0.01), float32(1)

    source = ahead(mixed, at.MIXED_SECOND)
    gain = ahead(w, at.D2_BIAS + 64)
    sums = ahead(g, at.G_D2_BIAS)
    _back_normalise(ahead(join, 128), source, 64, gain, leak, sums, small, samples)
    _weights(mixed, small, ahead(g, at.G_D2), 128, 64, samples)
    _back(small, ahead(w, at.D2_BACK), middle, w, 64, 128, samples)
    source = ahead(encoders, at.ENCODER_DYNAMIC)
    gain = ahead(w, at.D1_BIAS + 128)
    sums = ahead(g, at.G_D1_BIAS)
    _back_normalise(middle, source, 128, gain, leak, sums, other, samples)
    _weights(ahead(mixed, at.MIXED_INPUT), other, ahead(g, at.G_D1), at.DYNAMIC, 128, samples)

    third = rows_at(a, capacity, sample, at.THIRD)
    gain = ahead(w, at.LIN_BIAS + 128)
    sums = ahead(g, at.G_LIN_BIAS)
    _back_normalise(join, encoders, 128, gain, none, sums, middle, samples)
    _weights(third, middle, ahead(g, at.G_LIN), at.FLAT, 128, samples)
    _back_flat(middle, ahead(w, at.LIN_BACK), ahead(s, 32), third, 128, at.FLAT, samples)


@inner
def _back_images(first, second, w, third_back, second_back, first_back, samples, circular):
    """Go back from the third to the first convolution."""
    for sample in range(samples):
        x, y = ahead(first, sample * at.FIRST), ahead(second, sample * at.SECOND)
        back = ahead(third_back, sample * at.BACK_THIRD)
        out = ahead(second_back, sample * at.BACK_SECOND)
        if circular:
            wrap(back, 9, 1, 32)
        for half in range(2):
            start, here = ahead(back, 16 * half), ahead(out, 32 * half)
            kernel, columns = ahead(w, at.C3_HIGH if half else at.C3_LOW), 16 if half else 32
            _back_third_even(start, kernel, here, ahead(y, 128 + 32 * half), columns // 2)
            _back_third_odd(
                start, ahead(kernel, columns * 96), here, ahead(y, 192 + 32 * half), columns // 2
            )
        if circular:
            wrap(out, 18, 1, 64)
        for half in range(2):
            there = ahead(first_back, sample * at.BACK_FIRST + 288 * half)
            _back_second(
                ahead(out, 576 * half), ahead(w, at.C2_BACK), there, ahead(x, 32 + 288 * half), 64
            )


@inner
def _weights_of_images(image, first, second, g, third_back, second_back, first_back, samples):
    """Add the gradients of the weights of the convolutions."""
    for part in range(2):
        _weight_first(
            ahead(image, 12 * part), first_back, ahead(g, at.G_C1 + 12 * 32 * part), image, samples
        )
        for tap in range(5):
            result = ahead(g, at.G_C2 + (5 * part + tap) * 12 * 32)
            _weight_second(
                ahead(first, 16 * tap + 4 * part),
                ahead(second_back, 64 + 32 * part),
                result,
                image,
                samples,
            )
    for row in range(0, _THIRD_ROWS, at.DEEP):
        _weight_third(
            ahead(second, row), ahead(third_back, 32), ahead(g, at.G_C3 + row * 32), image, samples
        )
    for sample in range(samples):
        _add_up(ahead(first_back, sample * at.BACK_FIRST), 32, 18, 32, ahead(g, at.G_C1_BIAS))
        _add_up(
            ahead(second_back, sample * at.BACK_SECOND + 64), 64, 18, 64, ahead(g, at.G_C2_BIAS)
        )
        _add_up(ahead(third_back, sample * at.BACK_THIRD + 32), 32, 9, 32, ahead(g, at.G_C3_BIAS))


@inner
def _back_block(a, capacity, block, w, g, s, samples, circular):
    _back_trunk(a, capacity, block, w, g, s, samples)
    _back_encoders(a, capacity, block, w, g, s, samples)
    second_back, first_back = ahead(s, at.AT_BACK_SECOND), ahead(s, at.AT_BACK_FIRST)
    for start in range(0, samples, at.IMAGES):
        number, sample = min(at.IMAGES, samples - start), block + start
        first = ahead(a, capacity * at.AT_FIRST + sample * at.FIRST)
        second = ahead(a, capacity * at.AT_SECOND + sample * at.SECOND)
        third_back = ahead(s, start * at.BACK_THIRD)
        _back_images(first, second, w, third_back, second_back, first_back, number, circular)
        _weights_of_images(
            ahead(a, sample * at.IMAGE),
            first,
            second,
            g,
            third_back,
            second_back,
            first_back,
            number,
        )


@entry
def backward(heads, begin, end, weights, activations, capacity, circular, scratch, gradients):
    """Write the gradients of the weights for the samples from `begin` to `end`; all but numbers are
    addresses.
    """
    given, w, a = floats_at(heads), floats_at(weights), floats_at(activations)
    s, g = floats_at(scratch), floats_at(gradients)
    for i in range(0, at.GRADIENTS, WIDTH):
        store(g, i, splat(float32(0)))
    parts = ahead(s, at.PARTS + at.PART_HEADS)
    for block in range(begin, end, at.BLOCK):
        known = min(end - block, at.BLOCK)
        samples = (known + at.GROUP - 1) // at.GROUP * at.GROUP
        for i in range(samples):
            for head in range(at.HEADS):
                parts[i * at.ROW + head] = (
                    given[(block + i) * at.HEADS + head] if i < known else float32(0)
                )
        _back_block(a, capacity, block, w, g, s, samples, circular)
