"""Matrix products for numba kernels: a tile of the result stays in registers while the products are
summed.

`tile` makes a function for one shape of tile, with all strides fixed: every address in its loop is
a pointer plus a constant. Which element of A belongs to which row and step is free, so the rows may
overlap: a convolution over an image with its padding in place is a product of overlapping rows, and
nothing is copied together first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from navrl.simd import FLOATS, WIDTH, ahead, inner, swap_runs

_FLOAT = ir.FloatType()
_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_INTEGERS = ir.VectorType(ir.IntType(32), WIDTH)
# a product and a sum become one instruction; sums keep their order, so bits do not depend on the
# compiler
_FUSED = ("contract",)


def _number(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * WIDTH)


def _whole(value: int) -> ir.Constant:
    return ir.Constant(_INTEGERS, [value] * WIDTH)


def _address(builder: Any, pointer: Any, offset: int) -> Any:
    return builder.gep(pointer, [ir.Constant(_WORD, offset)], inbounds=True) if offset else pointer


def _load(builder: Any, pointer: Any, offset: int) -> Any:
    value = builder.load(builder.bitcast(_address(builder, pointer, offset), _VECTOR.as_pointer()))
    value.align = 4
    return value


def _store(builder: Any, pointer: Any, offset: int, value: Any) -> None:
    builder.store(
        value, builder.bitcast(_address(builder, pointer, offset), _VECTOR.as_pointer())
    ).align = 4


def _broadcast(builder: Any, pointer: Any, offset: int) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    value = builder.load(_address(builder, pointer, offset))
    return builder.shuffle_vector(
        builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0)),
        undefined,
        _whole(0),
    )


def _extreme(builder: Any, which: str, a: Any, b: Any) -> Any:
    """Emit the lesser or the greater of two; b where either is NaN.

    Flags of its own: without any, numba adds those of the function around it, which allow to forget
    about NaN.
    """
    return builder.select(builder.fcmp_ordered(which, a, b, flags=_FUSED), a, b)


# (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, highest power first: the smallest largest error of e^r -
# 1, 1.3e-8 of it.
_EXP_SERIES = (0.00139465505, 0.00836664416, 0.0416662807, 0.166665425, 0.500000006)


def _exp_minus_one(builder: Any, value: Any) -> Any:
    """Emit exp(x) - 1 for lanes without positive numbers, to within 1e-7 of the result.

    With x = n ln 2 + r, |r| <= ln 2 / 2, the result is 2^n (e^r - 1) + (2^n - 1), so that nothing cancels near zero.
    """  # noqa: E501
    x = builder.select(builder.fcmp_ordered("<", value, _number(-87.0)), _number(-87.0), value)
    scaled = builder.fmul(x, _number(1.4426950408889634), flags=_FUSED)
    # towards zero: the nearest
    whole = builder.fptosi(builder.fsub(scaled, _number(0.5), flags=_FUSED), _INTEGERS)
    nearest = builder.sitofp(whole, _VECTOR)
    r = builder.fsub(
        x, builder.fmul(nearest, _number(0.6931471805599453), flags=_FUSED), flags=_FUSED
    )
    series = _number(_EXP_SERIES[0])
    for coefficient in _EXP_SERIES[1:]:
        series = builder.fadd(
            builder.fmul(series, r, flags=_FUSED), _number(coefficient), flags=_FUSED
        )
    small = builder.fadd(builder.fmul(builder.fmul(r, r), series, flags=_FUSED), r, flags=_FUSED)
    exponent = builder.shl(whole, _whole(23))
    power = builder.bitcast(builder.add(exponent, _whole(0x3F800000)), _VECTOR)
    return builder.fadd(
        builder.fmul(small, power, flags=_FUSED), builder.fsub(power, _number(1.0)), flags=_FUSED
    )


def _elu(builder: Any, value: Any) -> Any:
    zero = _number(0.0)
    negative = _exp_minus_one(builder, _extreme(builder, "<", value, zero))
    # NaN stays NaN
    return builder.select(builder.fcmp_ordered("<=", value, zero, flags=_FUSED), negative, value)


def _leaky(builder: Any, value: Any) -> Any:
    return _extreme(builder, ">", value, builder.fmul(value, _number(0.01)))


def _times_elu_slope(builder: Any, value: Any, activated: Any) -> Any:
    slope = builder.fadd(_extreme(builder, "<", _number(0.0), activated), _number(1.0))
    return builder.fmul(value, slope)


class _Sums:
    """Emits the parts of one tile: what the sums begin with, one round of products, and what is
    done with the sums.
    """

    def __init__(
        self,
        rows: Sequence[int],
        steps: Sequence[tuple[int, int, int]],
        outputs: Sequence[int],
        vectors: int,
    ) -> None:
        self.rows, self.steps, self.outputs, self.vectors = rows, steps, outputs, vectors
        self.places = [(row, vector) for row in range(len(rows)) for vector in range(vectors)]

    def begin(self, builder: Any, start: str, result: Any, aside: Any) -> list[Any]:
        if start == "zero":
            return [_number(0.0)] * len(self.places)
        if start == "bias":
            bias = [_load(builder, aside, vector * WIDTH) for vector in range(self.vectors)]
            return [bias[vector] for _, vector in self.places]
        return [
            _load(builder, result, self.outputs[row] + vector * WIDTH)
            for row, vector in self.places
        ]

    def round(self, builder: Any, sums: list[Any], a: Any, b: Any) -> list[Any]:
        sums = list(sums)
        for offset, column, used in self.steps:
            vectors = [_load(builder, b, column + vector * WIDTH) for vector in range(used)]
            for row, start in enumerate(self.rows):
                factor = _broadcast(builder, a, start + offset)
                for vector in range(used):
                    place = row * self.vectors + vector
                    product = builder.fmul(factor, vectors[vector], flags=_FUSED)
                    sums[place] = builder.fadd(sums[place], product, flags=_FUSED)
        return sums

    def end(
        self,
        builder: Any,
        finish: str,
        sums: list[Any],
        result: Any,
        aside: Any,
        asides: Sequence[int],
    ) -> None:
        for (row, vector), value in zip(self.places, sums, strict=True):
            if finish == "elu":
                value = _elu(builder, value)
            elif finish == "leaky":
                value = _leaky(builder, value)
            elif finish == "slope":
                value = _times_elu_slope(
                    builder, value, _load(builder, aside, asides[row] + vector * WIDTH)
                )
            _store(builder, result, self.outputs[row] + vector * WIDTH, value)


def tile(
    rows: Sequence[int],
    steps: Sequence[tuple[int, int, int]],
    advance: tuple[int, int],
    outputs: Sequence[int],
    *,
    vectors: int = 1,
    start: str = "zero",
    finish: str = "store",
    asides: Sequence[int] = (),
) -> Any:
    """Return a compiled function `(a, b, result, aside, rounds)` that sums products into a tile of
    the result.

    Row r of the result is `vectors` runs of WIDTH floats, at `outputs[r]`. A round adds, for each
    (i, j, n) of `steps`, `a[rows[r] + i]` times the vectors at `b[j]` to the first n vectors; then
    a and b move on by `advance`. There is at least one round. Sums begin with `start`: "zero",
    "bias" (the vectors at `aside`) or "add" (what the result holds), and are stored by
    `finish`: "store", "elu", "leaky", or "slope" (times the slope of the ELU whose value stands at
        `aside[asides[r]]`).
    """
    sums = _Sums(rows, steps, outputs, vectors)

    @intrinsic
    def function(typing_context, a, b, result, aside, rounds):
        def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
            a, b, result, aside, rounds = arguments
            before = builder.block
            values = sums.begin(builder, start, result, aside)
            loop, after = builder.append_basic_block("tile"), builder.append_basic_block("tiled")
            builder.branch(loop)
            builder.position_at_end(loop)
            firsts = [rounds, a, b, *values]
            states = [builder.phi(first.type) for first in firsts]
            for state, first in zip(states, firsts, strict=True):
                state.add_incoming(first, before)
            values = sums.round(builder, states[3:], states[1], states[2])
            left = builder.sub(states[0], ir.Constant(_WORD, 1))
            nexts = [
                left,
                *(_address(builder, p, by) for p, by in zip(states[1:3], advance, strict=True)),
                *values,
            ]
            for state, following in zip(states, nexts, strict=True):
                state.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed(">", left, ir.Constant(_WORD, 0)), loop, after)
            builder.position_at_end(after)
            sums.end(builder, finish, values, result, aside, asides)
            return context.get_dummy_value()

        return types.void(FLOATS, FLOATS, FLOATS, FLOATS, types.intp), generate

    return function


def convolution(
    row: int,
    taps: Sequence[tuple[int, int]],
    unroll: int,
    outputs: tuple[int, int],
    asides: int = 0,
    *,
    bias: bool,
    finish: str,
) -> Any:
    """Return a tile of nine positions, `row` apart, and two vectors, in rounds over `unroll`
    columns of a.

    A tap is (where its column stands from the position on, how many of the vectors it adds to); b
    holds for each column, for each tap in turn, those vectors. Positions of the result are
    `outputs[0]` apart; of what stands aside, `asides`.
    """
    steps, column = [], 0
    for k in range(unroll):
        for offset, used in taps:
            steps.append((offset + k, column, used))
            column += used * WIDTH
    return tile(
        [row * i for i in range(9)],
        steps,
        (unroll, column),
        [outputs[1] + outputs[0] * i for i in range(9)],
        vectors=2,
        start="bias" if bias else "zero",
        finish=finish,
        asides=[asides * i for i in range(9)],
    )


def product(
    stride: int, outputs: int, *, bias: bool = False, finish: str = "store", asides: int = 0
) -> Any:
    """Return a compiled function `(a, b, result, aside, depth, width, samples)`: a times b, a row
    for each sample.

    `a` has rows of `depth` numbers, a multiple of 4; `b` is panels of [depth, 32]; the result has
    rows of `width`, a multiple of 32; the samples are a multiple of 12. Rows begin `stride`, and
    `outputs`, apart. `aside` is the bias, or for "slope" a matrix as the result, whose rows begin
    `asides` apart.
    """
    rows, panel, unroll = 12, 2 * WIDTH, 4
    multiply = tile(
        [stride * row for row in range(rows)],
        [(k, panel * k, 2) for k in range(unroll)],
        (unroll, panel * unroll),
        [outputs * row for row in range(rows)],
        vectors=2,
        start="bias" if bias else "zero",
        finish=finish,
        asides=[asides * row for row in range(rows)],
    )

    @inner
    def function(a, b, result, aside, depth, width, samples):
        for column in range(0, width, panel):
            for row in range(0, samples, rows):
                multiply(
                    ahead(a, row * stride),
                    ahead(b, column * depth),
                    ahead(result, row * outputs + column),
                    ahead(aside, row * asides + column),
                    depth // unroll,
                )

    return function


def outer_product(stride: int, gradient: int, rows: int) -> Any:
    """Return a compiled function `(a, g, result, inputs, outputs, samples)`: adds a transposed
    times g to the result.

    `a` has rows of `inputs` numbers, g of `outputs`, a multiple of 32, for each sample, a multiple
    of 4; they begin `stride`, and `gradient`, apart. The result is panels of [inputs, 32], with the
    inputs rounded up to a multiple of `rows`: the columns of `a` up to there are read, and must be
    finite.
    """
    panel, unroll = 2 * WIDTH, 4
    multiply = tile(
        range(rows),
        [(stride * k, gradient * k, 2) for k in range(unroll)],
        (stride * unroll, gradient * unroll),
        [panel * row for row in range(rows)],
        vectors=2,
        start="add",
    )

    @inner
    def function(a, g, result, inputs, outputs, samples):
        depth = (inputs + rows - 1) // rows * rows
        for column in range(0, outputs, panel):
            for row in range(0, depth, rows):
                at = ahead(result, column * depth + row * panel)
                multiply(ahead(a, row), ahead(g, column), at, a, samples // unroll)

    return function


@intrinsic
def transpose(typing_context, source, stride, result, result_stride):
    """Write WIDTH rows of WIDTH floats as columns; the strides are from row to row."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        source, stride, result, result_stride = arguments
        numbers = [ir.Constant(_WORD, number) for number in range(WIDTH)]
        v = [
            _load(builder, builder.gep(source, [builder.mul(stride, number)], inbounds=True), 0)
            for number in numbers
        ]
        for size in (1, 2, 4, 8):
            for lane in range(WIDTH):
                if lane // size % 2 == 0:
                    v[lane], v[lane + size] = swap_runs(builder, v[lane], v[lane + size], size)
        for number, value in zip(numbers, v, strict=True):
            _store(
                builder,
                builder.gep(result, [builder.mul(result_stride, number)], inbounds=True),
                0,
                value,
            )
        return context.get_dummy_value()

    return types.void(FLOATS, types.intp, FLOATS, types.intp), generate
