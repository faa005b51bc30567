"""The C functions of liblz4 inside the lz4 wheel, by address, for compiled code."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

import numpy as np

from navrl.io.container.numba_memory import c_call

__all__ = [
    "COMPRESS",
    "COMPRESS_WITH",
    "DECOMPRESS",
    "DECOMPRESS_WITH",
    "LOAD_DICTIONARY",
    "LZ4_STATE",
    "call_compress",
    "call_compress_with",
    "call_decompress",
    "call_decompress_with",
    "call_load_dictionary",
    "lz4_functions",
]

# in the order of `lz4_functions()`
_NAMES = (
    "LZ4_decompress_safe",
    "LZ4_decompress_safe_usingDict",
    "LZ4_compress_default",
    "LZ4_loadDict",
    "LZ4_compress_fast_continue",
)
DECOMPRESS, DECOMPRESS_WITH, COMPRESS, LOAD_DICTIONARY, COMPRESS_WITH = range(5)
LZ4_STATE = 1 << 15  # bytes that LZ4_loadDict needs for its tables


@cache
def lz4_functions() -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the addresses of the lz4 functions; None where the wheel does not export them."""
    module = importlib.import_module("lz4.block._block")
    try:
        library = ctypes.CDLL(module.__file__)
        if library.LZ4_sizeofState() > LZ4_STATE:
            return None
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _NAMES
        ]
    except (OSError, AttributeError, TypeError):
        return None
    return np.array(addresses, np.int64)


call_compress = call_decompress = c_call("ppii")
call_decompress_with = c_call("ppiipi")
call_load_dictionary = c_call("ppi")
call_compress_with = c_call("pppiii")
