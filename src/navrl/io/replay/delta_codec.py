"""The frame codec `delta`: numbers that change little from frame to frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from navrl.io.container.codecs import register
from navrl.io.replay import delta_kernels
from navrl.io.replay.frame_codec import (
    Array,
    ChunkedFrameCodec,
    ChunkLayout,
    FrameChunks,
    FrameRead,
    Kind,
    Split,
)
from navrl.io.replay.frame_kernels import DELTA, decode_delta, encode_delta, first_bad_chunk

__all__ = ["DELTA_CODEC", "DeltaCodec"]

_MOST_BYTES = 1024  # of one-byte features: larger frames are images, which `rows` stores better


@dataclass(frozen=True)
class DeltaCodec(ChunkedFrameCodec):
    """Stores every feature as bit-packed differences over the frames of a chunk."""

    name: str = "delta"

    def candidates(self, kind: Kind) -> list[ChunkedFrameCodec]:
        """Return itself, unless the frames are images."""
        return [self] if kind.word > 1 or kind.features <= _MOST_BYTES else []

    def bound(self, layout: ChunkLayout) -> int:
        """Return the most bytes that a chunk can take."""
        kind = layout.kind
        return delta_kernels.chunk_bound(kind.features, kind.word, layout.size)

    def encode(self, layout: ChunkLayout, chunks: FrameChunks, target: Array) -> Array:
        """Write chunks into `target`, one behind the other, and return their sizes."""
        sizes = np.zeros(len(chunks.starts), np.int64)
        encode_delta(
            chunks.frames.ctypes.data,
            layout.kind.features,
            layout.kind.word,
            chunks.starts,
            chunks.counts,
            chunks.stride,
            layout.size,
            target.ctypes.data,
            sizes,
        )
        return sizes

    def decode(self, layout: ChunkLayout, read: FrameRead, split: Split) -> None:
        """Fill `read.out` and `read.following`."""

        def work(begin: int, end: int) -> None:
            decode_delta(
                read.indices,
                begin,
                end,
                read.paired,
                read.ring,
                read.stage.ctypes.data,
                read.addresses,
                read.out.ctypes.data,
                read.following.ctypes.data,
                layout.kind.features,
                layout.kind.word,
            )

        split(work, len(read.indices), read.out.nbytes)

    def check(self, layout: ChunkLayout, blobs: Array, sizes: Array, counts: Array) -> int:
        """Return the number of the first chunk that cannot be decoded safely, or -1."""
        kind, address = layout.kind, blobs.ctypes.data
        return int(
            first_bad_chunk(DELTA, address, sizes, counts, kind.features, kind.word, layout.size)
        )


DELTA_CODEC = register(DeltaCodec())
