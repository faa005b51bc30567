"""The frame codec `lz4`: anything that repeats; the first frame of a chunk is the dictionary."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import lz4.block
import numpy as np

from navrl.io.container.codecs import register
from navrl.io.replay.byte_frames import ByteFrameCodec
from navrl.io.replay.frame_codec import (
    Array,
    ChunkedFrameCodec,
    ChunkLayout,
    FrameChunks,
    FrameRead,
    Kind,
)
from navrl.io.replay.frame_kernels import LZ4
from navrl.io.replay.liblz4 import lz4_functions

__all__ = ["LZ4_CODEC", "Lz4FrameCodec"]

_SMALLEST = 256  # bytes of a frame; smaller ones have little to repeat


@dataclass(frozen=True)
class Lz4FrameCodec(ByteFrameCodec):
    """Compresses every frame as an lz4 block, with the first frame of the chunk as dictionary.

    Where the lz4 wheel hides its C functions, its Python functions make the same chunks, slower.
    """

    name: str = "lz4"
    kernels: int = LZ4

    def candidates(self, kind: Kind) -> list[ChunkedFrameCodec]:
        """Return itself, unless the frames are small."""
        return [self] if kind.nbytes >= _SMALLEST else []

    def bound(self, layout: ChunkLayout) -> int:
        """Return the most bytes that a chunk can take, as LZ4_compressBound says."""
        nbytes = layout.kind.nbytes
        return layout.size * (4 + nbytes + nbytes // 255 + 16) + 16

    def functions(self) -> Array | None:
        """Return the addresses of liblz4's functions; None where the wheel hides them."""
        return lz4_functions()

    def encode_in_python(self, layout: ChunkLayout, chunks: FrameChunks, target: Array) -> Array:
        """Do what `encode` does, with lz4's Python functions."""
        rows = chunks.frames.view(np.uint8)
        sizes: list[int] = []
        for start, count in zip(chunks.starts.tolist(), chunks.counts.tolist(), strict=True):
            chosen = [rows[start + t * chunks.stride].tobytes() for t in range(count)]
            coded = [lz4.block.compress(chosen[0], store_size=False)]
            coded += [
                lz4.block.compress(frame, store_size=False, dict=chosen[0]) for frame in chosen[1:]
            ]
            ends = np.cumsum([len(part) for part in coded]).tolist()
            table = np.array(ends + [ends[-1]] * (layout.size - count), np.uint32)
            blob = table.tobytes() + b"".join(coded)
            target[sum(sizes) :][: len(blob)] = np.frombuffer(blob, np.uint8)
            sizes.append(len(blob))
        return np.array(sizes, np.int64)

    def decode_in_python(self, layout: ChunkLayout, read: FrameRead) -> None:
        """Do what `decode` does, with lz4's Python functions."""
        stage, out, following = (
            rows.view(np.uint8) for rows in (read.stage, read.out, read.following)
        )
        capacity, size, streams, opened, staged = read.ring.tolist()
        pairs = zip(read.indices.tolist(), read.paired.tolist(), strict=True)
        for row, (first, pair) in enumerate(pairs):
            wanted = [(out, first), (following, (first + streams) % capacity)]
            for rows, index in wanted[: 2 if pair else 1]:
                block, place = divmod(index, size * streams)
                if block == opened and place < staged:
                    rows[row] = stage[place]
                else:
                    address = int(read.addresses[block * streams + place % streams])
                    frame = _frame_at(address, size, place // streams, layout.kind.nbytes)
                    rows[row] = np.frombuffer(frame, np.uint8)


def _frame_at(address: int, size: int, t: int, nbytes: int) -> bytes:
    """Return frame `t` of the chunk of `size` frames at an address."""
    ends = list((ctypes.c_uint32 * size).from_address(address))
    begin = address + 4 * size
    first: bytes = lz4.block.decompress(ctypes.string_at(begin, ends[0]), uncompressed_size=nbytes)
    if t == 0:
        return first
    block = ctypes.string_at(begin + ends[t - 1], ends[t] - ends[t - 1])
    frame: bytes = lz4.block.decompress(block, uncompressed_size=nbytes, dict=first)
    return frame


LZ4_CODEC = register(Lz4FrameCodec())
