"""zstd and lz4 as functions on flat bytes; every thread has its own zstd contexts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lz4.block
import numpy as np
import zstandard

from navrl.errors import ContainerError
from navrl.io.container.codecs.codec import Bytes

__all__ = ["LZ4", "ZSTD", "Compressor", "compress_all", "decompress_all"]


@dataclass(frozen=True)
class Compressor:
    """A pair of functions; `decompress` returns exactly the size asked for, or refuses."""

    compress: Callable[[Bytes, int | None], bytes]
    decompress: Callable[[Bytes, int], Bytes]

    def decompress_each(self, parts: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        """Return parts decompressed to these sizes, one after the other."""
        return [self.decompress(part, size) for part, size in zip(parts, sizes, strict=True)]


# zstd's contexts keep their tables between chunks, and must not be shared by threads.
_thread_local = threading.local()

# Byte planes of weights have few long matches. Tiny tables find those there are, at twice the
# speed.
_SMALL_SEARCH = zstandard.ZstdCompressionParameters(
    window_log=18,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    strategy=zstandard.STRATEGY_FAST,
)


def _compressor(level: int | None) -> Any:  # zstandard's stubs do not accept NumPy arrays
    compressors = _thread_local.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = (
            zstandard.ZstdCompressor(compression_params=_SMALL_SEARCH)
            if level is None
            else zstandard.ZstdCompressor(level=level)
        )
    return compressors[level]


def _decompressor() -> Any:
    if not hasattr(_thread_local, "decompressor"):
        _thread_local.decompressor = zstandard.ZstdDecompressor()
    return _thread_local.decompressor


def _compress_zstd(part: Bytes, level: int | None) -> bytes:
    return _compressor(level).compress(part)


# Many small parts in one call: each call of its own would take and release the GIL once more.
_BATCHED = {"multi_compress_to_buffer", "multi_decompress_to_buffer"} <= zstandard.backend_features


def compress_all(parts: Sequence[Bytes], level: int | None) -> Sequence[Any]:
    """Return a zstd frame for each part; no part may be empty."""
    if not _BATCHED or len(parts) < 2:
        return [_compress_zstd(part, level) for part in parts]
    return list(_compressor(level).multi_compress_to_buffer(list(parts)))


def decompress_all(parts: Sequence[Bytes], sizes: Sequence[int]) -> Sequence[Bytes]:
    """Return the contents of zstd frames, which must have these sizes."""
    if not _BATCHED or len(parts) < 2:
        return [_decompress_zstd(part, size) for part, size in zip(parts, sizes, strict=True)]
    if min(sizes) < 1:  # which zstandard would take for an unknown size
        raise ContainerError("a zstd frame where no bytes were expected")
    try:
        found = _decompressor().multi_decompress_to_buffer(
            list(parts), decompressed_sizes=np.array(sizes, np.uint64)
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


ZSTD = Compressor(_compress_zstd, _decompress_zstd)
LZ4 = Compressor(_compress_lz4, _decompress_lz4)
