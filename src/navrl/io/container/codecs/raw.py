"""The codec `raw`: the bytes as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.errors import ContainerError
from navrl.io.container.codecs.codec import Bytes, ChunkCodec, register

__all__ = ["RAW", "RawCodec"]


@dataclass(frozen=True)
class RawCodec(ChunkCodec):
    """Stores a chunk as it is."""

    name: str = "raw"

    def encode(self, chunk: Bytes, element: str, level: int | None, scratch: Bytes) -> list[Any]:
        """Return the chunk itself."""
        return [chunk]

    def decode(self, stored: Bytes, chunk: Bytes, element: str) -> None:
        """Copy the stored bytes, which must be as many as the chunk has."""
        if stored.size != chunk.size:
            raise ContainerError(f"{stored.size} bytes stored, expected {chunk.size}")
        np.copyto(chunk, stored)


RAW = register(RawCodec())
