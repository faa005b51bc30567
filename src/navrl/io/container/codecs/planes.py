"""The codec `planes-zstd`, the default: numbers split into byte planes, each compressed by itself.

The top bytes (sign and exponent) of trained weights take few values and shrink to a third. The low
bits of the mantissa are noise: no compressor can shrink them, and none should spend time on them.

The splitting runs inside NumPy and the coding inside zstd, without the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from navrl.io.container.codecs.chunk_parts import StoredParts, store_parts
from navrl.io.container.codecs.codec import DEFAULT_CODEC, Bytes, ChunkCodec, register
from navrl.io.container.codecs.compressors import ZSTD, compress_all
from navrl.io.container.codecs.entropy import INCOMPRESSIBLE_BITS, bits_per_byte
from navrl.io.container.codecs.libzstd import entropy_code
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF

__all__ = ["PlanesCodec"]

# Parts whose bytes carry less than this are searched for matches at once: an entropy code takes at
# least one bit a byte.
_REPETITIVE_BITS = 1.0
_PROBE = 1 << 14  # bytes of a part that are searched, to find out whether the rest is worth it
_WORTH_SEARCH = 0.9  # of the size that an entropy code alone would have


@dataclass(frozen=True)
class PlanesCodec(ChunkCodec):
    """Compresses the byte planes of a chunk one by one with zstd."""

    name: str = DEFAULT_CODEC

    def encode(self, chunk: Bytes, element: str, level: int | None, scratch: Bytes) -> list[Any]:
        """Return the planes as parts, most significant first; some are views of `scratch`."""
        planes = _split(chunk, element, scratch)
        return store_parts(chunk.size, [(plane, _compress(plane, level)) for plane in planes])

    def encode_all(
        self, chunks: Sequence[Bytes], element: str, level: int | None, scratch: Bytes
    ) -> list[list[Any]]:
        """Return the planes of each chunk; chunks of float32 are split and compressed together."""
        if len(chunks) < 2 or _plane_widths(element) != [1, 3]:
            return super().encode_all(chunks, element, level, scratch)
        joined = np.frombuffer(b"".join(cast("Sequence[bytes]", chunks)), np.uint8)
        top, rest = _split(joined, element, scratch)
        ends = list(accumulate((chunk.size // 4 for chunk in chunks), initial=0))
        tops = [top[start:end] for start, end in pairwise(ends)]
        rests = [rest[3 * start : 3 * end] for start, end in pairwise(ends)]
        return [
            store_parts(chunk.size, [(one, compressed), (other, _compress(other, level))])
            for chunk, one, compressed, other in zip(
                chunks, tops, compress_all(tops, level), rests, strict=True
            )
        ]

    def decode(self, stored: Bytes, chunk: Bytes, element: str) -> None:
        """Fill `chunk` from its planes."""
        widths = _plane_widths(element)
        sizes = [chunk.size // sum(widths) * width for width in widths]
        planes = StoredParts(stored, len(sizes)).read(
            range(len(sizes)), sizes, ZSTD.decompress_each
        )
        if len(planes) > 1:
            _join(planes, chunk, element)
        else:
            np.copyto(chunk, planes[0])


def _compress(plane: Bytes, level: int | None) -> Any:
    """Return the compressed form of a plane; nothing if it is not worth having."""
    bits = bits_per_byte(plane)
    if bits > INCOMPRESSIBLE_BITS or not plane.size:
        return b""
    if level is None and not _has_matches(plane, bits):
        coded = entropy_code(plane)
        if coded is not None:
            return coded
    return ZSTD.compress(plane, level)


def _has_matches(plane: Bytes, bits: float) -> bool:
    """Return whether searching for matches beats an entropy code, on a piece of the middle.

    Small planes are always searched.
    """
    if bits < _REPETITIVE_BITS or plane.size < 4 * _PROBE:
        return True
    middle = plane[plane.size // 2 :][:_PROBE]
    return len(ZSTD.compress(middle, None)) < _WORTH_SEARCH * bits / 8 * _PROBE


def _plane_widths(element: str) -> list[int]:
    """Return how many bytes of each number go into each plane, most significant first."""
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

    Read as a 4-byte number from its top byte on, the top byte is the lowest: NumPy narrows numbers
    faster than it picks bytes. Only the last number has no three bytes behind its top byte.
    """
    np.copyto(top[:-1], _strided(chunk[3:], "<u4", 4, top.size - 1), casting="unsafe")
    top[-1:] = chunk[-1:]


def _drop_top_bytes(chunk: Bytes, rest: Bytes) -> None:
    """Put the lower three bytes of every 4-byte number side by side.

    Four bytes are written where three belong; the next number overwrites the fourth. Only the last
    has no next. Five times as fast as copying the bytes separately, and correct only if NumPy
    copies from the first element to the last.
    """
    np.copyto(_strided(rest, "<u4", 3, chunk.size // 4 - 1), chunk.view("<u4")[:-1])
    rest[-3:] = chunk[-4:-1]


def _drop_top_bytes_apart(chunk: Bytes, rest: Bytes) -> None:
    """Do the same, correct whatever the order in which NumPy copies."""
    np.copyto(rest[2::3], chunk[2::4])
    np.copyto(_strided(rest, "<u2", 3, chunk.size // 4), chunk.view("<u2")[0::2])


@cache
def _writes_in_order() -> bool:
    """Return whether this NumPy copies from first to last: all versions do, none promises it."""
    # in these numbers every byte differs from its neighbour somewhere
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
        # Four bytes are read where three belong together; the top byte then overwrites the fourth.
        # Only the last number has no fourth byte to read.
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


register(PlanesCodec())
