"""Tensors kept compressed in memory; reading rows decompresses only the chunks they are in.

A message is the same as one array of bytes, to send between machines: a header that describes it,
the chunks, and a checksum. Nothing in it is executed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from navrl.errors import ConfigError, ContainerError
from navrl.io.container.codecs import MAX_EXPANSION, Bytes, ChunkCodec, find_codec
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE, TORCH_DTYPES, tensor_bytes

__all__ = ["ChunkCodec", "CompressedRows", "read_message", "write_message"]

_MAGIC = b"NVRLrows"
_MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class CompressedRows:
    """Rows of equal shape and type in compressed chunks of at most `chunk_rows`.

    Rows are read by place: row r of chunk c has the place `c * chunk_rows + r`. Only the last
    chunk may hold fewer rows, so places are row numbers, except after `joined`.

    >>> import torch
    >>> from navrl.io.replay import CompressedRows
    >>> rows = CompressedRows.compress(torch.arange(200).reshape(100, 2))
    >>> rows.read(torch.tensor([3, 99]))
    tensor([[  6,   7],
            [198, 199]])
    """

    codec: ChunkCodec
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    chunk_rows: int
    counts: np.ndarray[Any, np.dtype[np.int64]]  # rows of each chunk
    ends: np.ndarray[Any, np.dtype[np.int64]]  # where each chunk ends, counted over all pieces
    pieces: tuple[Bytes, ...]  # each with whole chunks; one, unless these are joined rows

    @classmethod
    def compress(
        cls,
        rows: Tensor,
        *,
        codec: ChunkCodec | str = "zstd",
        level: int | None = None,
        chunk_rows: int = 64,
        order: Tensor | None = None,
    ) -> CompressedRows:
        """Compress a tensor of any device along its first dimension.

        With `order`, place p holds row `order[p]`.
        """
        codec = find_codec(codec) if isinstance(codec, str) else codec
        _check_compressible(rows, chunk_rows)
        element = NAME_OF_TORCH_DTYPE[rows.dtype]
        data, number = _bytes_of(rows), rows.shape[0] if order is None else len(order)
        counts = _chunk_counts(number, chunk_rows)
        row_bytes = data.shape[1]
        scratch = np.empty(chunk_rows * row_bytes, np.uint8)
        pieces = []
        for start in range(0, number, chunk_rows) if row_bytes else ():
            # chunk by chunk, because a shuffled copy of everything would double the memory
            chosen = slice(start, start + chunk_rows)
            chunk = data[chosen if order is None else order[chosen].numpy()].reshape(-1)
            buffers = codec.encode(chunk, element, level, scratch[: chunk.size])
            pieces.append(b"".join(bytes(memoryview(buffer)) for buffer in buffers))
        ends = np.cumsum(
            [len(piece) for piece in pieces] if row_bytes else [0] * len(counts), dtype=np.int64
        )
        stored = np.frombuffer(b"".join(pieces), np.uint8)
        return cls(codec, rows.dtype, tuple(rows.shape[1:]), chunk_rows, counts, ends, (stored,))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, uncompressed."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, uncompressed."""
        return int(self.counts.sum()) * self.row_bytes

    @property
    def stored_nbytes(self) -> int:
        """Bytes of all chunks, compressed."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def places(self) -> int:
        """One more than the largest place."""
        return len(self.counts) * self.chunk_rows

    def read(self, places: Tensor | None = None) -> Tensor:
        """Return the rows at these places, (len(places), ...), or all in order.

        Always a new tensor on the CPU.
        """
        if places is None:
            starts = np.arange(len(self.counts)) * self.chunk_rows
            ranges = [
                start + np.arange(count) for start, count in zip(starts, self.counts, strict=True)
            ]
            wanted = np.concatenate([np.zeros(0, np.int64), *ranges])
        else:
            wanted = places.detach().cpu().to(torch.int64).numpy()
        result = np.empty((len(wanted), self.row_bytes), np.uint8)
        if result.size:
            self._fill(result, wanted)
        return _tensor_of(result, self.dtype, (len(wanted), *self.row_shape))

    def _fill(self, result: Bytes, wanted: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        chunks, within = np.divmod(wanted, self.chunk_rows)
        if (
            chunks.min() < 0
            or chunks.max() >= len(self.counts)
            or (within >= self.counts[chunks]).any()
        ):
            raise IndexError(f"a row is out of range; there are {int(self.counts.sum())}")
        order = None if (chunks[1:] >= chunks[:-1]).all() else np.argsort(chunks, kind="stable")
        if order is not None:
            chunks, within = chunks[order], within[order]
        cuts = np.flatnonzero(np.diff(chunks)) + 1
        scratch = np.empty((self.chunk_rows, self.row_bytes), np.uint8)
        for start, stop in zip([0, *cuts], [*cuts, len(chunks)], strict=True):
            number, rows = int(chunks[start]), within[start:stop]
            count = int(self.counts[number])
            straight = (
                order is None and len(rows) == count and bool((rows == np.arange(count)).all())
            )
            chunk = result[start:stop] if straight else scratch[:count]
            self.codec.decode(
                self._stored(number), chunk.reshape(-1), NAME_OF_TORCH_DTYPE[self.dtype]
            )
            if not straight:
                result[slice(start, stop) if order is None else order[start:stop]] = chunk[rows]

    def _stored(self, number: int) -> Bytes:
        start, end = int(self.ends[number - 1]) if number else 0, int(self.ends[number])
        for piece in self.pieces:
            if start < piece.size:
                return piece[start:end]
            start, end = start - piece.size, end - piece.size
        return np.empty(0, np.uint8)

    @staticmethod
    def joined(parts: Sequence[CompressedRows]) -> CompressedRows:
        """Return the chunks of several, one after another; nothing is decompressed or copied."""
        first = parts[0]
        for part in parts[1:]:
            if (part.codec, part.dtype, part.row_shape, part.chunk_rows) != (
                first.codec,
                first.dtype,
                first.row_shape,
                first.chunk_rows,
            ):
                raise ConfigError(
                    "rows of different types, shapes, codecs or chunks cannot be joined"
                )
        before = np.cumsum([0, *(part.stored_nbytes for part in parts[:-1])])
        ends = np.concatenate(
            [part.ends + start for part, start in zip(parts, before, strict=True)]
        )
        counts = np.concatenate([part.counts for part in parts])
        pieces = tuple(piece for part in parts for piece in part.pieces)
        return CompressedRows(
            first.codec, first.dtype, first.row_shape, first.chunk_rows, counts, ends, pieces
        )


def _check_compressible(rows: Tensor, chunk_rows: int) -> None:
    if chunk_rows < 1:
        raise ConfigError(f"chunk_rows is {chunk_rows}; expected at least 1")
    if rows.dtype not in NAME_OF_TORCH_DTYPE or rows.ndim == 0:
        raise ConfigError(
            f"a tensor of {rows.dtype} with {rows.ndim} dimensions cannot be compressed by rows"
        )


def _chunk_counts(number: int, chunk_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    starts = np.arange(0, number, chunk_rows)
    return np.minimum(chunk_rows, number - starts).astype(np.int64)


def _bytes_of(rows: Tensor) -> Bytes:
    """Return the bytes of a tensor, (rows, bytes of a row)."""
    return tensor_bytes(rows).reshape(
        rows.shape[0], math.prod(rows.shape[1:]) * rows.element_size()
    )


def _tensor_of(data: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not data.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data.reshape(-1)).view(dtype).reshape(shape)


# Messages.


def write_message(
    tensor: Tensor,
    *,
    codec: ChunkCodec | str = "zstd",
    level: int | None = None,
    note: Mapping[str, Any] | None = None,
) -> Tensor:
    """Return a tensor as one compressed message, uint8 (length,); `note` is JSON beside it."""
    rows = tensor.reshape(1) if tensor.ndim == 0 else tensor
    whole = _bytes_of(rows)
    chunk_rows = max(1, (1 << 20) // max(1, whole.shape[1]))  # about 1 MB each
    packed = CompressedRows.compress(rows, codec=codec, level=level, chunk_rows=chunk_rows)
    header = {
        "codec": packed.codec.name,
        "element": NAME_OF_TORCH_DTYPE[tensor.dtype],
        "shape": list(tensor.shape),
        "rows": chunk_rows,
        "note": dict(note or {}),
    }
    text = json.dumps(header).encode()
    lengths = np.diff(packed.ends, prepend=0).astype("<u8").tobytes()
    body = b"".join(
        [
            _MAGIC,
            struct.pack("<I", len(text)),
            text,
            lengths,
            *(piece.data for piece in packed.pieces),
        ]
    )
    return torch.frombuffer(bytearray(body + xxhash.xxh3_64_digest(body)), dtype=torch.uint8)


def read_message(
    message: Tensor, *, codec: ChunkCodec | None = None
) -> tuple[Tensor, dict[str, Any]]:
    """Return the tensor of a message and its note.

    `codec` is needed if the message was written with a codec that is not registered.

    Raises:
        ContainerError: this is not a message, or it was damaged or cut short.
    """
    data = message.detach().cpu().contiguous().numpy()
    text, body = _header_and_body(data)
    header = _read_header(text, codec)
    rows_shape, dtype = header.shape or (1,), header.dtype
    most = data.size * MAX_EXPANSION
    claimed = max(rows_shape[0], math.prod(rows_shape) * dtype.itemsize)
    counts = _chunk_counts(rows_shape[0], header.chunk_rows) if claimed <= most else None
    if counts is None or body.size < 8 * len(counts):
        raise ContainerError(
            "a message of compressed rows is too short for the shape that it claims"
        )
    lengths = np.frombuffer(body[: 8 * len(counts)].tobytes(), "<u8").astype(np.int64)
    stored = body[8 * len(counts) :]
    row_bytes = math.prod(rows_shape[1:]) * dtype.itemsize
    if (
        (lengths < 0).any()
        or lengths.sum() != stored.size
        or (counts * row_bytes > lengths * MAX_EXPANSION).any()
    ):
        raise ContainerError(
            "a message of compressed rows has chunks that do not fit the shape that it claims"
        )
    ends = np.cumsum(lengths)
    packed = CompressedRows(
        header.codec, dtype, rows_shape[1:], header.chunk_rows, counts, ends, (stored,)
    )
    return packed.read().reshape(header.shape), header.note


@dataclass(frozen=True)
class _Header:
    codec: ChunkCodec
    dtype: torch.dtype
    shape: tuple[int, ...]
    chunk_rows: int
    note: dict[str, Any]


def _header_and_body(data: Any) -> tuple[bytes, Bytes]:
    """Return the header's text and what follows it, with a checksum that matches."""
    start = len(_MAGIC) + 4
    if (
        data.dtype != np.uint8
        or data.ndim != 1
        or data.size < start + 8
        or data[: len(_MAGIC)].tobytes() != _MAGIC
    ):
        raise ContainerError("not a message of compressed rows: it does not begin like one")
    if xxhash.xxh3_64_digest(data[:-8].data) != data[-8:].tobytes():
        raise ContainerError(
            "a message of compressed rows is damaged or cut short: its checksum does not match"
        )
    (length,) = struct.unpack("<I", data[len(_MAGIC) : start].tobytes())
    return data[start : start + min(length, _MAX_HEADER)].tobytes(), data[start + length : -8]


def _read_header(text: bytes, codec: ChunkCodec | None) -> _Header:
    """Return what a header says; its codec is the one that was given if that has the name."""
    try:
        header = json.loads(text)
        shape, chunk_rows = tuple(map(int, header["shape"])), int(header["rows"])
        dtype, note = TORCH_DTYPES[header["element"]], dict(header["note"])
        if codec is None or codec.name != header["codec"]:
            codec = find_codec(str(header["codec"]))
        if chunk_rows < 1 or any(size < 0 for size in shape):
            raise ValueError(f"{chunk_rows} rows a chunk, shape {shape}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContainerError(
            f"a message of compressed rows has an invalid header: {error}"
        ) from error
    return _Header(codec, dtype, shape, chunk_rows, note)
