"""Named codecs: how the bytes of one chunk are stored.

A codec splits a chunk into parts and codes each part, or leaves it as it is when coding does not
pay. `planes-zstd`, the default, takes floats apart: the top bytes (sign and exponent) of trained
weights crowd around a few values and shrink to a third; the lower bits of the mantissa are noise
that no compressor can shrink and none should waste time on.

Everything heavy here runs inside NumPy, zstd or lz4, which let other threads run meanwhile.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from navrl.errors import ConfigError, ContainerError, nearest_name
from navrl.io.container.coders import CODED, LZ4, MAX_EXPANSION, ZSTD, Bytes, Coder, padding_for
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF
from navrl.io.container.libzstd import entropy_code
from navrl.io.container.row_codec import RowCodec, Rows

__all__ = ["CODECS", "DEFAULT_CODEC", "MAX_EXPANSION", "MAX_LEVEL", "Bytes", "Codec", "find_codec"]

DEFAULT_CODEC = "planes-zstd"
MAX_LEVEL = 16  # of any codec

_SAMPLES = 2048
# parts whose bytes carry more than this many bits each are not worth coding
_COMPRESSIBLE_BITS = 7.5
# those whose bytes carry less are searched for repetitions at once: a code takes a bit at least
_REPETITIVE_BITS = 1.0
_PROBE = 1 << 14  # bytes of a part that are searched to find out whether the rest is worth it
_WORTH_SEARCH = 0.9  # of the size that codes alone would have


@dataclass(frozen=True)
class Codec:
    """One way to store a chunk: `encode` gives the buffers to write, `decode` fills the chunk
    again.
    """

    name: str
    coder: Coder | None
    planes: bool = False
    default_level: int | None = None

    def encode(
        self,
        chunk: Bytes,
        element: str,
        level: int | None,
        scratch: Bytes,
        rows: Rows | None = None,
    ) -> list[Any]:
        """Return buffers whose concatenation is the stored form of a chunk.

        Some may be views of the chunk and of `scratch`, which must be as large: they are valid as
        long as both are.
        """
        if self.coder is None:
            return [chunk]
        level = self.default_level if level is None else level
        words: list[int] = []
        buffers: list[Any] = []
        for part in _split(chunk, element, scratch) if self.planes else [chunk]:
            coded = self._code(self.coder, part, level)
            pays = 0 < len(coded) < part.size
            buffers.append(coded if pays else part)
            words.append(CODED | len(coded) if pays else part.size)
        stored = 4 * len(words) + sum(word & ~CODED for word in words)
        return [struct.pack(f"<{len(words)}I", *words), *buffers, *padding_for(chunk.size, stored)]

    def _code(self, coder: Coder, part: Bytes, level: int | None) -> Any:
        """Return the coded form of a part; nothing if it is not worth having."""
        bits = _bits(part)
        if bits > _COMPRESSIBLE_BITS or not part.size:
            return b""
        quick = (
            entropy_code(part)
            if self.planes and level is None and not _repeats(coder, part, bits)
            else None
        )
        return coder.compress(part, level) if quick is None else quick

    def decode(self, stored: Bytes, chunk: Bytes, element: str, rows: Rows | None = None) -> None:
        """Fill `chunk` from its stored form.

        Raises:
            ContainerError: the stored form is not one that `encode` could have made.
        """
        if self.coder is None:
            if stored.size != chunk.size:
                raise ContainerError(f"{stored.size} bytes stored, expected {chunk.size}")
            np.copyto(chunk, stored)
            return
        widths = _plane_widths(element) if self.planes else [1]
        sizes = [chunk.size // sum(widths) * width for width in widths]
        parts = _read_parts(stored, sizes, self.coder)
        if self.planes and len(parts) > 1:
            _join(parts, chunk, element)
        else:
            np.copyto(chunk, parts[0])


def _read_parts(stored: Bytes, sizes: Sequence[int], coder: Coder) -> list[Bytes]:
    position = 4 * len(sizes)
    if stored.size < position:
        raise ContainerError(f"{stored.size} bytes stored, expected at least {position}")
    parts = []
    for word, size in zip(struct.unpack_from(f"<{len(sizes)}I", stored.data), sizes, strict=True):
        length = word & ~CODED
        part = stored[position : position + length]
        position += length
        if part.size != length or (not word & CODED and length != size):
            raise ContainerError(f"a part of {length} bytes where {size} were expected")
        parts.append(coder.decompress(part, size) if word & CODED else part)
    if stored[position:].any():
        raise ContainerError("bytes after the last part that are not padding")
    return parts


def _bits(part: Bytes) -> float:
    """Return how many bits each byte carries, estimated from a sample: 8 are noise, 0 always the
    same. Few bytes count as 0.
    """
    sample = part[:: max(1, part.size // _SAMPLES)]
    if sample.size < _SAMPLES // 4:
        return 0.0
    counts = np.bincount(sample)
    return math.log2(sample.size) - float(counts @ np.log2(np.maximum(counts, 1))) / sample.size


def _repeats(coder: Coder, part: Bytes, bits: float) -> bool:
    """Tell whether a search for repetitions gains on codes alone, from a piece of the middle; of
    small parts: always.
    """
    if bits < _REPETITIVE_BITS or part.size < 4 * _PROBE:
        return True
    middle = part[part.size // 2 :][:_PROBE]
    return len(coder.compress(middle, None)) < _WORTH_SEARCH * bits / 8 * _PROBE


# Planes: the bytes of all numbers that belong together, side by side; the most significant first.


def _plane_widths(element: str) -> list[int]:
    """Return how many bytes of each number go into each plane."""
    element = SCALAR_OF.get(element, element)
    return [1, 3] if element == "float32" else [1] * ITEM_BYTES[element]


def _split(chunk: Bytes, element: str, scratch: Bytes) -> list[Bytes]:
    widths = _plane_widths(element)
    if len(widths) == 1:
        return [chunk]
    count, width = chunk.size // sum(widths), sum(widths)
    if widths == [1, 3]:
        top, rest = scratch[:count], scratch[count : chunk.size]
        _take_top_bytes(chunk, top)
        (_drop_top_bytes if _writes_in_order() else _drop_top_bytes_apart)(chunk, rest)
        return [top, rest]
    planes = scratch[: chunk.size].reshape(width, count)
    np.copyto(planes, chunk.reshape(count, width).T[::-1])
    return list(planes)


def _take_top_bytes(chunk: Bytes, top: Bytes) -> None:
    """Put the top bytes of all 4-byte numbers side by side.

    Each is the lowest of the four that begin with it, and NumPy narrows numbers faster than it
    picks bytes. Only the last has no three behind it.
    """
    np.copyto(top[:-1], _strided(chunk[3:], "<u4", 4, top.size - 1), casting="unsafe")
    top[-1:] = chunk[-1:]


def _drop_top_bytes(chunk: Bytes, rest: Bytes) -> None:
    """Put the lower three bytes of every 4-byte number side by side.

    Four bytes are written where three belong: the fourth is then overwritten by the next number.
    Only the last has no next. Five times as fast as copying the bytes apart, and right only if
    NumPy goes from the first to the last.
    """
    np.copyto(_strided(rest, "<u4", 3, chunk.size // 4 - 1), chunk.view("<u4")[:-1])
    rest[-3:] = chunk[-4:-1]


def _drop_top_bytes_apart(chunk: Bytes, rest: Bytes) -> None:
    """Do the same, whatever the order in which NumPy copies."""
    np.copyto(rest[2::3], chunk[2::4])
    np.copyto(_strided(rest, "<u2", 3, chunk.size // 4), chunk.view("<u2")[0::2])


@cache
def _writes_in_order() -> bool:
    """Tell whether this NumPy copies a row from its first element to its last: all do so far, none
    promises it.
    """
    # all bytes differ from their neighbours' somewhere
    numbers = np.arange(1 << 18, dtype="<u4") * np.uint32(2654435761)
    chunk = numbers.view(np.uint8)
    fast, safe = np.empty(chunk.size // 4 * 3, np.uint8), np.empty(chunk.size // 4 * 3, np.uint8)
    _drop_top_bytes(chunk, fast)
    _drop_top_bytes_apart(chunk, safe)
    return np.array_equal(fast, safe)


def _join(parts: Sequence[Bytes], chunk: Bytes, element: str) -> None:
    widths = _plane_widths(element)
    count, width = chunk.size // sum(widths), sum(widths)
    if widths == [1, 3]:
        # Four bytes are read where three belong together: the fourth is then overwritten by the top
        # byte. Only the last number has no fourth byte to read.
        top, rest = parts
        np.copyto(chunk.view("<u4")[:-1], _strided(rest, "<u4", 3, count - 1))
        chunk[-4:-1] = rest[-3:]
        np.copyto(chunk[3::4], top)
        return
    for byte, part in enumerate(parts):
        np.copyto(chunk[width - 1 - byte :: width], part)


def _strided(data: Bytes, dtype: str, stride: int, count: int) -> np.ndarray[Any, Any]:
    """Return a view of numbers that begin `stride` bytes after one another."""
    return np.ndarray((count,), dtype, data, 0, (stride,))


CODECS: dict[str, Codec | RowCodec] = {
    codec.name: codec
    for codec in (
        Codec("raw", None),
        Codec("lz4", LZ4),
        Codec("zstd", ZSTD, default_level=1),
        Codec("planes-zstd", ZSTD, planes=True),
        RowCodec("rows-zstd"),
        RowCodec("time-delta-zstd", differences=True),
    )
}


def find_codec(name: str) -> Codec | RowCodec:
    """Return a codec by name.

    Raises:
        ConfigError: there is no such codec; the message names the nearest.
    """
    if name not in CODECS:
        raise ConfigError(
            f"codec {name!r} is unknown; there are {', '.join(CODECS)}.{nearest_name(name, CODECS)}"
        )
    return CODECS[name]
