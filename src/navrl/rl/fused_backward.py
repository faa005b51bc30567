"""The fused network backward: gradients of all weights from those of the heads, block by block as it went forward."""

from __future__ import annotations

from numba import float32

from navrl.rl import fused_layout as at
from navrl.rl.fused_forward import wrap
from navrl.rl.gemm import convolution, outer_product, product, tile
from navrl.simd import WIDTH, ahead, entry, floats_at, inner, load, splat, store, total, where

# Gradients of activations.
_back_heads = product(16, 8, 256, at.WIDE)
_back_t2 = product(at.WIDE, 256, 256, at.WIDE)
_back_t1 = product(at.WIDE, 256, 192, at.JOIN)
_back_d2 = product(at.SMALL, 64, 128, at.MIDDLE)
_back_lidar = product(at.MIDDLE, 128, at.FLAT, at.BACK_THIRD, finish="slope", asides=at.THIRD)
# An azimuth with stride two was seen by three positions, through taps 4, 2, 0, or by two, through taps 3, 1.
_back_third_even = convolution(32, [(0, 2), (32, 2), (64, 2)], 2, (128, 64), 128, bias=False, finish="slope")
_back_third_odd = convolution(32, [(32, 2), (64, 2)], 2, (128, 128), 128, bias=False, finish="slope")
# Both kinds at once: 4 beams of 4 channels are only one vector.
_back_second = convolution(64, [(64, 2), (128, 2), (0, 1)], 1, (32, 0), 32, bias=False, finish="slope")

# Gradients of weights.
_weight_heads = outer_product(at.WIDE, 256, 16, 16)
_weight_t2 = outer_product(at.WIDE, 256, at.WIDE, 256)
_weight_t1 = outer_product(at.JOIN, at.JOINED, at.WIDE, 256)
_weight_d2 = outer_product(at.MIDDLE, 128, at.SMALL, 64)
_weight_d1 = outer_product(at.SMALL, at.DYNAMIC, at.MIDDLE, 128)
_weight_lidar = outer_product(at.THIRD, at.FLAT, at.MIDDLE, 128)
# One round is a whole sample.
_weight_first = tile(
    range(12), [(8 * i, 32 * i, 2) for i in range(18)], (at.IMAGE, 18 * 32), [32 * r for r in range(12)], vectors=2, start="add"
)
_weight_second = tile(
    range(12), [(32 * i, 64 * i, 2) for i in range(18)], (at.FIRST, at.BACK_SECOND), [32 * r for r in range(12)], vectors=2,
    start="add",
)  # fmt: skip
_weight_third = tile(
    range(at.DEEP), [(128 * i, 32 * i, 2) for i in range(9)], (at.SECOND, at.BACK_THIRD), [32 * r for r in range(at.DEEP)],
    vectors=2, start="add",
)  # fmt: skip
_THIRD_ROWS = at.padded(320)


@inner
def _add_up(source, stride, rows, width, result):  # type: ignore[no-untyped-def]
    """Add rows to the result."""
    for i in range(0, width, WIDTH):
        lanes = load(result, i)
        for row in range(rows):
            lanes = lanes + load(source, row * stride + i)
        store(result, i, lanes)


@inner
def _back_normalise(gradient, stride, source, source_stride, width, gain, slope, sums, result, result_stride, samples):  # type: ignore[no-untyped-def]
    """Go back through a normalisation and the leaky unit before it, whose value is the source.

    `sums` holds the gradients of the layer's bias, the gain and the shift; the layer's own gradient is the result.
    """
    share = float32(1) / float32(width)
    for sample in range(samples):
        given, row, out = (
            ahead(gradient, sample * stride),
            ahead(source, sample * source_stride),
            ahead(result, sample * result_stride),
        )
        mean, scale = row[width + 8], row[width + 9]
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
def _back_dense(a, capacity, sample, w, g, s, samples):  # type: ignore[no-untyped-def]
    """Go back from the heads to the third convolution; `s` holds the gradients of activations of a block."""
    heads, wide, before = s, ahead(s, at.BLOCK * at.S_WIDE), ahead(s, at.BLOCK * at.S_BEFORE)
    join, middle = ahead(s, at.BLOCK * at.S_JOIN), ahead(s, at.BLOCK * at.S_MIDDLE)
    middle_before, small = ahead(s, at.BLOCK * at.S_MIDDLE2), ahead(s, at.BLOCK * at.S_SMALL)
    leak, none = float32(0.01), float32(1)

    _weight_heads(ahead(a, capacity * at.AT_T2N + sample * at.WIDE), heads, ahead(g, at.G_HEAD), samples)
    _add_up(heads, 16, samples, 16, ahead(g, at.G_HEAD_BIAS))
    _back_heads(heads, ahead(w, at.HEAD_BACK), wide, w, samples)
    source = ahead(a, capacity * at.AT_T2 + sample * at.WIDE)
    _back_normalise(
        wide, at.WIDE, source, at.WIDE, 256, ahead(w, at.T2_GAIN), leak, ahead(g, at.G_T2_BIAS), before, at.WIDE, samples
    )
    _weight_t2(ahead(a, capacity * at.AT_T1N + sample * at.WIDE), before, ahead(g, at.G_T2), samples)
    _back_t2(before, ahead(w, at.T2_BACK), wide, w, samples)
    source = ahead(a, capacity * at.AT_T1 + sample * at.WIDE)
    _back_normalise(
        wide, at.WIDE, source, at.WIDE, 256, ahead(w, at.T1_GAIN), leak, ahead(g, at.G_T1_BIAS), before, at.WIDE, samples
    )
    _weight_t1(ahead(a, capacity * at.AT_JOIN + sample * at.JOIN), before, ahead(g, at.G_T1), samples)
    _back_t1(before, ahead(w, at.T1_BACK), join, w, samples)

    source = ahead(a, capacity * at.AT_D2 + sample * at.SMALL)
    gain, sums = ahead(w, at.D2_GAIN), ahead(g, at.G_D2_BIAS)
    _back_normalise(ahead(join, 128), at.JOIN, source, at.SMALL, 64, gain, leak, sums, small, at.SMALL, samples)
    _weight_d2(ahead(a, capacity * at.AT_D1N + sample * at.MIDDLE), small, ahead(g, at.G_D2), samples)
    _back_d2(small, ahead(w, at.D2_BACK), middle, w, samples)
    source = ahead(a, capacity * at.AT_D1 + sample * at.MIDDLE)
    gain, sums = ahead(w, at.D1_GAIN), ahead(g, at.G_D1_BIAS)
    _back_normalise(middle, at.MIDDLE, source, at.MIDDLE, 128, gain, leak, sums, middle_before, at.MIDDLE, samples)
    _weight_d1(ahead(a, capacity * at.AT_DYNAMIC + sample * at.SMALL), middle_before, ahead(g, at.G_D1), samples)

    source, third = ahead(a, capacity * at.AT_LIDAR + sample * at.MIDDLE), ahead(a, capacity * at.AT_THIRD + sample * at.THIRD)
    gain, sums = ahead(w, at.LIN_GAIN), ahead(g, at.G_LIN_BIAS)
    _back_normalise(join, at.JOIN, source, at.MIDDLE, 128, gain, none, sums, middle, at.MIDDLE, samples)
    _weight_lidar(third, middle, ahead(g, at.G_LIN), samples)
    _back_lidar(middle, ahead(w, at.LIN_BACK), ahead(s, at.BLOCK * at.S_THIRD + 32), third, samples)


@inner
def _back_images(first, second, w, second_back, third_back, first_back, samples, circular):  # type: ignore[no-untyped-def]
    """Go back from the third to the first convolution."""
    for sample in range(samples):
        x, y = ahead(first, sample * at.FIRST), ahead(second, sample * at.SECOND)
        back, out = ahead(third_back, sample * at.BACK_THIRD), ahead(second_back, sample * at.BACK_SECOND)
        if circular:
            wrap(back, 9, 1, 32)
        for half in range(2):
            start, here = ahead(back, 16 * half), ahead(out, 32 * half)
            kernel = ahead(w, at.C3_HIGH if half else at.C3_LOW)
            columns = 16 if half else 32
            _back_third_even(start, kernel, here, ahead(y, 128 + 32 * half), columns // 2)
            _back_third_odd(start, ahead(kernel, columns * 96), here, ahead(y, 192 + 32 * half), columns // 2)
        if circular:
            wrap(out, 18, 1, 64)
        for half in range(2):
            there = ahead(first_back, sample * 576 + 288 * half)
            _back_second(ahead(out, 576 * half), ahead(w, at.C2_BACK), there, ahead(x, 32 + 288 * half), 64)


@inner
def _weights_of_images(image, first, second, g, second_back, third_back, first_back, samples):  # type: ignore[no-untyped-def]
    """Add the gradients of the weights of the convolutions."""
    for part in range(2):
        _weight_first(ahead(image, 12 * part), first_back, ahead(g, at.G_C1 + 12 * 32 * part), image, samples)
        for tap in range(5):
            result = ahead(g, at.G_C2 + (5 * part + tap) * 12 * 32)
            _weight_second(ahead(first, 16 * tap + 4 * part), ahead(second_back, 64 + 32 * part), result, image, samples)
    for row in range(0, _THIRD_ROWS, at.DEEP):
        _weight_third(ahead(second, row), ahead(third_back, 32), ahead(g, at.G_C3 + row * 32), image, samples)
    for sample in range(samples):
        _add_up(ahead(first_back, sample * 576), 32, 18, 32, ahead(g, at.G_C1_BIAS))
        _add_up(ahead(second_back, sample * at.BACK_SECOND + 64), 64, 18, 64, ahead(g, at.G_C2_BIAS))
        _add_up(ahead(third_back, sample * at.BACK_THIRD + 32), 32, 9, 32, ahead(g, at.G_C3_BIAS))


@entry
def backward(heads, begin, end, weights, activations, capacity, circular, scratch, gradients):  # type: ignore[no-untyped-def]
    """Write the gradients of the weights for the samples from `begin` to `end`; all but numbers are addresses."""
    given, w, a, s, g = (
        floats_at(heads), floats_at(weights), floats_at(activations), floats_at(scratch), floats_at(gradients)
    )  # fmt: skip
    for i in range(0, at.GRADIENTS, WIDTH):
        store(g, i, splat(float32(0)))
    second_back = ahead(s, at.BLOCK * at.S_SCRATCH)
    first_back = ahead(second_back, at.IMAGES * at.BACK_SECOND)
    for block in range(begin, end, at.BLOCK):
        known = min(end - block, at.BLOCK)
        samples = (known + at.GROUP - 1) // at.GROUP * at.GROUP
        for i in range(samples):
            for head in range(at.HEADS):
                s[i * 16 + head] = given[(block + i) * at.HEADS + head] if i < known else float32(0)
        _back_dense(a, capacity, block, w, g, s, samples)
        for start in range(0, samples, at.IMAGES):
            number, sample = min(at.IMAGES, samples - start), block + start
            image = ahead(a, capacity * at.AT_IMAGE + sample * at.IMAGE)
            first = ahead(a, capacity * at.AT_FIRST + sample * at.FIRST)
            second = ahead(a, capacity * at.AT_SECOND + sample * at.SECOND)
            third_back = ahead(s, at.BLOCK * at.S_THIRD + start * at.BACK_THIRD)
            _back_images(first, second, w, second_back, third_back, first_back, number, circular)
            _weights_of_images(image, first, second, g, second_back, third_back, first_back, number)
