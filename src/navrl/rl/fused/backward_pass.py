"""The fused network backward: gradients of all weights from those of the heads, block by block.

Compiled functions are made for one layout of the observation, whose sizes are constants in them.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from navrl.rl.fused import buffer_layout as common
from navrl.rl.fused.forward_pass import rows_finder, window_finder, wrap
from navrl.rl.fused.gemm import convolution, outer_product, product, tile
from navrl.simd import WIDTH, ahead, entry_for, floats_at, inner, load, splat, store, total, where

HEADS, PANEL, GROUP = common.HEADS, common.PANEL, common.GROUP
STATISTICS, JOINED = common.STATISTICS, common.JOINED
LEAK, NO_LEAK = float32(0.01), float32(1)


@inner
def _add_up(source, stride, rows, width, result):
    """Add rows to the result."""
    for i in range(0, width, WIDTH):
        lanes = load(result, i)
        for row in range(rows):
            lanes = lanes + load(source, row * stride + i)
        store(result, i, lanes)


@inner
def _fold(image, number, size, circular):
    """Add the gradient of two padded positions on either side to the image, and clear them."""
    for i in range(0, 2 * size, WIDTH):
        if circular:
            last, low = number * size + i, load(image, i)
            store(image, last, load(image, last) + low)
            first, high = 2 * size + i, load(image, (2 + number) * size + i)
            store(image, first, load(image, first) + high)
        store(image, i, splat(float32(0)))
        store(image, (2 + number) * size + i, splat(float32(0)))


@inner
def _back_normalise(gradient, source, stride, width, gain, slope, sums, result, samples):
    """Go back through a normalisation and the leaky unit before it, whose output is the source.

    The result is the gradient of the layer. Its sum, and those of gain and shift, are added to
    `sums`.
    """
    share = float32(1) / float32(width)
    for sample in range(samples):
        given = ahead(gradient, sample * stride)
        row = ahead(source, sample * stride)
        out = ahead(result, sample * stride)
        mean, scale = row[width + STATISTICS], row[width + STATISTICS + 1]
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


def _make_back_trunk(at: Any, rows_at: Any, back: Any, weights: Any) -> Any:
    """Return a compiled function: from the heads back to the outputs of both encoders."""
    JOIN, TRUNK_1, TRUNK_2 = common.JOIN, common.TRUNK_1, common.TRUNK_2
    NORMAL_1, NORMAL_2 = common.TRUNK_1_NORMAL, common.TRUNK_2_NORMAL
    heads_at = at.PARTS + common.PART_HEADS

    @inner
    def back_trunk(a, capacity, sample, w, g, s, samples):
        heads, wide, before = ahead(s, heads_at), ahead(s, at.WIDE), ahead(s, at.BEFORE)
        normal = rows_at(a, capacity, sample, NORMAL_2)
        weights(normal, heads, ahead(g, at.G_HEAD), 256, PANEL, samples)
        _add_up(heads, at.ROW, samples, PANEL, ahead(g, at.G_HEAD_BIAS))
        back(heads, ahead(w, at.HEAD_BACK), wide, w, 8, 256, samples)

        source, gain = rows_at(a, capacity, sample, TRUNK_2), ahead(w, at.T2_BIAS + 256)
        sums = ahead(g, at.G_T2_BIAS)
        _back_normalise(wide, source, at.ROW, 256, gain, LEAK, sums, before, samples)
        normal = rows_at(a, capacity, sample, NORMAL_1)
        weights(normal, before, ahead(g, at.G_T2), 256, 256, samples)
        back(before, ahead(w, at.T2_BACK), wide, w, 256, 256, samples)

        source, gain = rows_at(a, capacity, sample, TRUNK_1), ahead(w, at.T1_BIAS + 256)
        sums = ahead(g, at.G_T1_BIAS)
        _back_normalise(wide, source, at.ROW, 256, gain, LEAK, sums, before, samples)
        join = rows_at(a, capacity, sample, JOIN)
        weights(join, before, ahead(g, at.G_T1), JOINED, 256, samples)
        back(before, ahead(w, at.T1_BACK), ahead(s, at.BACK_JOIN), w, 256, 192, samples)

    return back_trunk


def _make_back_encoders(at: Any, rows_at: Any, back: Any, weights: Any) -> Any:
    """Return a compiled function: from the encoders' outputs back to the third convolution."""
    back_flat = product(at.ROW, at.BACK_THIRD, finish="slope", asides=at.THIRD_ROW)
    same = at.THIRD_ROW == at.ROW
    flat_weights = weights if same else outer_product(at.THIRD_ROW, at.ROW, common.DEEP)
    ENCODERS, MIXED, ENCODER = common.ENCODERS, common.MIXED, common.ENCODER_DYNAMIC
    SECOND, INPUT = common.MIXED_SECOND, common.MIXED_INPUT
    small_at, middle_at = at.PARTS + common.PART_SMALL, at.PARTS + common.PART_MIDDLE

    @inner
    def back_encoders(a, capacity, sample, w, g, s, samples):
        join, mixed = ahead(s, at.BACK_JOIN), rows_at(a, capacity, sample, MIXED)
        small, middle, other = ahead(s, small_at), ahead(s, middle_at), ahead(s, at.OTHER)
        encoders = rows_at(a, capacity, sample, ENCODERS)

        source, gain = ahead(mixed, SECOND), ahead(w, at.D2_BIAS + 64)
        sums = ahead(g, at.G_D2_BIAS)
        _back_normalise(ahead(join, 128), source, at.ROW, 64, gain, LEAK, sums, small, samples)
        weights(mixed, small, ahead(g, at.G_D2), 128, 64, samples)
        back(small, ahead(w, at.D2_BACK), middle, w, 64, 128, samples)
        source, gain = ahead(encoders, ENCODER), ahead(w, at.D1_BIAS + 128)
        sums = ahead(g, at.G_D1_BIAS)
        _back_normalise(middle, source, at.ROW, 128, gain, LEAK, sums, other, samples)
        weights(ahead(mixed, INPUT), other, ahead(g, at.G_D1), at.DYNAMIC, 128, samples)

        third = ahead(a, capacity * at.AT_THIRD + sample * at.THIRD_ROW)
        gain, sums = ahead(w, at.LIN_BIAS + 128), ahead(g, at.G_LIN_BIAS)
        _back_normalise(join, encoders, at.ROW, 128, gain, NO_LEAK, sums, middle, samples)
        flat_weights(third, middle, ahead(g, at.G_LIN), at.FLAT, 128, samples)
        result = ahead(s, at.THIRD_MARGIN * at.THIRD_STRIDE)
        back_flat(middle, ahead(w, at.LIN_BACK), result, third, 128, at.FLAT, samples)

    return back_encoders


def _make_back_third(at: Any) -> Any:
    """Return a compiled function: from the third convolution of an image back to the second.

    With stride two, an azimuth was read by three positions through taps 4, 2, 0, or by two through
    taps 3, 1.
    """
    stride, step = at.THIRD_STRIDE, 2 * at.SECOND_STRIDE
    even_tiles, even, evens = at.EVEN_TILES
    odd_tiles, odd, odds = at.ODD_TILES
    taps = [(0, 2), (stride, 2), (2 * stride, 2)]
    even_tile = convolution(even, stride, taps, 2, step, step, bias=False, finish="slope")
    odd_tile = convolution(odd, stride, taps[1:], 2, step, step, bias=False, finish="slope")
    lowest = -2 if at.FOLD_SECOND else 0
    out_first = (lowest + at.SECOND_MARGIN) * at.SECOND_STRIDE
    in_first = (lowest + 2) * at.SECOND_STRIDE

    @inner
    def back_third(back, out, y, w):
        for pair in range(at.B3):
            last = pair == at.B3 - 1
            kernel, columns = ahead(w, at.C3_HIGH if last else at.C3_LOW), 16 if last else 32
            start, there = ahead(back, 16 * pair), ahead(out, out_first + 32 * pair)
            here = ahead(y, in_first + 32 * pair)
            for number in range(even_tiles):
                place = min(even * number, evens - even)
                even_tile(
                    ahead(start, place * stride),
                    kernel,
                    ahead(there, place * step),
                    ahead(here, place * step),
                    columns // 2,
                )
            for number in range(odd_tiles):
                place = min(odd * number, odds - odd)
                odd_tile(
                    ahead(start, place * stride),
                    ahead(kernel, columns * 96),
                    ahead(there, place * step + at.SECOND_STRIDE),
                    ahead(here, place * step + at.SECOND_STRIDE),
                    columns // 2,
                )

    return back_third


def _make_back_second(at: Any) -> Any:
    """Return a compiled function: from the second convolution of an image back to the first.

    Azimuths of both parities at once: their 4 beams of 4 channels are only one vector each.
    """
    window_of, groups, window = window_finder(at.BANDS[3]), at.BANDS[3][0], at.BANDS[3][2]
    stride, step = at.SECOND_STRIDE, 2 * at.FIRST_STRIDE
    tiles, pairs, number_of = at.BACK_PAIR_TILES
    taps = [(stride, 2), (2 * stride, 2), (0, 1)]
    options: dict[str, Any] = {"bias": False, "finish": "slope", "apart": at.FIRST_STRIDE}
    pair_tile = convolution(pairs, stride, taps, 1, step, step, **options)
    before = 0 if at.FOLD_FIRST else (at.SECOND_MARGIN - 1) * stride
    in_first = 0 if at.FOLD_FIRST else step

    @inner
    def back_second(out, there, x, w):
        for number in range(tiles):
            place = min(pairs * number, number_of - pairs)
            for group in range(groups):
                kind, beam = window_of(group)
                pair_tile(
                    ahead(out, before + place * stride + 16 * beam),
                    ahead(w, at.C2_BACK + kind * window * 16 * 5 * 16),
                    ahead(there, place * step + WIDTH * group),
                    ahead(x, in_first + place * step + WIDTH * group),
                    16 * window,
                )

    return back_second


def _make_back_images(at: Any) -> Any:
    """Return a compiled function: from the third convolution back to the first."""
    back_third, back_second = _make_back_third(at), _make_back_second(at)

    @inner
    def back_images(first, second, w, third_back, second_back, first_back, samples, circular):
        for sample in range(samples):
            x, y = ahead(first, sample * at.FIRST), ahead(second, sample * at.SECOND)
            back = ahead(third_back, sample * at.BACK_THIRD)
            out = ahead(second_back, sample * at.BACK_SECOND)
            there = ahead(first_back, sample * at.BACK_FIRST)
            if circular and not at.FOLD_SECOND:
                wrap(back, at.P3, 1, at.THIRD_STRIDE)
            back_third(back, out, y, w)
            if at.FOLD_SECOND:
                _fold(out, at.P2, at.SECOND_STRIDE, circular)
            if circular and not at.FOLD_FIRST:
                edge = ahead(out, (at.SECOND_MARGIN - 1) * at.SECOND_STRIDE)
                wrap(edge, at.P2, 1, at.SECOND_STRIDE)
            back_second(out, there, x, w)
            if at.FOLD_FIRST:
                _fold(there, at.AZIMUTHS, at.FIRST_STRIDE, circular)

    return back_images


def _weight_tile(
    rows: Any, steps: tuple[int, int], chunk: int, whole: bool, sample: tuple[int, int], apart: int
) -> Any:
    """Return a tile that adds a convolution's weight gradient, `chunk` positions in each round.

    A round is a whole sample if it has all its positions.
    """
    return tile(
        rows,
        [(steps[0] * i, steps[1] * i, 2) for i in range(chunk)],
        sample if whole else (steps[0] * chunk, steps[1] * chunk),
        [32 * row for row in range(len(rows))],
        vectors=2,
        start="add",
        apart=(apart, WIDTH),
    )


def _over_samples(add: Any, whole: bool, rounds: int, sample: tuple[int, int]) -> Any:
    """Return a compiled function that adds the gradient of all samples with a tile."""
    a_step, g_step = sample

    @inner
    def add_all(a, g, result, samples):
        if whole:
            add(a, g, result, a, samples)
        else:
            for number in range(samples):
                add(ahead(a, number * a_step), ahead(g, number * g_step), result, a, rounds)

    return add_all


def _weight_adder(
    rows: Any,
    steps: tuple[int, int],
    positions: int,
    chunk: int,
    sample: tuple[int, int],
    apart: int = WIDTH,
) -> Any:
    whole = chunk == positions
    add = _weight_tile(rows, steps, chunk, whole, sample, apart)
    return _over_samples(add, whole, positions // chunk, sample)


def _make_weights_first(at: Any) -> Any:
    """Return a compiled function that adds the gradient of the first convolution's weights."""
    window_of, groups, window = window_finder(at.BANDS[0]), at.BANDS[0][0], at.BANDS[0][2]
    rows, pairs = len(at.DEPTH_FIRST), (at.AZIMUTHS + 1) // 2
    steps, sample = (2 * at.BEAMS, 2 * at.FIRST_STRIDE), (at.IMAGE, at.BACK_FIRST)
    add = _weight_adder(at.DEPTH_FIRST, steps, pairs, at.CHUNKS[0], sample, at.FIRST_STRIDE)
    parts = 6 * window // rows

    @inner
    def weights_first(image, back, g, samples):
        for group in range(groups):
            kind, beam = window_of(group)
            for part in range(parts):
                result = ahead(g, at.G_C1 + (kind * 6 * window + part * rows) * 32)
                here = ahead(image, part * at.DEPTH_STEP + beam)
                add(here, ahead(back, WIDTH * group), result, samples)
        for sample in range(samples):
            here = ahead(back, sample * at.BACK_FIRST)
            width = 2 * at.FIRST_STRIDE
            _add_up(here, width, pairs, width, ahead(g, at.G_C1_BIAS))

    return weights_first


def _make_weights_second(at: Any) -> Any:
    """Return a compiled function that adds the gradient of the second convolution's weights."""
    window_of, pairs, window = window_finder(at.BANDS[1]), at.BANDS[1][0], at.BANDS[1][2]
    rows, depth = at.ROWS_SECOND, 4 * window
    steps, sample = (2 * at.FIRST_STRIDE, at.SECOND_STRIDE), (at.FIRST, at.BACK_SECOND)
    add = _weight_adder(range(rows), steps, at.P2, at.CHUNKS[1], sample)
    margin = at.SECOND_MARGIN * at.SECOND_STRIDE

    @inner
    def weights_second(first, back, g, samples):
        for pair in range(pairs):
            kind, beam = window_of(pair)
            there = ahead(back, margin + 32 * pair)
            for tap in range(5):
                for row in range(0, depth, rows):
                    result = ahead(g, at.G_C2 + ((kind * 5 + tap) * depth + row) * 32)
                    here = ahead(first, at.FIRST_STRIDE * tap + 4 * beam + row)
                    add(here, there, result, samples)
        for sample in range(samples):
            here = ahead(back, sample * at.BACK_SECOND + margin)
            _add_up(here, at.SECOND_STRIDE, at.P2, at.SECOND_STRIDE, ahead(g, at.G_C2_BIAS))

    return weights_second


def _make_weights_third(at: Any) -> Any:
    """Return a compiled function that adds the gradient of the third convolution's weights."""
    window_of, pairs = window_finder(at.BANDS[2]), at.BANDS[2][0]
    rows = at.ROWS_THIRD
    steps, sample = (2 * at.SECOND_STRIDE, at.THIRD_STRIDE), (at.SECOND, at.BACK_THIRD)
    add = _weight_adder(range(rows), steps, at.P3, at.CHUNKS[2], sample)
    margin = at.THIRD_MARGIN * at.THIRD_STRIDE

    @inner
    def weights_third(second, back, g, samples):
        for pair in range(pairs):
            kind, beam = window_of(pair)
            there = ahead(back, margin + 32 * pair)
            for run in range(at.RUNS):
                for row in range(0, at.RUN, rows):
                    result = ahead(g, at.G_C3 + ((kind * at.RUNS + run) * at.RUN + row) * 32)
                    here = ahead(second, run * at.SECOND_STRIDE + 16 * beam + row)
                    add(here, there, result, samples)
        for sample in range(samples):
            here = ahead(back, sample * at.BACK_THIRD + margin)
            _add_up(here, at.THIRD_STRIDE, at.P3, at.THIRD_STRIDE, ahead(g, at.G_C3_BIAS))

    return weights_third


def _make_back_block(at: Any) -> Any:
    """Return a compiled function: the backward pass of a block."""
    rows_at, back = rows_finder(at), product(at.ROW, at.ROW)
    weights = outer_product(at.ROW, at.ROW, common.DEEP)
    back_trunk = _make_back_trunk(at, rows_at, back, weights)
    back_encoders = _make_back_encoders(at, rows_at, back, weights)
    back_images = _make_back_images(at)
    weights_first, weights_second = _make_weights_first(at), _make_weights_second(at)
    weights_third = _make_weights_third(at)
    before = 2 * at.FIRST_STRIDE if at.FOLD_FIRST else 0  # padded azimuths

    @inner
    def back_block(a, capacity, block, w, g, s, samples, circular):
        back_trunk(a, capacity, block, w, g, s, samples)
        back_encoders(a, capacity, block, w, g, s, samples)
        second_back, first_back = ahead(s, at.AT_BACK_SECOND), ahead(s, at.AT_BACK_FIRST)
        for start in range(0, samples, at.IMAGES):
            number, sample = min(at.IMAGES, samples - start), block + start
            first = ahead(a, capacity * at.AT_FIRST + sample * at.FIRST)
            second = ahead(a, capacity * at.AT_SECOND + sample * at.SECOND)
            third_back = ahead(s, start * at.BACK_THIRD)
            back_images(first, second, w, third_back, second_back, first_back, number, circular)
            weights_first(ahead(a, sample * at.IMAGE), ahead(first_back, before), g, number)
            weights_second(first, second_back, g, number)
            weights_third(second, third_back, g, number)

    return back_block


def make_backward(at: Any, variant: str) -> Any:
    """Return the compiled backward pass for a layout, which `variant` names."""
    back_block = _make_back_block(at)
    heads_at = at.PARTS + common.PART_HEADS

    @entry_for(variant)
    def backward(heads, begin, end, weights, activations, capacity, circular, scratch, gradients):
        """Write the weights' gradients for samples `begin` to `end`; buffers are addresses."""
        given, w, a = floats_at(heads), floats_at(weights), floats_at(activations)
        s, g = floats_at(scratch), floats_at(gradients)
        for i in range(0, at.GRADIENTS, WIDTH):
            store(g, i, splat(float32(0)))
        parts = ahead(s, heads_at)
        for block in range(begin, end, at.BLOCK):
            known = min(end - block, at.BLOCK)
            samples = (known + GROUP - 1) // GROUP * GROUP
            for i in range(samples):
                for head in range(HEADS):
                    parts[i * at.ROW + head] = (
                        given[(block + i) * HEADS + head] if i < known else float32(0)
                    )
            back_block(a, capacity, block, w, g, s, samples, circular)

    return backward
