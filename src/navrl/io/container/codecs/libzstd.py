"""ctypes bindings to libzstd inside the zstandard wheel, for what the package does not expose.

`entropy_code` is Zstandard without its search for matches, of which byte planes of trained weights
have none: it only gives frequent bytes shorter codes. It takes half the time of the smallest
search, and its frames decode 1.5 times as fast.
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

# ZSTD_cParameter numbers: a small window and tables, and the fastest strategy (107), which skips
# this many bytes (106) after each that it tries. It would then store literals uncompressed, unless
# literal compression is forced (1002).
_ENTROPY_ONLY = {101: 18, 102: 6, 103: 6, 105: 7, 107: 1, 106: 1 << 17, 1002: 1}


@cache
def functions() -> ctypes.CDLL | None:
    """Return the library with the functions declared; None where the wheel hides them."""
    found = importlib.util.find_spec("zstandard._cffi")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)  # calls through CDLL release the GIL
        for name, (result, arguments) in _NAMES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


class Context:
    """A zstd context, to compress or to decompress; freed with this object.

    Two threads must not use one at the same time.
    """

    def __init__(
        self, kind: Literal["CCtx", "DCtx"], parameters: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.address: int | None = None
        library: Any = functions()
        self.address = getattr(library, f"ZSTD_create{kind}")()
        self._free = getattr(library, f"ZSTD_free{kind}")
        if not self.address:
            raise MemoryError("zstd cannot allocate its tables")
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
    """Return whether libzstd can be reached and accepts the parameters."""
    return functions() is not None and Context("CCtx", _ENTROPY_ONLY).takes_all


_thread_local = threading.local()


def entropy_code(part: Bytes) -> Bytes | None:
    """Return a Zstandard frame of the bytes; empty if it would be longer than they are.

    None where libzstd cannot be reached.
    """
    if not codes_entropy():
        return None
    if not hasattr(_thread_local, "context"):
        _thread_local.context = Context("CCtx", _ENTROPY_ONLY)
    library: Any = functions()
    # a reference of our own: at exit, the interpreter drops the thread-locals of other threads
    context = _thread_local.context
    part, frame = np.ascontiguousarray(part), np.empty(part.size, np.uint8)
    size = library.ZSTD_compress2(
        context.address, frame.ctypes.data, frame.size, part.ctypes.data, part.size
    )
    return frame[: size if size <= frame.size else 0]  # error codes are larger than any size
