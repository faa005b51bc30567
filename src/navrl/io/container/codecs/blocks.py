"""The codecs `lz4` and `zstd`: a chunk as one compressed block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.io.container.codecs.chunk_parts import StoredParts, store_parts
from navrl.io.container.codecs.codec import Bytes, ChunkCodec, register
from navrl.io.container.codecs.compressors import LZ4, ZSTD, Compressor
from navrl.io.container.codecs.entropy import INCOMPRESSIBLE_BITS, bits_per_byte

__all__ = ["BlockCodec"]


@dataclass(frozen=True)
class BlockCodec(ChunkCodec):
    """Compresses a chunk in one piece; noise is stored as it is."""

    name: str
    compressor: Compressor
    default_level: int | None = None

    def encode(self, chunk: Bytes, element: str, level: int | None, scratch: Bytes) -> list[Any]:
        """Return the chunk as one part."""
        compressed: Any = b""
        if chunk.size and bits_per_byte(chunk) <= INCOMPRESSIBLE_BITS:
            compressed = self.compressor.compress(
                chunk, self.default_level if level is None else level
            )
        return store_parts(chunk.size, [(chunk, compressed)])

    def decode(self, stored: Bytes, chunk: Bytes, element: str) -> None:
        """Fill `chunk` from the one part."""
        parts = StoredParts(stored, 1).read([0], [chunk.size], self.compressor.decompress_each)
        np.copyto(chunk, parts[0])


register(BlockCodec("lz4", LZ4))
register(BlockCodec("zstd", ZSTD, default_level=1))
