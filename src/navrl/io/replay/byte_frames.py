"""What the frame codecs `rows` and `lz4` share: frames as bytes, each decoded by itself."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from navrl.errors import ReplayError
from navrl.io.replay.frame_codec import (
    Array,
    ChunkedFrameCodec,
    ChunkLayout,
    FrameChunks,
    FrameRead,
    Split,
)
from navrl.io.replay.frame_kernels import decode_bytes, encode_bytes, first_bad_chunk, scratch_bytes

__all__ = ["ByteFrameCodec"]


class ByteFrameCodec(ChunkedFrameCodec):
    """Encodes and decodes byte frames with the compiled kernels of one format."""

    kernels: int  # ROWS or LZ4 of `frame_kernels`

    @abstractmethod
    def functions(self) -> Array | None:
        """Return the C functions that the kernels call; None where they cannot be reached."""

    def encode(self, layout: ChunkLayout, chunks: FrameChunks, target: Array) -> Array:
        """Write chunks into `target`, one behind the other, and return their sizes."""
        functions = self.functions()
        if functions is None:
            return self.encode_in_python(layout, chunks, target)
        sizes, scratch = np.zeros(len(chunks.starts), np.int64), self._scratch(layout)
        encode_bytes(
            self.kernels,
            chunks.frames.ctypes.data,
            layout.kind.nbytes,
            chunks.starts,
            chunks.counts,
            chunks.stride,
            layout.size,
            self.parameter,
            target.ctypes.data,
            sizes,
            self.bound(layout),
            scratch.ctypes.data,
            functions,
        )
        return sizes

    def decode(self, layout: ChunkLayout, read: FrameRead, split: Split) -> None:
        """Fill `read.out` and `read.following`."""
        functions = self.functions()
        if functions is None:
            self.decode_in_python(layout, read)
            return

        def work(begin: int, end: int) -> None:
            scratch = self._scratch(layout)
            whole = decode_bytes(
                self.kernels,
                read.indices,
                begin,
                end,
                read.paired,
                read.ring,
                read.stage.ctypes.data,
                read.addresses,
                read.out.ctypes.data,
                read.following.ctypes.data,
                layout.kind.nbytes,
                self.parameter,
                scratch.ctypes.data,
                functions,
            )
            if not whole:
                raise ReplayError(
                    "a stored frame is damaged: the state that was loaded is, or other code has "
                    "overwritten the memory of the store; load another state"
                )

        split(work, len(read.indices), read.out.nbytes)

    def check(self, layout: ChunkLayout, blobs: Array, sizes: Array, counts: Array) -> int:
        """Return the number of the first chunk that cannot be decoded safely, or -1."""
        nbytes, address = layout.kind.nbytes, blobs.ctypes.data
        return int(first_bad_chunk(self.kernels, address, sizes, counts, nbytes, 1, layout.size))

    def encode_in_python(self, layout: ChunkLayout, chunks: FrameChunks, target: Array) -> Array:
        """Do what `encode` does, without the C functions."""
        raise NotImplementedError

    def decode_in_python(self, layout: ChunkLayout, read: FrameRead) -> None:
        """Do what `decode` does, without the C functions."""
        raise NotImplementedError

    def _scratch(self, layout: ChunkLayout) -> Array:
        size = scratch_bytes(self.kernels, layout.kind.nbytes, self.parameter)
        return np.empty(size, np.uint8)
