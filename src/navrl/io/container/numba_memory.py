"""numba intrinsics that numba lacks: memory at an address, bit counts, calls of C functions.

Compressed frames lie at addresses, not in arrays: compiled code then reaches all of them through
one table of integers. Readers load eight bytes where fewer belong to them, so every blob is
followed by `PADDING` readable bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

__all__ = [
    "PADDING",
    "WORD",
    "c_call",
    "clear_bytes",
    "copy_bytes",
    "inner",
    "leading_zeros",
    "popcount",
    "read_byte",
    "read_u16",
    "read_u64",
    "read_word",
    "trailing_zeros",
    "write_byte",
    "write_u16",
    "write_u64",
    "write_word",
]

PADDING = 16

# For functions that only compiled functions call; exact arithmetic, unlike that of `navrl.simd`.
inner = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

WORD = ir.IntType(64)
_INT = ir.IntType(32)
_SHORT = ir.IntType(16)
_BYTE = ir.IntType(8)


@intrinsic
def read_u64(typing_context, address):
    """Return the 64-bit little-endian integer at any address."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        value = builder.load(builder.inttoptr(arguments[0], WORD.as_pointer()))
        value.align = 1
        return value

    return types.uint64(types.int64), generate


@intrinsic
def write_u64(typing_context, address, value):
    """Write a 64-bit little-endian integer to any address."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        stored = builder.store(arguments[1], builder.inttoptr(arguments[0], WORD.as_pointer()))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


def _reader(kind: Any) -> Any:
    """Return an intrinsic that reads an unsigned integer of an LLVM type at any address."""

    @intrinsic
    def function(typing_context, address):
        def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()))
            value.align = 1
            return builder.zext(value, WORD)

        return types.uint64(types.int64), generate

    return function


def _writer(kind: Any) -> Any:
    """Return an intrinsic that writes the low bytes of an integer to any address."""

    @intrinsic
    def function(typing_context, address, value):
        def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
            stored = builder.store(
                builder.trunc(arguments[1], kind), builder.inttoptr(arguments[0], kind.as_pointer())
            )
            stored.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), generate

    return function


read_byte, read_u16, _read_four = (_reader(kind) for kind in (_BYTE, _SHORT, _INT))
write_byte, write_u16, _write_four = (_writer(kind) for kind in (_BYTE, _SHORT, _INT))


@inner
def read_word(address: int, word: int) -> Any:
    """Return the integer of 1, 2, 4 or 8 bytes at an address; no other byte is read."""
    if word == 4:
        return _read_four(address)
    if word == 1:
        return read_byte(address)
    if word == 2:
        return read_u16(address)
    return read_u64(address)


@inner
def write_word(address: int, word: int, value: Any) -> None:
    """Write an integer of 1, 2, 4 or 8 bytes to an address."""
    if word == 4:
        _write_four(address, value)
    elif word == 1:
        write_byte(address, value)
    elif word == 2:
        write_u16(address, value)
    else:
        write_u64(address, value)


@intrinsic
def clear_bytes(typing_context, target, size):
    """Set bytes to zero."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.memset", [_BYTE.as_pointer(), WORD])
        target = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        builder.call(
            function, [target, ir.Constant(_BYTE, 0), arguments[1], ir.Constant(ir.IntType(1), 0)]
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _copy(builder: Any, target: Any, source: Any, size: Any) -> None:
    pointer = _BYTE.as_pointer()
    function = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, WORD])
    arguments = [
        builder.inttoptr(target, pointer),
        builder.inttoptr(source, pointer),
        size,
        ir.Constant(ir.IntType(1), 0),
    ]
    builder.call(function, arguments)


@intrinsic
def copy_bytes(typing_context, target, source, size):
    """Copy bytes from one address to another; the ranges must not overlap."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        _copy(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def popcount(typing_context, word):
    """Return how many bits of an integer are set."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(typing_context, word):
    """Return the number of zero bits above the highest set bit; 64 for zero."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """Return the number of zero bits below the lowest set bit; 64 for zero."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def c_call(signature: str, result: Any = _INT) -> Any:
    """Return an intrinsic that calls the C function at an address.

    `signature` has one letter an argument: `i` for a C int, any other for 64 bits.
    """
    number = len(signature)
    returned = types.int32 if result is _INT else types.int64

    @intrinsic
    def function(typing_context, address, arguments):
        def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
            wide = [builder.extract_value(values[1], index) for index in range(number)]
            passed = [
                builder.trunc(value, _INT) if kind == "i" else value
                for value, kind in zip(wide, signature, strict=True)
            ]
            shape = ir.FunctionType(result, [value.type for value in passed])
            return builder.call(builder.inttoptr(values[0], shape.as_pointer()), passed)

        return returned(types.int64, types.UniTuple(types.int64, number)), generate

    return function
