"""Matrix products for numba kernels: a tile of the result stays in registers during the sums.

`tile` returns a function for one shape of tile with all strides fixed, so that every address in its
loop is a pointer plus a constant. Rows of A may overlap: a convolution over a padded image is a
product of overlapping rows, without an im2col copy.
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
# allows fused multiply-add; sums keep their order, so bits do not depend on the compiler
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
    """Emit the minimum or maximum of two; b where either is NaN.

    The flags are explicit, because numba would add the fast-math flags of the calling function,
    which assume that there is no NaN.
    """
    return builder.select(builder.fcmp_ordered(which, a, b, flags=_FUSED), a, b)


# minimax polynomial of (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, highest power first; the relative
# error of e^r - 1 is 1.3e-8
_EXP_SERIES = (0.00139465505, 0.00836664416, 0.0416662807, 0.166665425, 0.500000006)


def _exp_minus_one(builder: Any, value: Any) -> Any:
    """Emit exp(x) - 1 for lanes that are not positive, with a relative error below 1e-7.

    With x = n ln 2 + r and |r| <= ln 2 / 2 the result is 2^n (e^r - 1) + (2^n - 1), which does not
    cancel near zero.
    """
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
    """Emits the parts of one tile: the initial sums, one round of products, the final stores."""

    def __init__(
        self,
        rows: Sequence[int],
        steps: Sequence[tuple[int, int, int]],
        outputs: Sequence[int],
        vectors: int,
        apart: tuple[int, int],
    ) -> None:
        self.rows, self.steps, self.outputs, self.vectors = rows, steps, outputs, vectors
        self.b_apart, self.apart = apart
        self.places = [(row, vector) for row in range(len(rows)) for vector in range(vectors)]

    def begin(self, builder: Any, start: str, result: Any, aside: Any) -> list[Any]:
        if start == "zero":
            return [_number(0.0)] * len(self.places)
        if start == "bias":
            bias = [_load(builder, aside, vector * WIDTH) for vector in range(self.vectors)]
            return [bias[vector] for _, vector in self.places]
        return [
            _load(builder, result, self.outputs[row] + vector * self.apart)
            for row, vector in self.places
        ]

    def round(self, builder: Any, sums: list[Any], a: Any, b: Any) -> list[Any]:
        sums = list(sums)
        for offset, column, used in self.steps:
            vectors = [_load(builder, b, column + vector * self.b_apart) for vector in range(used)]
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
                    builder, value, _load(builder, aside, asides[row] + vector * self.apart)
                )
            _store(builder, result, self.outputs[row] + vector * self.apart, value)


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
    apart: tuple[int, int] = (WIDTH, WIDTH),
) -> Any:
    """Return a compiled function `(a, b, result, aside, rounds)` that computes a tile of a product.

    Row r of the result is some vectors of WIDTH floats. In each of one or more rounds it sums, for
    each (i, j, n) of `steps`, `a[rows[r] + i]` times the vectors at `b[j]`, into the first n.

    Args:
        rows: where each row starts in a.
        steps: see above.
        advance: floats that a and b advance by after a round.
        outputs: where each row starts in the result.
        vectors: of a row.
        start: what the sums start from: "zero", "bias" (the vectors at `aside`) or "add" (the
            result's old value).
        finish: what is stored: "store", "elu", "leaky", or "slope" (the sum times the slope of the
            ELU whose output is at `aside[asides[r]]`).
        asides: see `finish`.
        apart: floats from one vector to the next, of b and of the result.
    """
    sums = _Sums(rows, steps, outputs, vectors, apart)

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
    positions: int,
    row: int,
    taps: Sequence[tuple[int, int]],
    unroll: int,
    outputs: int,
    asides: int = 0,
    *,
    bias: bool,
    finish: str,
    apart: int = WIDTH,
) -> Any:
    """Return a tile of so many positions and two vectors, in rounds over `unroll` columns of a.

    A tap is (offset of its column from the position, number of vectors it adds to); b holds, for
    each column and each tap, those vectors. Positions are `row` floats apart in a, `outputs` in the
    result, `asides` in what `finish` reads.
    """
    steps, column = [], 0
    for k in range(unroll):
        for offset, used in taps:
            steps.append((offset + k, column, used))
            column += used * WIDTH
    return tile(
        [row * i for i in range(positions)],
        steps,
        (unroll, column),
        [outputs * i for i in range(positions)],
        vectors=2,
        start="bias" if bias else "zero",
        finish=finish,
        asides=[asides * i for i in range(positions)],
        apart=(WIDTH, apart),
    )


def product(
    stride: int, outputs: int, *, bias: bool = False, finish: str = "store", asides: int = 0
) -> Any:
    """Return a compiled function `(a, b, result, aside, depth, width, samples)`: result = a b.

    `a` has a row of `depth` numbers, a multiple of 4, for each sample; `b` is panels of
    [depth, 32]; the result has rows of `width`, a multiple of 32; samples are a multiple of 12.
    Rows are `stride` floats apart in a and `outputs` in the result. `aside` is the bias, or for
    "slope" a matrix like the result, whose rows are `asides` apart.
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
    """Return a compiled function `(a, g, result, inputs, outputs, samples)`: result += a^T g.

    `a` has a row of `inputs` numbers for each sample and `g` one of `outputs`, a multiple of 32;
    samples are a multiple of 4. Rows are `stride` floats apart in a and `gradient` in g. The result
    is panels of [inputs, 32], with the inputs rounded up to a multiple of `rows`; columns of `a` up
    to there are read and must be finite.
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
