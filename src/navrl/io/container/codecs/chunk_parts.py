"""The stored form of a chunk: a table of part lengths, the parts, and padding.

Each part is compressed, or stored as it is where compression gains nothing. Its length is a 32-bit
word, whose top bit (`COMPRESSED`) says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from navrl.errors import ContainerError
from navrl.io.container.codecs.codec import Bytes

__all__ = [
    "COMPRESSED",
    "MAX_CHUNK_BYTES",
    "MAX_EXPANSION",
    "StoredParts",
    "padding_for",
    "store_parts",
]

# decompresses parts to these sizes
Decompress = Callable[[Sequence[Bytes], Sequence[int]], Sequence[Bytes]]

COMPRESSED = 1 << 31  # the flag in the word of a part

MAX_CHUNK_BYTES = 1 << 24

# A chunk is stored in at least this fraction of its bytes, so that a small file can never claim
# much memory.
MAX_EXPANSION = 1024


def padding_for(size: int, stored: int) -> list[bytes]:
    """Return the zero bytes that a chunk of `size`, stored in `stored` bytes, is padded with."""
    missing = -(-size // MAX_EXPANSION) - stored
    return [bytes(missing)] if missing > 0 else []


def store_parts(size: int, parts: Iterable[tuple[Bytes, Any]]) -> list[Any]:
    """Return the buffers of a chunk of `size` bytes: for each part, itself and its compressed form.

    The compressed form may be empty: the part is then stored as it is.
    """
    words: list[int] = []
    buffers: list[Any] = []
    for part, compressed in parts:
        pays = 0 < len(compressed) < part.size
        buffers.append(compressed if pays else part)
        words.append(COMPRESSED | len(compressed) if pays else part.size)
    stored = 4 * len(words) + sum(word & ~COMPRESSED for word in words)
    return [np.array(words, "<u4"), *buffers, *padding_for(size, stored)]


class StoredParts:
    """The parts of a stored chunk, each by its number.

    Raises:
        ContainerError: the lengths do not add up to the stored bytes, or the padding is not zero.
    """

    def __init__(self, stored: Bytes, count: int) -> None:
        table = 4 * count
        if stored.size < table:
            raise ContainerError(f"{stored.size} bytes stored, expected at least {table}")
        self._stored = stored
        self._words = stored[:table].view("<u4")
        self._ends = table + np.cumsum(self._words & np.uint32(COMPRESSED - 1), dtype=np.int64)
        end = int(self._ends[-1])
        if end > stored.size or stored[end:].any():
            raise ContainerError(
                f"{stored.size} bytes stored, expected parts of {end} bytes and zeros behind them"
            )

    def read(
        self, numbers: Sequence[int], sizes: Sequence[int], decompress: Decompress
    ) -> list[Bytes]:
        """Return the parts with these numbers, decompressed; they must have these sizes."""
        words, ends = self._words[numbers].tolist(), self._ends[numbers].tolist()
        parts = [
            self._stored[end - (word & ~COMPRESSED) : end]
            for word, end in zip(words, ends, strict=True)
        ]
        packed = [place for place, word in enumerate(words) if word & COMPRESSED]
        found = decompress([parts[place] for place in packed], [sizes[place] for place in packed])
        for place, part in zip(packed, found, strict=True):
            parts[place] = part
        for part, size in zip(parts, sizes, strict=True):
            if part.size != size:
                raise ContainerError(f"a part of {part.size} bytes where {size} were expected")
        return parts
