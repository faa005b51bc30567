"""How the frames of one key are kept: as they are, or as chunks of one of three codecs, chosen by
what they save.

`raw` keeps frames as they are; `delta` is for numbers that change little from frame to frame;
`rows` for grids and images of bytes; `lz4` for anything that repeats. `Rounded(step)` is lossy and
only ever used when it is asked for.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import lz4.block
import numpy as np

from navrl.errors import ConfigError, ReplayError, nearest_name
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF
from navrl.io.container.words import lz4_functions
from navrl.io.replay import delta_codec, rows_codec
from navrl.io.replay.frame_kernels import (
    LZ4,
    ROWS,
    decode_bytes,
    decode_delta,
    encode_bytes,
    encode_delta,
    scratch_bytes,
    sizes_of_chunks,
)

__all__ = [
    "CODEC_NAMES",
    "ChunkCodec",
    "Kind",
    "Rounded",
    "choose_codec",
    "find_codec",
    "given_codec",
    "rounded_keys",
]

Array = np.ndarray[Any, np.dtype[Any]]
# calls a function on ranges of the rows, in threads
Split = Callable[[Callable[[int, int], Any], int, int], None]

WORTH = 0.87  # a codec has to save this much, or frames are kept as they are
CODEC_NAMES = ("raw", "delta", "rows", "lz4")


@dataclass(frozen=True)
class Kind:
    """What one frame of a key is: element type and shape."""

    element: str
    shape: tuple[int, ...]

    @property
    def word(self) -> int:
        """Bytes of the whole numbers that a frame is read as."""
        return ITEM_BYTES[SCALAR_OF.get(self.element, self.element)]

    @property
    def features(self) -> int:
        """How many such numbers a frame has."""
        return math.prod(self.shape) * ITEM_BYTES[self.element] // self.word

    @property
    def nbytes(self) -> int:
        """Bytes of a frame."""
        return self.features * self.word


@dataclass(frozen=True)
class Rounded:
    """Numbers rounded to multiples of `step`: at most half a step is lost. NaN and infinities are
    kept.
    """

    step: float

    def __post_init__(self) -> None:
        if not (isinstance(self.step, int | float) and 0 < self.step < math.inf):
            raise ConfigError(
                f"Rounded({self.step!r}): expected a positive step, such as Rounded(1e-3)"
            )

    _NAN, _PLUS, _MINUS = -(1 << 31), (1 << 31) - 1, -(1 << 31) + 1

    def to_whole(self, key: str, numbers: Array) -> Array:
        """Return floats as whole numbers of steps."""
        steps = np.rint(numbers.astype(np.float64) / self.step)
        finite = np.isfinite(steps)
        largest = np.abs(steps[finite]).max(initial=0)
        if largest >= -self._MINUS:
            raise ReplayError(
                f"{key}: {largest * self.step:g} is more than 2**31 steps of {self.step:g}; "
                "expected smaller numbers, "
                "or a larger step"
            )
        whole = np.where(finite, steps, 0).astype(np.int32)
        for code, where in (
            (self._NAN, np.isnan),
            (self._PLUS, np.isposinf),
            (self._MINUS, np.isneginf),
        ):
            whole[where(numbers)] = code
        return whole.view(np.uint32)

    def from_whole(self, whole: Array, dtype: Any) -> Array:
        """Return whole numbers of steps as floats."""
        signed = whole.view(np.int32)
        numbers = (signed * self.step).astype(dtype)
        for code, value in (
            (self._NAN, math.nan),
            (self._PLUS, math.inf),
            (self._MINUS, -math.inf),
        ):
            numbers[signed == code] = value
        return numbers


class ChunkCodec(Protocol):
    """One way to store the frames of a chunk. Frames are rows of whole numbers, (n, features)."""

    name: str
    parameter: int

    def bound(self) -> int:
        """Return the bytes that a chunk can take at most."""

    def encode(
        self, frames: Array, starts: Array, counts: Array, stride: int, target: Array
    ) -> Array:
        """Write chunks into `target`, one behind the other; return their sizes."""

    def decode(
        self,
        indices: Array,
        paired: Array,
        ring: Array,
        stage: Array,
        addresses: Array,
        out: Array,
        following: Array,
        split: Split,
    ) -> None:
        """Fill `out` with frames, and `following`, where paired, with those after them."""

    def check(self, blobs: Array, sizes: Array, counts: Array) -> int:
        """Return the number of the first chunk that cannot be decoded safely, or -1."""


class _Delta:
    name, parameter = "delta", 0

    def __init__(self, kind: Kind, size: int) -> None:
        self._kind, self._size = kind, size

    def bound(self) -> int:
        return delta_codec.chunk_bound(self._kind.features, self._kind.word, self._size)

    def encode(
        self, frames: Array, starts: Array, counts: Array, stride: int, target: Array
    ) -> Array:
        sizes = np.zeros(len(starts), np.int64)
        encode_delta(
            frames.ctypes.data,
            self._kind.features,
            self._kind.word,
            starts,
            counts,
            stride,
            self._size,
            target.ctypes.data,
            sizes,
        )
        return sizes

    def decode(
        self,
        indices: Array,
        paired: Array,
        ring: Array,
        stage: Array,
        addresses: Array,
        out: Array,
        following: Array,
        split: Split,
    ) -> None:
        def work(begin: int, end: int) -> None:
            decode_delta(
                indices,
                begin,
                end,
                paired,
                ring,
                stage.ctypes.data,
                addresses,
                out.ctypes.data,
                following.ctypes.data,
                self._kind.features,
                self._kind.word,
            )

        split(work, len(indices), out.nbytes)

    def check(self, blobs: Array, sizes: Array, counts: Array) -> int:
        return int(
            sizes_of_chunks(
                0,
                blobs.ctypes.data,
                sizes,
                counts,
                self._kind.features,
                self._kind.word,
                self._size,
            )
        )


class _Bytes:
    """`rows` and `lz4`: frames as bytes."""

    def __init__(self, name: str, kind: Kind, size: int, stride: int) -> None:
        self.name, self.parameter = name, stride
        self._number = {"rows": ROWS, "lz4": LZ4}[name]
        self._kind, self._size = kind, size

    def bound(self) -> int:
        if self._number == ROWS:
            return rows_codec.chunk_bound(self._kind.nbytes, self._size)
        # as LZ4_compressBound
        return self._size * (4 + self._kind.nbytes + self._kind.nbytes // 255 + 16) + 16

    def encode(
        self, frames: Array, starts: Array, counts: Array, stride: int, target: Array
    ) -> Array:
        sizes = np.zeros(len(starts), np.int64)
        functions = self._functions()
        if functions is None:
            return self._encode_without_functions(
                frames.view(np.uint8), starts, counts, stride, target
            )
        scratch = self._scratch()
        encode_bytes(
            self._number,
            frames.ctypes.data,
            self._kind.nbytes,
            starts,
            counts,
            stride,
            self._size,
            self.parameter,
            target.ctypes.data,
            sizes,
            self.bound(),
            scratch.ctypes.data,
            functions,
        )
        return sizes

    def decode(
        self,
        indices: Array,
        paired: Array,
        ring: Array,
        stage: Array,
        addresses: Array,
        out: Array,
        following: Array,
        split: Split,
    ) -> None:
        functions = self._functions()
        if functions is None:
            rows = (part.view(np.uint8) for part in (stage, out, following))
            self._decode_without_functions(indices, paired, ring, addresses, *rows)
            return

        def work(begin: int, end: int) -> None:
            scratch = self._scratch()
            whole = decode_bytes(
                self._number,
                indices,
                begin,
                end,
                paired,
                ring,
                stage.ctypes.data,
                addresses,
                out.ctypes.data,
                following.ctypes.data,
                self._kind.nbytes,
                self.parameter,
                scratch.ctypes.data,
                functions,
            )
            if not whole:
                raise ReplayError(
                    "a frame cannot be decompressed: the memory of the store was written to by "
                    "somebody else"
                )

        split(work, len(indices), out.nbytes)

    def check(self, blobs: Array, sizes: Array, counts: Array) -> int:
        return int(
            sizes_of_chunks(
                self._number, blobs.ctypes.data, sizes, counts, self._kind.nbytes, 1, self._size
            )
        )

    def _scratch(self) -> Array:
        return np.empty(scratch_bytes(self._number, self._kind.nbytes, self.parameter), np.uint8)

    def _functions(self) -> Array | None:
        return np.zeros(1, np.int64) if self._number == ROWS else lz4_functions()

    # Where the wheel of lz4 hides its C functions, frames go through its Python ones: the same
    # blobs, more slowly.

    def _encode_without_functions(
        self, frames: Array, starts: Array, counts: Array, stride: int, target: Array
    ) -> Array:
        sizes: list[int] = []
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            chosen = [frames[start + t * stride].tobytes() for t in range(count)]
            coded = [lz4.block.compress(chosen[0], store_size=False)]
            coded += [
                lz4.block.compress(frame, store_size=False, dict=chosen[0]) for frame in chosen[1:]
            ]
            ends = np.cumsum([len(part) for part in coded]).tolist()
            table = np.array(ends + [ends[-1]] * (self._size - count), np.uint32)
            blob = table.tobytes() + b"".join(coded)
            target[sum(sizes) :][: len(blob)] = np.frombuffer(blob, np.uint8)
            sizes.append(len(blob))
        return np.array(sizes, np.int64)

    def _decode_without_functions(
        self,
        indices: Array,
        paired: Array,
        ring: Array,
        addresses: Array,
        stage: Array,
        out: Array,
        following: Array,
    ) -> None:
        capacity, size, streams, opened, staged = ring.tolist()
        for row, (first, pair) in enumerate(zip(indices.tolist(), paired.tolist(), strict=True)):
            for rows, index in ((out, first), (following, (first + streams) % capacity))[
                : 2 if pair else 1
            ]:
                block, place = divmod(index, size * streams)
                if block == opened and place < staged:
                    rows[row] = stage[place]
                else:
                    blob = _bytes_at(int(addresses[block * streams + place % streams]), size)
                    rows[row] = np.frombuffer(self._frame(blob, place // streams), np.uint8)

    def _frame(self, blob: tuple[list[int], Callable[[int, int], bytes]], t: int) -> bytes:
        ends, part = blob
        first: bytes = lz4.block.decompress(part(0, ends[0]), uncompressed_size=self._kind.nbytes)
        if t == 0:
            return first
        given = part(ends[t - 1], ends[t])
        whole: bytes = lz4.block.decompress(given, uncompressed_size=self._kind.nbytes, dict=first)
        return whole


def _bytes_at(address: int, size: int) -> tuple[list[int], Callable[[int, int], bytes]]:
    """Return where the frames of an lz4 chunk end, and a function that reads a part of them."""
    ends = list((ctypes.c_uint32 * size).from_address(address))
    begin = address + 4 * size
    return ends, lambda start, end: ctypes.string_at(begin + start, end - start)


def find_codec(name: str, kind: Kind, size: int, parameter: int | None = None) -> ChunkCodec | None:
    """Return a codec by name, for frames of a kind; None is `raw`.

    Raises:
        ConfigError: there is no such codec, or it is not for such frames.
    """
    if name not in CODEC_NAMES:
        raise ConfigError(
            f"codec {name!r} is unknown; there are "
            f"{', '.join(CODEC_NAMES)}.{nearest_name(name, CODEC_NAMES)}"
        )
    if name == "raw" or kind.nbytes == 0:
        return None
    if name == "delta":
        return _Delta(kind, size)
    if name == "lz4":
        return _Bytes(name, kind, size, 0)
    strides = [parameter] if parameter is not None else _row_lengths(kind)
    if kind.word != 1 or not strides:
        raise ConfigError(
            f"codec 'rows' is for frames of bytes with rows of at least 8; found {kind.element} "
            f"{kind.shape}; "
            "use 'delta' or 'lz4'"
        )
    return _Bytes(name, kind, size, strides[0])


def _row_lengths(kind: Kind) -> list[int]:
    """Return by how many bytes a byte may come after the one above it: rows, or rows of pixels with
    several channels.
    """
    if kind.word != 1 or len(kind.shape) < 2:
        return []
    lengths = {
        kind.shape[-1],
        kind.shape[-1] * kind.shape[-2] if len(kind.shape) > 2 else kind.shape[-1],
    }
    return sorted(length for length in lengths if 8 <= length <= kind.nbytes // 2)


def choose_codec(
    kind: Kind, size: int, frames: Array, starts: Array, counts: Array, stride: int
) -> ChunkCodec | None:
    """Return the codec that stores the first chunks in the fewest bytes, or None if none is worth
    it.
    """
    if kind.nbytes < 16 or not len(frames):
        return None
    candidates: list[ChunkCodec] = []
    if kind.word > 1 or kind.features <= 1024:
        candidates.append(_Delta(kind, size))
    candidates += [_Bytes("rows", kind, size, length) for length in _row_lengths(kind)]
    if kind.nbytes >= 256:
        candidates.append(_Bytes("lz4", kind, size, 0))
    raw = int(counts.sum()) * kind.nbytes
    best, smallest = None, raw * WORTH
    for codec in candidates:
        stored = int(
            codec.encode(
                frames, starts, counts, stride, np.empty(codec.bound() * len(starts), np.uint8)
            ).sum()
        )
        if stored < smallest:
            best, smallest = codec, stored * 0.9  # a later, slower one has to be better by a tenth
    return best


def given_codec(codecs: Mapping[str, str | Rounded], key: str) -> str | Rounded | None:
    """Return the codec given for a key; `next/X` takes that of X."""
    return codecs.get(key, codecs.get(key.removeprefix("next/")))


def rounded_keys(
    codecs: Mapping[str, str | Rounded], kinds: Mapping[str, Kind], size: int
) -> dict[str, Rounded]:
    """Return the keys that are to be rounded.

    Raises:
        ConfigError: a codec is given for a key that the frames do not have, or that it is not for.
    """
    unknown = [key for key in codecs if key not in kinds]
    if unknown:
        raise ConfigError(
            f"codecs for {unknown}, which the frames do not have; they have {list(kinds)}"
        )
    found = {}
    for key, kind in kinds.items():
        codec = given_codec(codecs, key)
        if isinstance(codec, Rounded):
            if kind.element not in ("float16", "float32", "float64"):
                raise ConfigError(
                    f"{key}: {codec} is for float16, float32 and float64, found {kind.element}"
                )
            found[key] = codec
        elif codec is not None:
            find_codec(codec, kind, size)
    return found
