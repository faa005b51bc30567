"""The abstract frame codec: how the frames of one key are kept in memory, and read one by one."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.io.container.codecs import Codec, register
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF

__all__ = [
    "RAW_FRAMES",
    "Array",
    "ChunkLayout",
    "ChunkedFrameCodec",
    "FrameChunks",
    "FrameCodec",
    "FrameRead",
    "Kind",
    "RawFrames",
    "Split",
]

Array = np.ndarray[Any, np.dtype[Any]]
# calls a function on ranges of the rows, in threads: split(work, rows, bytes)
Split = Callable[[Callable[[int, int], Any], int, int], None]


@dataclass(frozen=True)
class Kind:
    """What one frame of a key is: element type and shape."""

    element: str
    shape: tuple[int, ...]

    @property
    def word(self) -> int:
        """Bytes of the integers that a frame is stored as."""
        return ITEM_BYTES[SCALAR_OF.get(self.element, self.element)]

    @property
    def features(self) -> int:
        """How many such integers a frame has."""
        return math.prod(self.shape) * ITEM_BYTES[self.element] // self.word

    @property
    def nbytes(self) -> int:
        """Bytes of a frame."""
        return self.features * self.word


@dataclass(frozen=True)
class ChunkLayout:
    """What a chunk holds: frames of one kind, `size` of them."""

    kind: Kind
    size: int


@dataclass(frozen=True)
class FrameChunks:
    """Frames to be encoded: chunk i holds `counts[i]` of them, from `starts[i]` on."""

    frames: Array  # (n, features)
    starts: Array  # (chunks,) int64
    counts: Array  # (chunks,) int64
    stride: int  # from one frame of a chunk to the next


@dataclass(frozen=True)
class FrameRead:
    """Frames to be decoded into a batch."""

    indices: Array  # (n,) int64, of frames in the ring
    paired: Array  # (n,) uint8, 1 where the frame that follows is wanted too
    ring: Array  # capacity, frames of a chunk, streams, the open block, its frames in the stage
    stage: Array  # frames of the open block, as they are
    addresses: Array  # of all chunks
    out: Array  # (n, features), filled with the frames
    following: Array  # (n, features), filled where paired


class FrameCodec(Codec):
    """One way to keep the frames of a key."""

    family = "frame"
    parameter: int = 0  # a setting chosen from the frames; its meaning is the codec's

    def describe(self) -> dict[str, Any]:
        """Return the codec as a saved state names it."""
        return {**super().describe(), "parameter": self.parameter}

    def fitted(self, kind: Kind, parameter: int | None = None) -> FrameCodec:
        """Return the codec set up for frames of a kind, with a saved parameter or its own choice.

        Raises:
            ConfigError: the codec is not for such frames.
        """
        return self

    def candidates(self, kind: Kind) -> list[ChunkedFrameCodec]:
        """Return the setups that are worth a trial on frames of a kind."""
        return []


@dataclass(frozen=True)
class RawFrames(FrameCodec):
    """Keeps frames as they are; any of them can be rewritten in place."""

    name: str = "raw"


class ChunkedFrameCodec(FrameCodec):
    """Compresses chunks of successive frames, each frame an array of integers, (features,)."""

    @abstractmethod
    def bound(self, layout: ChunkLayout) -> int:
        """Return the most bytes that a chunk can take."""

    @abstractmethod
    def encode(self, layout: ChunkLayout, chunks: FrameChunks, target: Array) -> Array:
        """Write chunks into `target`, one behind the other, and return their sizes."""

    @abstractmethod
    def decode(self, layout: ChunkLayout, read: FrameRead, split: Split) -> None:
        """Fill `read.out` and `read.following`."""

    @abstractmethod
    def check(self, layout: ChunkLayout, blobs: Array, sizes: Array, counts: Array) -> int:
        """Return the number of the first chunk that cannot be decoded safely, or -1."""


RAW_FRAMES = register(RawFrames())
