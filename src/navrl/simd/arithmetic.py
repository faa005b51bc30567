"""Arithmetic on lanes: operators, comparisons, selection, and functions of LLVM."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from navrl.simd.lanes import FLOAT, INT, INTEGERS, LANES, MASK, VECTOR, WIDTH, Lanes

__all__ = [
    "bits_of",
    "floor",
    "lane_numbers",
    "log",
    "lowest_bit",
    "maximum",
    "minimum",
    "smallest",
    "splat",
    "sqrt",
    "total",
    "where",
]

_FAST = ("nnan", "nsz", "arcp", "contract", "reassoc")


def _constant(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * WIDTH)


def _integers(value: int) -> ir.Constant:
    return ir.Constant(INTEGERS, [value] * WIDTH)


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(VECTOR, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(undefined, value, ir.Constant(INT, 0)), undefined, _integers(0)
    )


@intrinsic
def splat(typing_context, value):
    """Return lanes that all hold one number."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0])

    return LANES(types.float32), generate


def _unary(emit: Callable[[Any, Any], Any], result: Any, operand: Any = LANES) -> Any:
    """Return an intrinsic of one operand."""

    @intrinsic
    def function(typing_context, value):
        def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
            return emit(builder, arguments[0])

        return (result(operand), generate) if value is operand else None

    return function


def _binary(emit: Callable[[Any, Any, Any], Any], result: Any) -> Any:
    """Return an intrinsic of two lanes, either of which may be a number instead."""

    @intrinsic
    def function(typing_context, left, right):
        operands = [LANES if kind is LANES else types.float32 for kind in (left, right)]

        def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
            pairs = zip(kinds.args, arguments, strict=True)
            return emit(
                builder,
                *(value if kind is LANES else _splat(builder, value) for kind, value in pairs),
            )

        return result(*operands), generate

    return function


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call an intrinsic of LLVM."""
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(result, [argument.type for argument in arguments]), name
    )
    return builder.call(function, arguments, fastmath=_FAST)


# Not a comparison and a select: LLVM turns those into masked stores, which stall the next load of
# the same lanes.
minimum = _binary(
    lambda builder, a, b: _call(builder, f"llvm.minnum.v{WIDTH}f32", VECTOR, a, b), LANES
)
maximum = _binary(
    lambda builder, a, b: _call(builder, f"llvm.maxnum.v{WIDTH}f32", VECTOR, a, b), LANES
)

_OPERATORS: dict[Any, tuple[Any, Callable[[Any, Any, Any], Any]]] = {
    operator.add: (LANES, lambda builder, a, b: builder.fadd(a, b, flags=_FAST)),
    operator.sub: (LANES, lambda builder, a, b: builder.fsub(a, b, flags=_FAST)),
    operator.mul: (LANES, lambda builder, a, b: builder.fmul(a, b, flags=_FAST)),
    operator.truediv: (LANES, lambda builder, a, b: builder.fdiv(a, b, flags=_FAST)),
    operator.lt: (MASK, lambda builder, a, b: builder.fcmp_ordered("<", a, b, flags=_FAST)),
    operator.le: (MASK, lambda builder, a, b: builder.fcmp_ordered("<=", a, b, flags=_FAST)),
    operator.gt: (MASK, lambda builder, a, b: builder.fcmp_ordered(">", a, b, flags=_FAST)),
    operator.ge: (MASK, lambda builder, a, b: builder.fcmp_ordered(">=", a, b, flags=_FAST)),
}

# Operators are typed and lowered directly: `overload` would compile a function for each and triple
# the compile time.


def _define(function: Any, result: Any, emit: Callable[[Any, Any, Any], Any]) -> None:
    """Define an operator for lanes and lanes, lanes and a number, or a number and lanes."""

    @infer_global(function)
    class _Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, arguments: Any, keywords: Any) -> Any:
            if LANES in arguments and all(
                kind is LANES or isinstance(kind, types.Number) for kind in arguments
            ):
                return signature(
                    result, *(LANES if kind is LANES else types.float32 for kind in arguments)
                )
            return None

    def lower(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        pairs = zip(kinds.args, arguments, strict=True)
        return emit(
            builder, *(value if kind is LANES else _splat(builder, value) for kind, value in pairs)
        )

    for kinds in ((Lanes, Lanes), (Lanes, types.Float), (types.Float, Lanes)):
        lower_builtin(function, *kinds)(lower)


for _function, (_result, _emit) in _OPERATORS.items():
    _define(_function, _result, _emit)


@infer_global(operator.neg)
class _NegateTemplate(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, keywords: Any) -> Any:
        return signature(LANES, LANES) if arguments == (LANES,) else None


@lower_builtin(operator.neg, Lanes)
def _negate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    return builder.fneg(arguments[0])


@intrinsic
def where(typing_context, mask, yes, no):
    """Return `yes` in the lanes where the mask holds, and `no` in the others; either may be a
    number.
    """
    operands = [LANES if kind is LANES else types.float32 for kind in (yes, no)]

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        pairs = zip(kinds.args[1:], arguments[1:], strict=True)
        return builder.select(
            arguments[0],
            *(value if kind is LANES else _splat(builder, value) for kind, value in pairs),
        )

    return (LANES(MASK, *operands), generate) if mask is MASK else None


def _natural_logarithm(builder: Any, value: Any) -> Any:
    """Return ln of positive normal floats to within 2e-7: exponent from the bits, series for the
    mantissa.

    With s = (m - 1) / (m + 1) and m in [sqrt 0.5, sqrt 2), ln m = 2 (s + s^3/3 + s^5/5 + s^7/7 +
    s^9/9).
    """
    bits = builder.bitcast(value, INTEGERS)
    # bits of sqrt(0.5): centres the mantissa around 1
    shifted = builder.sub(bits, _integers(0x3F3504F3))
    exponent = builder.ashr(shifted, _integers(23))
    mantissa = builder.bitcast(builder.sub(bits, builder.shl(exponent, _integers(23))), VECTOR)
    one = _constant(1.0)
    s = builder.fdiv(
        builder.fsub(mantissa, one, flags=_FAST),
        builder.fadd(mantissa, one, flags=_FAST),
        flags=_FAST,
    )
    square = builder.fmul(s, s, flags=_FAST)
    series = _constant(2 / 9)
    for coefficient in (2 / 7, 2 / 5, 2 / 3, 2.0):
        series = builder.fadd(
            builder.fmul(series, square, flags=_FAST), _constant(coefficient), flags=_FAST
        )
    scaled = builder.fmul(
        builder.sitofp(exponent, VECTOR), _constant(0.6931471805599453), flags=_FAST
    )
    return builder.fadd(scaled, builder.fmul(series, s, flags=_FAST), flags=_FAST)


_RAMP = ir.Constant(VECTOR, [float(lane) for lane in range(WIDTH)])


@intrinsic
def lane_numbers(typing_context):
    """Return lanes that hold 0, 1, 2, ..."""
    return LANES(), lambda context, builder, kinds, arguments: _RAMP


@intrinsic
def lowest_bit(typing_context, bits):
    """Return the position of the lowest set bit of a non-zero integer."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


floor = _unary(
    lambda builder, value: _call(builder, f"llvm.floor.v{WIDTH}f32", VECTOR, value), LANES
)
sqrt = _unary(lambda builder, value: _call(builder, f"llvm.sqrt.v{WIDTH}f32", VECTOR, value), LANES)
log = _unary(_natural_logarithm, LANES)
smallest = _unary(
    lambda builder, value: _call(builder, f"llvm.vector.reduce.fmin.v{WIDTH}f32", FLOAT, value),
    types.float32,
)
total = _unary(
    lambda builder, value: _call(
        builder, f"llvm.vector.reduce.fadd.v{WIDTH}f32", FLOAT, ir.Constant(FLOAT, 0.0), value
    ),
    types.float32,
)
bits_of = _unary(
    lambda builder, mask: builder.zext(builder.bitcast(mask, ir.IntType(WIDTH)), ir.IntType(64)),
    types.int64,
    MASK,
)
