"""The frame codec `rows`: grids and images of bytes, each row predicted by the row above it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from navrl.errors import ConfigError
from navrl.io.container.codecs import register
from navrl.io.replay import rows_kernels
from navrl.io.replay.byte_frames import ByteFrameCodec
from navrl.io.replay.frame_codec import Array, ChunkedFrameCodec, ChunkLayout, Kind
from navrl.io.replay.frame_kernels import ROWS

__all__ = ["ROWS_CODEC", "RowsCodec"]

_SHORTEST_ROW = 8  # bytes; the kernels work on eight at once


@dataclass(frozen=True)
class RowsCodec(ByteFrameCodec):
    """Stores a byte by its difference to the one above it; `parameter` is the bytes of a row."""

    name: str = "rows"
    parameter: int = 0
    kernels: int = ROWS

    def fitted(self, kind: Kind, parameter: int | None = None) -> RowsCodec:
        """Return the codec for frames of a kind, with a row length that fits them.

        Raises:
            ConfigError: the frames are not bytes, or have no rows of at least 8.
        """
        lengths = row_lengths(kind) if parameter is None else [parameter]
        longest = max(_SHORTEST_ROW, kind.nbytes)
        if kind.word != 1 or not lengths or not _SHORTEST_ROW <= lengths[0] <= longest:
            rows = "" if parameter is None else f" with rows of {parameter} bytes"
            raise ConfigError(
                f"codec 'rows' is for frames of bytes with rows of at least {_SHORTEST_ROW}; found "
                f"{kind.element} {kind.shape}{rows}; use 'delta' or 'lz4'"
            )
        return replace(self, parameter=lengths[0])

    def candidates(self, kind: Kind) -> list[ChunkedFrameCodec]:
        """Return itself with every row length that the shape suggests."""
        return [replace(self, parameter=length) for length in row_lengths(kind)]

    def bound(self, layout: ChunkLayout) -> int:
        """Return the most bytes that a chunk can take."""
        return rows_kernels.chunk_bound(layout.kind.nbytes, layout.size)

    def functions(self) -> Array:
        """Return a table without functions: the kernels call none."""
        return np.zeros(1, np.int64)


def row_lengths(kind: Kind) -> list[int]:
    """Return the distances at which a byte may have another above it, shortest first.

    Those are a row, and for images with channels a row of pixels.
    """
    if kind.word != 1 or len(kind.shape) < 2:
        return []
    lengths = {
        kind.shape[-1],
        kind.shape[-1] * kind.shape[-2] if len(kind.shape) > 2 else kind.shape[-1],
    }
    return sorted(length for length in lengths if _SHORTEST_ROW <= length <= kind.nbytes // 2)


ROWS_CODEC = register(RowsCodec())
