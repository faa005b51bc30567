"""Coders: zstd and lz4 as functions on flat bytes, with one (de)compressor a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lz4.block
import numpy as np
import zstandard

from navrl.errors import ContainerError

__all__ = [
    "CODED",
    "LZ4",
    "MAX_CHUNK_BYTES",
    "MAX_EXPANSION",
    "ZSTD",
    "Bytes",
    "Coder",
    "compress_all",
    "decompress_all",
    "padding_for",
]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]  # flat, contiguous

CODED = 1 << 31  # the flag beside a part's length: coded, rather than stored as it is

MAX_CHUNK_BYTES = 1 << 24

# A chunk is stored in at least this fraction of its bytes, so that a small file can never ask for
# much memory.
MAX_EXPANSION = 1024


def padding_for(size: int, stored: int) -> list[bytes]:
    """Return the zero bytes that a chunk of `size`, coded as `stored` bytes, needs behind it."""
    missing = -(-size // MAX_EXPANSION) - stored
    return [bytes(missing)] if missing > 0 else []


@dataclass(frozen=True)
class Coder:
    """A pair of functions: `compress(part, level)`, and `decompress(part, size)`, which refuses any
    other size.
    """

    compress: Callable[[Bytes, int | None], bytes]
    decompress: Callable[[Bytes, int], Bytes]


# One (de)compressor a thread: they keep their tables between chunks, and must not be shared.
_of_this_thread = threading.local()

# Planes have no long repetitions to search for. Tiny tables find those there are, at twice the
# speed.
_SMALL_SEARCH = zstandard.ZstdCompressionParameters(
    window_log=18,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    strategy=zstandard.STRATEGY_FAST,
)


def _compressor(level: int | None) -> Any:  # its stubs know no NumPy
    compressors = _of_this_thread.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = (
            zstandard.ZstdCompressor(compression_params=_SMALL_SEARCH)
            if level is None
            else zstandard.ZstdCompressor(level=level)
        )
    return compressors[level]


def _decompressor() -> Any:
    if not hasattr(_of_this_thread, "decompressor"):
        _of_this_thread.decompressor = zstandard.ZstdDecompressor()
    return _of_this_thread.decompressor


def _compress_zstd(part: Bytes, level: int | None) -> bytes:
    return _compressor(level).compress(part)


# Many small parts in one call: every call of its own takes the interpreter from the other threads,
# and waits to get it back.
_AT_ONCE = {"multi_compress_to_buffer", "multi_decompress_to_buffer"} <= zstandard.backend_features


def compress_all(parts: Sequence[Bytes], level: int | None) -> Sequence[Any]:
    """Return Zstandard frames of all parts, none of which may be empty."""
    if not _AT_ONCE or len(parts) < 2:
        return [_compress_zstd(part, level) for part in parts]
    return list(_compressor(level).multi_compress_to_buffer(list(parts)))


def decompress_all(parts: Sequence[Bytes], sizes: Sequence[int]) -> Sequence[Bytes]:
    """Return what Zstandard frames hold, which must be of these sizes."""
    if not _AT_ONCE or len(parts) < 2:
        return [_decompress_zstd(part, size) for part, size in zip(parts, sizes, strict=True)]
    if min(sizes) < 1:
        raise ContainerError(
            "a zstd frame where no bytes were expected"
        )  # a size of 0 would be taken for an unknown one
    try:
        given = list(parts)
        found = _decompressor().multi_decompress_to_buffer(
            given, decompressed_sizes=np.array(sizes, np.uint64)
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise ContainerError(f"zstd cannot decompress a part: {error}") from error
    return [np.frombuffer(one, np.uint8) for one in found]


def _decompress_zstd(part: Bytes, size: int) -> Bytes:
    try:
        if zstandard.frame_content_size(part.data) != size:
            raise ContainerError(f"a zstd frame that does not hold the {size} bytes expected")
        return np.frombuffer(_decompressor().decompress(part, allow_extra_data=False), np.uint8)
    except zstandard.ZstdError as error:
        raise ContainerError(f"zstd cannot decompress a part: {error}") from error


def _compress_lz4(part: Bytes, level: int | None) -> bytes:
    if level is not None and level >= 3:
        return lz4.block.compress(
            part, mode="high_compression", compression=min(level, 12), store_size=False
        )
    return lz4.block.compress(part, store_size=False)


def _decompress_lz4(part: Bytes, size: int) -> Bytes:
    try:
        whole = np.frombuffer(lz4.block.decompress(part, uncompressed_size=size), np.uint8)
    except lz4.block.LZ4BlockError as error:
        raise ContainerError(f"lz4 cannot decompress a part: {error}") from error
    if whole.size != size:
        raise ContainerError(f"an lz4 block of {whole.size} bytes, expected {size}")
    return whole


ZSTD = Coder(_compress_zstd, _decompress_zstd)
LZ4 = Coder(_compress_lz4, _decompress_lz4)
