"""libzstd's own functions, where the wheel of zstandard exports them: what its Python interface has
no words for.

`entropy_code` is Zstandard without its search for repetitions, of which planes of trained weights
have none: it only codes the bytes, frequent ones in fewer bits. Beside the smallest search that is
twice as fast, and 1.5 times as fast to decode.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from navrl.io.container.codecs.codec import Bytes

__all__ = ["Context", "codes_entropy", "entropy_code", "functions"]

_NAMES = {
    "ZSTD_createCCtx": (ctypes.c_void_p, []),
    "ZSTD_freeCCtx": (ctypes.c_size_t, [ctypes.c_void_p]),
    "ZSTD_createDCtx": (ctypes.c_void_p, []),
    "ZSTD_freeDCtx": (ctypes.c_size_t, [ctypes.c_void_p]),
    "ZSTD_CCtx_setParameter": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "ZSTD_compress2": (ctypes.c_size_t, [ctypes.c_void_p, *[ctypes.c_void_p, ctypes.c_size_t] * 2]),
    "ZSTD_isError": (ctypes.c_uint, [ctypes.c_size_t]),
    "ZSTD_compressCCtx": (ctypes.c_size_t, None),
    "ZSTD_compressBound": (ctypes.c_size_t, None),
    "ZSTD_decompressDCtx": (ctypes.c_size_t, None),
    "ZSTD_getFrameContentSize": (ctypes.c_size_t, None),
}

# By the numbers of ZSTD_cParameter: a small window and tables, and the fastest search (107), which
# skips this many bytes (106) after each that it looks at. It would then leave bytes uncoded too,
# unless it is told to code them (1002).
_ENTROPY_ONLY = {101: 18, 102: 6, 103: 6, 105: 7, 107: 1, 106: 1 << 17, 1002: 1}


@cache
def functions() -> ctypes.CDLL | None:
    """Return the library, with the functions that are needed; None where the wheel hides them."""
    found = importlib.util.find_spec("zstandard._cffi")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)  # whose calls let other threads run
        for name, (result, arguments) in _NAMES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


class Context:
    """Tables of zstd, to compress or to decompress, which live as long as this object. Not for two
    threads at once.
    """

    def __init__(
        self, kind: Literal["CCtx", "DCtx"], parameters: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.address: int | None = None
        library: Any = functions()
        self.address = getattr(library, f"ZSTD_create{kind}")()
        self._free = getattr(library, f"ZSTD_free{kind}")
        if not self.address:
            raise MemoryError("zstd has no memory for its tables")
        taken = [
            library.ZSTD_CCtx_setParameter(self.address, *parameter)
            for parameter in parameters.items()
        ]
        self.takes_all = not any(library.ZSTD_isError(result) for result in taken)

    def __del__(self) -> None:
        if self.address:
            self._free(self.address)


@cache
def codes_entropy() -> bool:
    """Tell whether libzstd is in reach, and takes the parameters."""
    return functions() is not None and Context("CCtx", _ENTROPY_ONLY).takes_all


_of_this_thread = threading.local()


def entropy_code(part: Bytes) -> Bytes | None:
    """Return a Zstandard frame that holds the bytes, or nothing if it would be longer; None where
    libzstd is out of reach.
    """
    if not codes_entropy():
        return None
    if not hasattr(_of_this_thread, "context"):
        _of_this_thread.context = Context("CCtx", _ENTROPY_ONLY)
    library: Any = functions()
    # held here: when the interpreter leaves, it forgets what other threads have of their own
    context = _of_this_thread.context
    part, frame = np.ascontiguousarray(part), np.empty(part.size, np.uint8)
    size = library.ZSTD_compress2(
        context.address, frame.ctypes.data, frame.size, part.ctypes.data, part.size
    )
    return frame[: size if size <= frame.size else 0]  # what is an error is larger than any size
