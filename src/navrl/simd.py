"""Short vectors for numba kernels: `Lanes` holds WIDTH float32 and computes on all of them at once.

The compiler's own vectoriser gives up where arrays might overlap or loops are short. Written with
lanes, a kernel is vector code by construction, on any processor that LLVM knows: it splits the
lanes where registers are narrower.

In a compiled function: `floats = floats_at(address)`, `a = load(floats, index)`, `+ - * /`,
comparisons that give a mask, `where(mask, a, b)`, `minimum`, `maximum`, `floor`, `sqrt`, `log`,
`splat(number)`, `bits_of(mask)`, `smallest(a)`, `total(a)`, `store(floats, index, a)`,
`ahead(floats, number)`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numpy.typing import NDArray

from navrl.kernel_cache import kernel

__all__ = [
    "FAST",
    "FLOATS",
    "WIDTH",
    "ahead",
    "aligned_zeros",
    "bits_of",
    "call_at",
    "entry",
    "entry_for",
    "flags_at",
    "floats_at",
    "floor",
    "gather",
    "inner",
    "integers_at",
    "lane_numbers",
    "load",
    "load_columns",
    "log",
    "longs_at",
    "lowest_bit",
    "maximum",
    "minimum",
    "smallest",
    "splat",
    "sqrt",
    "store",
    "store_interleaved",
    "swap_runs",
    "total",
    "where",
]

WIDTH = 16  # `load_columns` is written for this width

# No infinities are assumed away: kernels stand a large finite number in for them.
FAST = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}

# A function that only other compiled functions call: no entry from Python, which would double the
# time to compile it.
inner = njit(
    nogil=True, fastmath=FAST, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
# A function that Python calls; what it was compiled to, everything below included, is kept on disk.
entry = kernel(nogil=True, fastmath=FAST, error_model="numpy")


def entry_for(variant: str) -> Callable[[Callable[..., Any]], Any]:
    """Return `entry` for a function that is made several times, with other constants each time.

    `variant` names the constants: two functions of the same name and variant must be the same.
    """
    return kernel(variant, nogil=True, fastmath=FAST, error_model="numpy")


_FLOAT = ir.FloatType()
_INT = ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_INTEGERS = ir.VectorType(_INT, WIDTH)
_MASK = ir.VectorType(ir.IntType(1), WIDTH)
_FAST = ("nnan", "nsz", "arcp", "contract", "reassoc")


class _Lanes(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("Lanes")


class _Mask(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("LaneMask")


class Pointer(types.Type):  # type: ignore[misc]
    """The address of elements of one type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Pointer({dtype})")


LANES, MASK, FLOATS = _Lanes(), _Mask(), Pointer(types.float32)


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


@register_model(_Mask)
class _MaskModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _MASK)


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, manager.lookup(kind.dtype).get_data_type().as_pointer())


def aligned_zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return zeros that begin on a cache line, so that lanes loaded from whole groups never
    straddle two.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + size].view(dtype).reshape(shape)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * WIDTH)


def _integers(value: int) -> ir.Constant:
    return ir.Constant(_INTEGERS, [value] * WIDTH)


def _pointer_to(dtype: Any) -> Any:
    """Return an intrinsic that makes a pointer of an address."""

    @intrinsic
    def function(typing_context, address):
        def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kinds.return_type))

        return Pointer(dtype)(types.int64), generate

    return function


@intrinsic
def call_at(
    typing_context, address, first, second, third, fourth, fifth, sixth, seventh, eighth, ninth
):
    """Call the C function at an address with nine whole numbers or addresses; it returns
    nothing.
    """

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word] * 9)
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*([types.int64] * 10)), generate


# Arrays carry a reference count, and passing them from function to function counts up and down,
# atomically: threads then wait for each other. A pointer is a number, indexed flat, without bounds
# and negative indices: kernels index what they sized. Whoever gives an address
# (`array.ctypes.data`) keeps the array.
floats_at, integers_at, longs_at, flags_at = (
    _pointer_to(dtype) for dtype in (types.float32, types.int32, types.int64, types.boolean)
)


@intrinsic
def ahead(typing_context, floats, number):
    """Return the pointer to the floats from `number` on."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]], inbounds=True)

    return FLOATS(FLOATS, types.intp), generate


@infer_global(operator.getitem)
class _GetTemplate(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, keywords: Any) -> Any:
        pointer = arguments[0]
        return (
            signature(pointer.dtype, pointer, types.intp) if isinstance(pointer, Pointer) else None
        )


@lower_builtin(operator.getitem, Pointer, types.Integer)
def _get(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    return context.unpack_value(
        builder, kinds.args[0].dtype, builder.gep(arguments[0], [arguments[1]], inbounds=True)
    )


@infer_global(operator.setitem)
class _SetTemplate(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, keywords: Any) -> Any:
        pointer = arguments[0]
        return (
            signature(types.none, pointer, types.intp, pointer.dtype)
            if isinstance(pointer, Pointer)
            else None
        )


@lower_builtin(operator.setitem, Pointer, types.Integer, types.Any)
def _set(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    address = builder.gep(arguments[0], [arguments[1]], inbounds=True)
    context.pack_value(builder, kinds.args[0].dtype, arguments[2], address)
    return context.get_dummy_value()


@intrinsic
def load(typing_context, floats, index):
    """Return the WIDTH floats from `index` on."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]], inbounds=True)
        value = builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()))
        value.align = 4
        return value

    return LANES(FLOATS, types.intp), generate


@intrinsic
def gather(typing_context, floats, first, lanes):
    """Return the floats at `first` plus the whole number in each lane."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        base = builder.gep(arguments[0], [arguments[1]], inbounds=True)
        offsets = builder.fptosi(arguments[2], _INTEGERS)
        result = ir.Constant(_VECTOR, ir.Undefined)
        for lane in (ir.Constant(_INT, number) for number in range(WIDTH)):
            offset = builder.sext(builder.extract_element(offsets, lane), ir.IntType(64))
            result = builder.insert_element(
                result, builder.load(builder.gep(base, [offset], inbounds=True)), lane
            )
        return result

    return LANES(FLOATS, types.intp, LANES), generate


@intrinsic
def store(typing_context, floats, index, lanes):
    """Write lanes to the WIDTH floats from `index` on."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]], inbounds=True)
        builder.store(arguments[2], builder.bitcast(pointer, _VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(FLOATS, types.intp, LANES), generate


@intrinsic
def store_interleaved(typing_context, floats, index, first, second, third, fourth):
    """Write four lanes element by element in turn, 4 * WIDTH floats from `index` on."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]], inbounds=True)
        a, b, c, d = arguments[2:]
        integers = ir.VectorType(_INT, 2 * WIDTH)
        pairs = ir.Constant(
            integers, [lane + half * WIDTH for lane in range(WIDTH) for half in range(2)]
        )
        # a c a c ..., b d b d ...
        odd, even = (builder.shuffle_vector(a, c, pairs), builder.shuffle_vector(b, d, pairs))
        integers = ir.VectorType(_INT, 4 * WIDTH)
        order = ir.Constant(
            integers, [lane + half * 2 * WIDTH for lane in range(2 * WIDTH) for half in range(2)]
        )
        whole = builder.shuffle_vector(odd, even, order)
        builder.store(whole, builder.bitcast(pointer, whole.type.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(FLOATS, types.intp, LANES, LANES, LANES, LANES), generate


def swap_runs(builder: Any, a: Any, b: Any, size: int) -> tuple[Any, Any]:
    """Return a and b with every other run of `size` elements exchanged: one step of a
    transposition.
    """
    low = [(i // size % 2) * (WIDTH - size) + i for i in range(WIDTH)]
    high = [size + index for index in low]
    return tuple(
        builder.shuffle_vector(a, b, ir.Constant(_INTEGERS, indices)) for indices in (low, high)
    )


@intrinsic
def load_columns(typing_context, table, rows, first):
    """Return eight lanes, the columns of the WIDTH rows of a table with eight columns that `rows`
    lists from `first` on.

    Rows are read whole and transposed in registers, several times faster than element by element.
    """

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        table, rows, first = arguments
        half, eight = ir.VectorType(_FLOAT, 8), ir.Constant(ir.IntType(64), 8)
        loaded = []
        for lane in range(16):
            number = builder.load(
                builder.gep(
                    rows, [builder.add(first, ir.Constant(first.type, lane))], inbounds=True
                )
            )
            offset = builder.mul(builder.sext(number, ir.IntType(64)), eight)
            value = builder.load(
                builder.bitcast(builder.gep(table, [offset], inbounds=True), half.as_pointer())
            )
            value.align = 4
            loaded.append(value)
        whole = ir.Constant(_INTEGERS, list(range(16)))
        v = [builder.shuffle_vector(loaded[lane], loaded[lane + 8], whole) for lane in range(8)]
        for size in (
            1,
            2,
            4,
        ):  # exchange single elements, then pairs, then fours, between rows that far apart
            for lane in range(8):
                if lane // size % 2 == 0:
                    v[lane], v[lane + size] = swap_runs(builder, v[lane], v[lane + size], size)
        return context.make_tuple(builder, kinds.return_type, v)

    return types.UniTuple(LANES, 8)(FLOATS, Pointer(types.int32), types.intp), generate


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(undefined, value, ir.Constant(_INT, 0)), undefined, _integers(0)
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
    """Call one of LLVM's own functions."""
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(result, [argument.type for argument in arguments]), name
    )
    return builder.call(function, arguments, fastmath=_FAST)


# Not a comparison and a choice: LLVM makes masked stores of those, which the next load of the same
# lanes has to wait for.
minimum = _binary(
    lambda builder, a, b: _call(builder, f"llvm.minnum.v{WIDTH}f32", _VECTOR, a, b), LANES
)
maximum = _binary(
    lambda builder, a, b: _call(builder, f"llvm.maxnum.v{WIDTH}f32", _VECTOR, a, b), LANES
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
    """Let an operator take lanes and lanes, lanes and a number, or a number and lanes."""

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

    for kinds in ((_Lanes, _Lanes), (_Lanes, types.Float), (types.Float, _Lanes)):
        lower_builtin(function, *kinds)(lower)


for _function, (_result, _emit) in _OPERATORS.items():
    _define(_function, _result, _emit)


@infer_global(operator.neg)
class _NegateTemplate(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, keywords: Any) -> Any:
        return signature(LANES, LANES) if arguments == (LANES,) else None


@lower_builtin(operator.neg, _Lanes)
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
    """Return ln of positive normal floats to within 2e-7: exponent from the bits, a series for the
    rest.

    With s = (m - 1) / (m + 1) and m in [sqrt 0.5, sqrt 2), ln m = 2 (s + s^3/3 + s^5/5 + s^7/7 +
    s^9/9).
    """
    bits = builder.bitcast(value, _INTEGERS)
    # bits of sqrt(0.5): centres the mantissa around 1
    shifted = builder.sub(bits, _integers(0x3F3504F3))
    exponent = builder.ashr(shifted, _integers(23))
    mantissa = builder.bitcast(builder.sub(bits, builder.shl(exponent, _integers(23))), _VECTOR)
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
        builder.sitofp(exponent, _VECTOR), _constant(0.6931471805599453), flags=_FAST
    )
    return builder.fadd(scaled, builder.fmul(series, s, flags=_FAST), flags=_FAST)


_RAMP = ir.Constant(_VECTOR, [float(lane) for lane in range(WIDTH)])


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
    lambda builder, value: _call(builder, f"llvm.floor.v{WIDTH}f32", _VECTOR, value), LANES
)
sqrt = _unary(
    lambda builder, value: _call(builder, f"llvm.sqrt.v{WIDTH}f32", _VECTOR, value), LANES
)
log = _unary(_natural_logarithm, LANES)
smallest = _unary(
    lambda builder, value: _call(builder, f"llvm.vector.reduce.fmin.v{WIDTH}f32", _FLOAT, value),
    types.float32,
)
total = _unary(
    lambda builder, value: _call(
        builder, f"llvm.vector.reduce.fadd.v{WIDTH}f32", _FLOAT, ir.Constant(_FLOAT, 0.0), value
    ),
    types.float32,
)
bits_of = _unary(
    lambda builder, mask: builder.zext(builder.bitcast(mask, ir.IntType(WIDTH)), ir.IntType(64)),
    types.int64,
    MASK,
)
