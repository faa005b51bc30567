"""The frames of one key in a ring: as they are, or in compressed chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from navrl.io.container.numba_memory import PADDING
from navrl.io.replay.arena import Arena
from navrl.io.replay.frame_codec import (
    RAW_FRAMES,
    Array,
    ChunkedFrameCodec,
    ChunkLayout,
    FrameChunks,
    FrameCodec,
    FrameRead,
    Kind,
    Split,
)
from navrl.io.replay.frame_kernels import copy_chunks

__all__ = ["ChunkColumn", "RawColumn", "Ring", "make_column"]


@dataclass
class Ring:
    """Where frames are: `size` frames of each of `streams` streams form a block.

    The open block is being filled.
    """

    capacity: int
    size: int
    streams: int
    cursor: int = 0  # the index of the next frame
    total: int = 0  # frames ever written

    @property
    def length(self) -> int:
        """How many frames are stored."""
        return min(self.total, self.capacity)

    @property
    def block_frames(self) -> int:
        """Frames of a full block."""
        return self.size * self.streams

    @property
    def blocks(self) -> int:
        """How many blocks there are; the last may be short."""
        return -(-self.capacity // self.block_frames)

    def frames_of(self, block: int) -> int:
        """Return how many frames a block has."""
        return min(self.block_frames, self.capacity - block * self.block_frames)

    def numbers(self) -> Array:
        """Return what the kernels need: capacity, K, N, the open block, and its frames so far."""
        block, staged = divmod(self.cursor, self.block_frames)
        return np.array([self.capacity, self.size, self.streams, block, staged], np.int64)

    def chunks_of(self, first: int, blocks: int) -> tuple[Array, Array, Array]:
        """Return numbers, first frames and frame counts of the chunks of some blocks.

        First frames are counted from that of the first block.
        """
        block = np.repeat(np.arange(blocks), self.streams)
        stream = np.tile(np.arange(self.streams), blocks)
        frames = np.minimum(self.block_frames, self.capacity - (first + block) * self.block_frames)
        counts = np.maximum((frames - stream + self.streams - 1) // self.streams, 0)
        held = counts > 0
        numbers = (first * self.streams + np.arange(blocks * self.streams))[held]
        return numbers, (block * self.block_frames + stream)[held], counts[held]


class RawColumn:
    """Frames as they are; any of them can be rewritten in place."""

    codec = RAW_FRAMES

    def __init__(self, kind: Kind, ring: Ring) -> None:
        self.kind, self.dtype, self._ring = kind, np.dtype(f"u{kind.word}"), ring
        # the kernel allocates this memory when it is written to
        self.frames = np.zeros((ring.capacity, kind.features), self.dtype)

    def read(
        self, indices: Array, paired: Array, out: Array, following: Array, split: Split
    ) -> None:
        """Fill `out` with frames, and `following`, where paired, with those after them."""

        def work(begin: int, end: int) -> None:
            np.take(self.frames, indices[begin:end], axis=0, out=out[begin:end], mode="clip")
            rows = begin + np.flatnonzero(paired[begin:end])
            if len(rows):
                following[rows] = self.frames[
                    (indices[rows] + self._ring.streams) % self._ring.capacity
                ]

        split(work, len(indices), out.nbytes)

    def write(self, indices: Array, words: Array) -> None:
        """Rewrite frames."""
        self.frames[indices] = words

    def nbytes(self) -> int:
        """Return the bytes that have been written to."""
        return self._ring.length * self.kind.nbytes


class ChunkColumn:
    """Frames in compressed chunks; those of the open block in a stage, uncompressed."""

    def __init__(self, kind: Kind, ring: Ring, codec: ChunkedFrameCodec) -> None:
        self.kind, self.dtype, self.codec, self._ring = kind, np.dtype(f"u{kind.word}"), codec, ring
        self.layout = ChunkLayout(kind, ring.size)
        self.arena = Arena(ring.blocks * ring.streams)
        self.stage = np.zeros((ring.block_frames, kind.features), self.dtype)

    def read(
        self, indices: Array, paired: Array, out: Array, following: Array, split: Split
    ) -> None:
        """Fill `out` with frames, and `following`, where paired, with those after them."""
        read = FrameRead(
            indices, paired, self._ring.numbers(), self.stage, self.arena.addresses, out, following
        )
        self.codec.decode(self.layout, read, split)

    def encode(self, block: int, blocks: int, words: Array) -> tuple[Array, Array, Array]:
        """Return numbers, blobs and sizes of the chunks of whole blocks.

        The column itself does not change.
        """
        numbers, starts, counts = self._ring.chunks_of(block, blocks)
        blobs = np.empty(len(numbers) * self.codec.bound(self.layout) + PADDING, np.uint8)
        chunks = FrameChunks(words, starts, counts, self._ring.streams)
        return numbers, blobs, self.codec.encode(self.layout, chunks, blobs)

    def commit(self, numbers: Array, blobs: Array, sizes: Array) -> None:
        """Replace the chunks with these numbers by encoded ones."""
        copy_chunks(blobs.ctypes.data, sizes, self.arena.place(numbers, sizes))

    def write(self, indices: Array, words: Array) -> None:
        """Rewrite frames; their chunks are decoded, changed and encoded again."""
        ring = self._ring
        opened, staged = divmod(ring.cursor, ring.block_frames)
        block, place = np.divmod(indices, ring.block_frames)
        in_stage = (block == opened) & (place < staged)
        self.stage[place[in_stage]] = words[in_stage]
        for changed in np.unique(block[~in_stage]).tolist():
            first = changed * ring.block_frames
            live = np.arange(first, first + ring.frames_of(changed))
            frames = np.empty((len(live), self.kind.features), self.stage.dtype)
            self.read(
                live,
                np.zeros(len(live), np.uint8),
                frames,
                frames,
                lambda work, rows, _: work(0, rows),
            )
            chosen = ~in_stage & (block == changed)
            frames[place[chosen]] = words[chosen]
            self.commit(*self.encode(changed, 1, frames))
        self.arena.compact()

    def nbytes(self) -> int:
        """Return the bytes allocated."""
        return self.arena.nbytes() + self.stage.nbytes


def make_column(kind: Kind, ring: Ring, codec: FrameCodec) -> RawColumn | ChunkColumn:
    """Return an empty column for frames of a kind that keeps them with a codec."""
    if isinstance(codec, ChunkedFrameCodec):
        return ChunkColumn(kind, ring, codec)
    return RawColumn(kind, ring)
