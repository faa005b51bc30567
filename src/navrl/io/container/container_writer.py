"""Write a container: named arrays and a JSON document in one file, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash

from navrl.errors import CheckpointError
from navrl.io.container.atomic_files import AtomicFile, MemoryFile
from navrl.io.container.codecs import (
    DEFAULT_CODEC,
    RAW,
    Bytes,
    ChunkCodec,
    RowCodec,
    Rows,
    find_codec,
    plan_rows,
)
from navrl.io.container.index import (
    END_MAGIC,
    FOOTER,
    HEADER,
    MAGIC,
    MAX_INDEX_BYTES,
    VERSION,
    index_checksum,
)
from navrl.io.container.thread_pool import TaskThreads, spare_cores

__all__ = ["ArraySource", "Written", "write_container"]

CHUNK_BYTES = 1 << 21
# While training runs and no caller waits: input and output of a chunk stay in the core's own cache,
# which leaves the memory bandwidth to training.
_CALM_CHUNK_BYTES = 1 << 19
_SMALL = 1 << 12  # arrays below this are stored raw: compression would gain little
_WORTH_THREADS = 4 << 20  # bytes of a file; less is encoded faster than it is handed over


@dataclass(slots=True)
class ArraySource:
    """An array to be written: its name, type and shape, and its bytes."""

    name: str
    element: str
    shape: tuple[int, ...]
    data: Bytes
    codec: str | None = None  # overrides the codec of the file
    # returns a part of the array's bytes, if the data are laid out differently
    cut: Callable[[slice], Bytes] | None = None

    def part(self, where: slice) -> Bytes:
        """Return a part of the bytes."""
        return self.data[where] if self.cut is None else self.cut(where)


@dataclass(frozen=True)
class Written:
    """What a write put on the disk."""

    path: Path
    raw_bytes: int
    stored_bytes: int


def write_container(
    path: str | os.PathLike[str],
    arrays: Sequence[ArraySource],
    document: Mapping[str, Any],
    *,
    codec: str = DEFAULT_CODEC,
    level: int | None = None,
    threads: TaskThreads | None = None,
    into: AtomicFile | MemoryFile | None = None,
) -> Written:
    """Write a container and return its sizes; the file is then on the disk under its name.

    Args:
        path: the destination; an existing file is replaced atomically, at the end.
        arrays: named arrays; names must differ.
        document: JSON values that are stored in the index.
        codec: one of `codecs.CODECS`; small arrays are stored raw. A row codec takes the first two
            axes of an array for environments and steps; arrays without them get zstd.
        level: the compression level; None is the codec's default.
        threads: encode files of 4 MiB and more, as the calling thread does when it has nothing to
            write; None starts one for each other core, at least one.
        into: a file in memory to write to instead; `path` is then only used in errors.

    Raises:
        CheckpointError: the index would be larger than a reader accepts; the file never appears.
    """
    raw_bytes = sum(array.data.size for array in arrays)
    with contextlib.ExitStack() as stack:
        if raw_bytes < _WORTH_THREADS:
            threads = None
        elif threads is None:
            threads = stack.enter_context(TaskThreads(spare_cores(), "navrl-encode"))
        calm = threads is None or threads.resting()
        chunk_bytes = _CALM_CHUNK_BYTES if calm else CHUNK_BYTES
        plans = _plans(arrays, codec, chunk_bytes)
        entries = [_entry(array, plan) for array, plan in zip(arrays, plans, strict=True)]
        encoder = _Encoder(arrays, plans, level, chunk_bytes)
        file: AtomicFile | MemoryFile = into or AtomicFile(path)
        stack.enter_context(file)
        header = HEADER.pack(MAGIC, VERSION, 0)
        unwritten: list[Any] = [header]
        for batch in encoder.batches(threads):
            unwritten += batch.buffers
            if threads is not None:  # a small file is written in one go, at the end
                file.write(unwritten)
                unwritten = []
            _note_chunks(batch, entries)
        file.write(unwritten + _index(path, header, entries, document))
        file.commit()
    return Written(Path(path), raw_bytes, file.size)


def _note_chunks(batch: _Batch, entries: Sequence[dict[str, Any]]) -> None:
    for number, size, checksum in batch.chunks:
        entries[number]["stored"].append(size)
        entries[number]["checksums"].append(f"{checksum:016x}")


def _entry(array: ArraySource, plan: _Plan) -> dict[str, Any]:
    """Return what the index says about an array; the chunks are still missing."""
    return {
        "name": array.name,
        "element": array.element,
        "shape": list(array.shape),
        **plan.fields(),
        "stored": [],
        "checksums": [],
    }


def _index(
    path: str | os.PathLike[str], header: bytes, entries: list[Any], document: Mapping[str, Any]
) -> list[bytes]:
    """Return the index and the footer of a file."""
    content = {"arrays": entries, "document": document}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > MAX_INDEX_BYTES:
        raise CheckpointError(
            f"{path}: an index of {len(text)} bytes, expected at most {MAX_INDEX_BYTES}; nothing "
            "was written. Keep long lists of numbers in tensors, and metadata short"
        )
    return [text, FOOTER.pack(len(text), index_checksum(header, text), END_MAGIC)]


@dataclass(frozen=True)
class _Plan:
    """How one array is stored."""

    codec: ChunkCodec
    chunk_bytes: int = 1 << 20  # of small arrays, which are one chunk
    rows: Rows | None = None

    def fields(self) -> dict[str, Any]:
        """Return what the index says about it."""
        fields = {**self.codec.describe(), "chunk_bytes": self.chunk_bytes}
        return fields if self.rows is None else fields | {"part_rows": self.rows.group}

    def run_bytes(self) -> int:
        """Return the bytes of whole chunks that are encoded at once, CHUNK_BYTES or fewer."""
        return self.chunk_bytes * (max(1, CHUNK_BYTES // self.chunk_bytes) if self.rows else 1)


_SMALL_PLAN = _Plan(RAW)


def _plans(arrays: Sequence[ArraySource], codec: str, chunk_bytes: int) -> list[_Plan]:
    usual = _plan_of(find_codec(codec), chunk_bytes)
    plans = []
    for array in arrays:
        if array.data.size < _SMALL:
            plans.append(_SMALL_PLAN)
            continue
        plan = usual if array.codec is None else _plan_of(find_codec(array.codec), chunk_bytes)
        plans.append(_by_rows(array, plan) if isinstance(plan.codec, RowCodec) else plan)
    return plans


def _plan_of(codec: ChunkCodec, chunk_bytes: int) -> _Plan:
    # raw chunks gain nothing from being smaller
    return _Plan(codec, CHUNK_BYTES if codec == RAW else chunk_bytes)


def _by_rows(array: ArraySource, plan: _Plan) -> _Plan:
    rows = plan_rows(array.shape, array.element)
    if rows is None:
        return _Plan(find_codec("zstd"), plan.chunk_bytes)
    return _Plan(plan.codec, rows.chunk_bytes, rows.rows)


_Piece = tuple[int, slice]  # the number of an array, and the bytes of it that are encoded at once


@dataclass
class _Batch:
    """Encoded chunks: buffers to be written, and array number, size and checksum of each chunk."""

    buffers: list[Any] = field(default_factory=list)
    chunks: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, number: int, buffers: list[Any]) -> int:
        """Add a chunk and return its size."""
        if len(buffers) == 1:
            size, checksum = memoryview(buffers[0]).nbytes, xxhash.xxh3_64_intdigest(buffers[0])
        else:
            size = sum(memoryview(buffer).nbytes for buffer in buffers)
            digest = xxhash.xxh3_64()
            for buffer in buffers:
                digest.update(buffer)
            checksum = digest.intdigest()
        self.buffers += buffers
        self.chunks.append((number, size, checksum))
        return size


class _Encoder:
    """Encodes arrays in batches, so that many small arrays are one write and one task."""

    def __init__(
        self,
        arrays: Sequence[ArraySource],
        plans: Sequence[_Plan],
        level: int | None,
        batch_bytes: int,
    ) -> None:
        self._arrays, self._plans, self._level = arrays, plans, level
        self._batch_bytes = batch_bytes

    def batches(self, threads: TaskThreads | None) -> Iterator[_Batch]:
        """Yield all chunks in order.

        With threads the buffers of a batch are valid until the next one, else as long as they are
        referred to.
        """
        if threads is None:
            for pieces in self._grouped():
                yield self._encode(pieces, _at_least(np.empty(0, np.uint8), pieces))
            return
        yield from self._batches_of(threads)

    def _batches_of(self, threads: TaskThreads) -> Iterator[_Batch]:
        # batches that may wait for the disk; each has its scratch, which is used again
        free = [np.empty(0, np.uint8)] * (2 * threads.count + 2)
        pending: deque[tuple[Future[_Batch], Bytes]] = deque()

        def finish() -> Iterator[_Batch]:
            batch, scratch = pending.popleft()
            while not batch.done() and threads.help():
                pass
            yield batch.result()
            free.append(scratch)

        for pieces in self._grouped():
            while not free:
                yield from finish()
            scratch = _at_least(free.pop(), pieces)
            if threads.resting() or self._is_raw(pieces):  # raw bytes only need a checksum
                while pending:
                    yield from finish()
                yield self._encode(pieces, scratch)
                free.append(scratch)
            else:
                pending.append((threads.submit(self._encode, pieces, scratch), scratch))
        while pending:
            yield from finish()

    def _is_raw(self, pieces: Sequence[_Piece]) -> bool:
        return all(self._plans[number].codec == RAW for number, _ in pieces)

    def _grouped(self) -> Iterator[list[_Piece]]:
        """Yield lists of pieces, as many as fit a batch; a piece of rows is a list of its own."""
        pieces: list[_Piece] = []
        total = 0
        for number, where in self._pieces():
            size, by_rows = where.stop - where.start, self._plans[number].rows is not None
            if pieces and (by_rows or total + size > self._batch_bytes):
                yield pieces
                pieces, total = [], 0
            pieces.append((number, where))
            total += self._batch_bytes if by_rows else size
        if pieces:
            yield pieces

    def _pieces(self) -> Iterator[_Piece]:
        for number, array in enumerate(self._arrays):
            run_bytes = self._plans[number].run_bytes()
            for start in range(0, array.data.size, run_bytes):
                yield number, slice(start, min(start + run_bytes, array.data.size))

    def _encode(self, pieces: Sequence[_Piece], scratch: Bytes) -> _Batch:
        """Return the chunks of some pieces; the buffers are valid as long as the scratch."""
        number, where = pieces[0]
        plan = self._plans[number]
        if plan.rows is not None:
            return self._encode_rows(number, where, plan.rows, scratch)
        return self._encode_together(pieces, scratch)

    def _encode_together(self, pieces: Sequence[_Piece], scratch: Bytes) -> _Batch:
        """Return pieces of one chunk each, encoded together with those of the same kind."""
        kinds: dict[tuple[str, str], list[int]] = {}
        for place, (number, _) in enumerate(pieces):
            kind = self._plans[number].codec.name, self._arrays[number].element
            kinds.setdefault(kind, []).append(place)
        encoded: dict[int, list[Any]] = {}
        for (codec, element), places in kinds.items():
            chunks = [self._part(*pieces[place]) for place in places]
            buffers = find_codec(codec).encode_all(chunks, element, self._level, scratch)
            encoded.update(zip(places, buffers, strict=True))
            scratch = scratch[sum(chunk.size for chunk in chunks) :]
        batch = _Batch()
        for place, (number, _) in enumerate(pieces):
            batch.add(number, encoded[place])
        return batch

    def _encode_rows(self, number: int, where: slice, rows: Rows, scratch: Bytes) -> _Batch:
        """Return the chunks of a piece that is stored by rows, one behind the other."""
        plan, element = self._plans[number], self._arrays[number].element
        codec = cast("RowCodec", plan.codec)
        whole, batch = self._part(number, where), _Batch()
        for start in range(0, whole.size, plan.chunk_bytes):
            chunk = whole[start : start + plan.chunk_bytes]
            begin = rows.at(where.start + start)
            buffers = codec.encode(chunk, element, self._level, scratch, begin)
            scratch = scratch[batch.add(number, buffers) :]
        return batch

    def _part(self, number: int, where: slice) -> Bytes:
        array, size = self._arrays[number], where.stop - where.start
        part = array.part(where)
        if part.size != size:
            raise ValueError(f"{array.name}: {part.size} bytes were cut, expected {size}")
        return part


def _at_least(scratch: Bytes, pieces: Sequence[_Piece]) -> Bytes:
    size = sum(where.stop - where.start for _, where in pieces)
    size += size // 64 + 4096  # for chunks that cannot be compressed
    return scratch if scratch.size >= size else np.empty(size, np.uint8)
