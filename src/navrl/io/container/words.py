"""What replay kernels need beside numba's own: bytes at an address, counted bits, and the C
functions of lz4.

Blobs of compressed frames lie at addresses, not in arrays: one table of numbers then reaches all of
them from compiled code. Readers take eight bytes where fewer belong to them, so every blob is
followed by `PADDING` readable bytes.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

__all__ = [
    "COMPRESS",
    "COMPRESS_WITH",
    "DECOMPRESS",
    "DECOMPRESS_WITH",
    "LOAD_DICTIONARY",
    "LZ4_STATE",
    "PADDING",
    "WORD",
    "c_call",
    "call_compress",
    "call_compress_with",
    "call_decompress",
    "call_decompress_with",
    "call_load_dictionary",
    "clear_bytes",
    "copy_bytes",
    "inner",
    "leading_zeros",
    "lz4_functions",
    "ones",
    "read",
    "read_byte",
    "read_word",
    "trailing_zeros",
    "write",
    "write_byte",
    "write_word",
]

PADDING = 16

# Functions that only other compiled functions call; exact arithmetic, unlike that of `navrl.simd`.
inner = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

WORD = ir.IntType(64)
_INT = ir.IntType(32)
_SHORT = ir.IntType(16)
_BYTE = ir.IntType(8)

# The functions of liblz4 that the wheel of lz4 carries within it, in the order of
# `lz4_functions()`.
LZ4_NAMES = (
    "LZ4_decompress_safe",
    "LZ4_decompress_safe_usingDict",
    "LZ4_compress_default",
    "LZ4_loadDict",
    "LZ4_compress_fast_continue",
)
DECOMPRESS, DECOMPRESS_WITH, COMPRESS, LOAD_DICTIONARY, COMPRESS_WITH = range(5)
LZ4_STATE = 1 << 15  # bytes for what LZ4_loadDict sets up


@cache
def lz4_functions() -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the addresses of the lz4 functions, or None where the wheel does not export them."""
    module = importlib.import_module("lz4.block._block")
    try:
        library = ctypes.CDLL(module.__file__)
        if library.LZ4_sizeofState() > LZ4_STATE:
            return None
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in LZ4_NAMES
        ]
    except (OSError, AttributeError, TypeError):
        return None
    return np.array(addresses, np.int64)


@intrinsic
def read(typing_context, address):
    """Return the eight bytes at any address as a whole number, the first the lowest."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        value = builder.load(builder.inttoptr(arguments[0], WORD.as_pointer()))
        value.align = 1
        return value

    return types.uint64(types.int64), generate


@intrinsic
def write(typing_context, address, value):
    """Write a whole number as eight bytes to any address."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        stored = builder.store(arguments[1], builder.inttoptr(arguments[0], WORD.as_pointer()))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


def _reader(kind: Any) -> Any:
    """Return an intrinsic that reads a whole number of some bytes at any address."""

    @intrinsic
    def function(typing_context, address):
        def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()))
            value.align = 1
            return builder.zext(value, WORD)

        return types.uint64(types.int64), generate

    return function


def _writer(kind: Any) -> Any:
    """Return an intrinsic that writes the low bytes of a whole number to any address."""

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


read_byte, _read_two, _read_four = (_reader(kind) for kind in (_BYTE, _SHORT, _INT))
write_byte, _write_two, _write_four = (_writer(kind) for kind in (_BYTE, _SHORT, _INT))


@inner
def read_word(address: int, word: int) -> Any:
    """Return the number of 1, 2, 4 or 8 bytes at an address, and touch no other byte."""
    if word == 4:
        return _read_four(address)
    if word == 1:
        return read_byte(address)
    if word == 2:
        return _read_two(address)
    return read(address)


@inner
def write_word(address: int, word: int, value: Any) -> None:
    """Write a number of 1, 2, 4 or 8 bytes."""
    if word == 4:
        _write_four(address, value)
    elif word == 1:
        write_byte(address, value)
    elif word == 2:
        _write_two(address, value)
    else:
        write(address, value)


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
    """Copy bytes from one address to another; the two do not overlap."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        _copy(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def ones(typing_context, word):
    """Return how many bits of a word are set."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(typing_context, word):
    """Return how many bits above the highest that is set are not; 64 for zero."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """Return how many bits below the lowest that is set are not; 64 for zero."""

    def generate(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def c_call(signature: str, result: Any = _INT) -> Any:
    """Return an intrinsic that calls the C function at an address; `signature` has an `i` for every
    int, else 64 bits.
    """
    number = len(signature)
    returned = types.int32 if result is _INT else types.int64

    @intrinsic
    def function(typing_context, address, arguments):
        def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
            given = [builder.extract_value(values[1], index) for index in range(number)]
            passed = [
                builder.trunc(v, _INT) if kind == "i" else v
                for v, kind in zip(given, signature, strict=True)
            ]
            shape = ir.FunctionType(result, [value.type for value in passed])
            return builder.call(builder.inttoptr(values[0], shape.as_pointer()), passed)

        return returned(types.int64, types.UniTuple(types.int64, number)), generate

    return function


call_compress = call_decompress = c_call("ppii")
call_decompress_with = c_call("ppiipi")
call_load_dictionary = c_call("ppi")
call_compress_with = c_call("pppiii")
