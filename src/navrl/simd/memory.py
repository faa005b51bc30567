"""Lanes in memory: pointers, loads and stores, and calls of C functions at an address."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from navrl.simd.lanes import FLOAT, FLOATS, INT, INTEGERS, LANES, VECTOR, WIDTH, Pointer

__all__ = [
    "ahead",
    "call_at",
    "flags_at",
    "floats_at",
    "gather",
    "integers_at",
    "load",
    "load_columns",
    "longs_at",
    "store",
    "store_interleaved",
    "swap_runs",
]


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
    """Call the C function at an address with nine integers or addresses; it returns nothing."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word] * 9)
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*([types.int64] * 10)), generate


# Passing arrays between functions changes their reference counts, atomically, which makes threads
# wait for each other. A pointer is a number, indexed flat, without bounds checks or negative
# indices. The caller, who passes the address (`array.ctypes.data`), keeps the array alive.
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
        value = builder.load(builder.bitcast(pointer, VECTOR.as_pointer()))
        value.align = 4
        return value

    return LANES(FLOATS, types.intp), generate


@intrinsic
def gather(typing_context, floats, first, lanes):
    """Return the floats at `first` plus the whole number in each lane."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        base = builder.gep(arguments[0], [arguments[1]], inbounds=True)
        offsets = builder.fptosi(arguments[2], INTEGERS)
        result = ir.Constant(VECTOR, ir.Undefined)
        for lane in (ir.Constant(INT, number) for number in range(WIDTH)):
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
        builder.store(arguments[2], builder.bitcast(pointer, VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(FLOATS, types.intp, LANES), generate


@intrinsic
def store_interleaved(typing_context, floats, index, first, second, third, fourth):
    """Write four lanes, interleaved, to the 4 * WIDTH floats from `index` on."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]], inbounds=True)
        a, b, c, d = arguments[2:]
        integers = ir.VectorType(INT, 2 * WIDTH)
        pairs = ir.Constant(
            integers, [lane + half * WIDTH for lane in range(WIDTH) for half in range(2)]
        )
        # a c a c ..., b d b d ...
        odd, even = (builder.shuffle_vector(a, c, pairs), builder.shuffle_vector(b, d, pairs))
        integers = ir.VectorType(INT, 4 * WIDTH)
        order = ir.Constant(
            integers, [lane + half * 2 * WIDTH for lane in range(2 * WIDTH) for half in range(2)]
        )
        whole = builder.shuffle_vector(odd, even, order)
        builder.store(whole, builder.bitcast(pointer, whole.type.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(FLOATS, types.intp, LANES, LANES, LANES, LANES), generate


def swap_runs(builder: Any, a: Any, b: Any, size: int) -> tuple[Any, Any]:
    """Return a and b, every other run of `size` elements exchanged: a step of a transposition."""
    low = [(i // size % 2) * (WIDTH - size) + i for i in range(WIDTH)]
    high = [size + index for index in low]
    return tuple(
        builder.shuffle_vector(a, b, ir.Constant(INTEGERS, indices)) for indices in (low, high)
    )


@intrinsic
def load_columns(typing_context, table, rows, first):
    """Return eight lanes: the columns of the WIDTH rows of an eight-column table that `rows` lists
    from `first` on.

    Rows are read whole and transposed in registers, several times faster than element by element.
    """

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        table, rows, first = arguments
        half, eight = ir.VectorType(FLOAT, 8), ir.Constant(ir.IntType(64), 8)
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
        whole = ir.Constant(INTEGERS, list(range(16)))
        v = [builder.shuffle_vector(loaded[lane], loaded[lane + 8], whole) for lane in range(8)]
        # exchange single elements, then pairs, then fours, between rows that far apart
        for size in (1, 2, 4):
            for lane in range(8):
                if lane // size % 2 == 0:
                    v[lane], v[lane + size] = swap_runs(builder, v[lane], v[lane + size], size)
        return context.make_tuple(builder, kinds.return_type, v)

    return types.UniTuple(LANES, 8)(FLOATS, Pointer(types.int32), types.intp), generate
