"""Containers: named arrays and a JSON document in one file, written whole or not at all, read
verified.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from navrl.errors import CheckpointError, ContainerError
from navrl.io.container.atomic_files import AtomicFile, MemoryFile
from navrl.io.container.codecs import CODECS, DEFAULT_CODEC, Bytes, find_codec
from navrl.io.container.index import (
    END_MAGIC,
    FOOTER,
    HEADER,
    MAGIC,
    MAX_INDEX_BYTES,
    VERSION,
    ArrayEntry,
    Index,
    index_checksum,
    open_to_read,
    read_index_of,
)
from navrl.io.container.row_codec import RowCodec, Rows, plan_rows
from navrl.io.container.thread_pool import TaskThreads, spare_cores, usable_cores

__all__ = ["ArraySource", "Container", "write_container"]

# by trial: with half of it files were later on the disk, and with twice of it raw ones
CHUNK_BYTES = 1 << 21
# Beside training, if there is no hurry: what is coded and what comes of it stay in a core's own
# cache, and the memory is left to training. By trial; with half of it files are much later on the
# disk.
_CALM_CHUNK_BYTES = 1 << 19
_SMALL = 1 << 12  # arrays below this are stored raw: their codes would hardly be smaller
_WORTH_THREADS = 4 << 20  # reading less than this takes less than starting a thread
# small enough that what was read is still in the cache when its checksum is taken
_READ_BYTES = 1 << 19


@dataclass(frozen=True)
class ArraySource:
    """An array to be written: its name, what it is, and its bytes."""

    name: str
    element: str
    shape: tuple[int, ...]
    data: Bytes
    ready: Callable[[], None] = lambda: None  # returns when the data are there
    codec: str | None = None  # of its own, whatever the file's is
    # gives a part of the array's bytes, where the data lie otherwise
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
    check: Callable[[], None] = lambda: None,
    into: AtomicFile | MemoryFile | None = None,
) -> Written:
    """Write a container and return its sizes; when this returns the file is on the disk under its
    name.

    Args:
        path: the destination; what stands there is replaced in one step, at the end.
        arrays: named arrays; names must differ.
        document: JSON values that are stored in the index.
        codec: one of `codecs.CODECS`; small arrays are stored raw. A codec of rows takes the first
            two axes of an array for environments and steps; arrays without them get zstd.
        level: how hard the codec tries; None is the codec's own choice.
        threads: that encode, as this one does when it has nothing to write; None starts one for
            each other core, or one.
        check: called when the file is on the disk, before it gets its name; should it raise, the
            file never appears.
        into: a file in memory to write to instead; then `path` is only what errors name.

    Raises:
        CheckpointError: the index would be larger than a reader accepts; the file never appears.
    """
    find_codec(codec)
    if threads is None:
        with TaskThreads(spare_cores(), "navrl-encode") as own:
            return write_container(
                path,
                arrays,
                document,
                codec=codec,
                level=level,
                threads=own,
                check=check,
                into=into,
            )
    with AtomicFile(path) if into is None else into as file:
        header = HEADER.pack(MAGIC, VERSION, 0)
        file.write([header])
        stored: list[list[int]] = [[] for _ in arrays]
        checksums: list[list[str]] = [[] for _ in arrays]
        chunk_bytes = _CALM_CHUNK_BYTES if threads.resting() else CHUNK_BYTES
        plans = [_plan(array, array.codec or codec, chunk_bytes) for array in arrays]
        for number, run in _encode_all(arrays, plans, level, threads):
            file.write(run.buffers)
            stored[number] += run.sizes
            checksums[number] += [f"{checksum:016x}" for checksum in run.checksums]
        entries = [
            {
                "name": array.name,
                "element": array.element,
                "shape": list(array.shape),
                **plan.fields(),
                "stored": stored[number],
                "checksums": checksums[number],
            }
            for number, (array, plan) in enumerate(zip(arrays, plans, strict=True))
        ]
        text = json.dumps(
            {"arrays": entries, "document": document}, separators=(",", ":"), allow_nan=False
        ).encode()
        if len(text) > MAX_INDEX_BYTES:
            raise CheckpointError(
                f"{path}: an index of {len(text)} bytes, expected at most {MAX_INDEX_BYTES}; "
                "nothing was stored. "
                "Keep long lists of numbers in tensors, and metadata short"
            )
        file.write([text, FOOTER.pack(len(text), index_checksum(header, text), END_MAGIC)])
        file.commit(check)
    return Written(Path(path), sum(array.data.size for array in arrays), file.size)


@dataclass(frozen=True)
class _Plan:
    """How one array is stored."""

    codec: str
    chunk_bytes: int = 1 << 20  # of small arrays, which are one chunk
    rows: Rows | None = None

    def fields(self) -> dict[str, Any]:
        """Return what the index says about it."""
        said = {"codec": self.codec, "chunk_bytes": self.chunk_bytes}
        return said if self.rows is None else said | {"part_rows": self.rows.group}

    def run_bytes(self) -> int:
        """Return the bytes of chunks that a thread takes at once: to hand over a small one takes
        longer than to code it.
        """
        return self.chunk_bytes * (max(1, CHUNK_BYTES // self.chunk_bytes) if self.rows else 1)


def _plan(array: ArraySource, codec: str, chunk_bytes: int) -> _Plan:
    if array.data.size < _SMALL:
        return _Plan("raw")
    if not isinstance(CODECS[codec], RowCodec):
        # what is raw was not seen to gain by it
        return _Plan(codec, CHUNK_BYTES if codec == "raw" else chunk_bytes)
    plan = plan_rows(array.shape, array.element)
    return _Plan("zstd", chunk_bytes) if plan is None else _Plan(codec, plan.chunk_bytes, plan.rows)


@dataclass
class _Run:
    """Chunks of an array, coded: buffers to be written, and the size and checksum of each chunk."""

    buffers: list[Any]
    sizes: list[int]
    checksums: list[int]


def _encode_all(
    arrays: Sequence[ArraySource], plans: Sequence[_Plan], level: int | None, threads: TaskThreads
) -> Iterator[tuple[int, _Run]]:
    """Yield the number of an array and some of its chunks, all in order; the buffers are valid
    until the next.
    """
    # runs that may wait for the disk; each has its scratch, used again and again
    ahead = 2 * threads.count + 2
    scratches = [np.empty(CHUNK_BYTES, np.uint8) for _ in range(ahead)]
    pending: deque[tuple[int, Future[_Run] | _Run, Bytes | None]] = deque()

    def finish() -> Iterator[tuple[int, _Run]]:
        first, run, scratch = pending.popleft()
        if isinstance(run, Future):
            while not run.done() and threads.help():
                pass
            run = run.result()
        yield first, run
        if scratch is not None:
            scratches.append(scratch)

    for number, array in enumerate(arrays):
        array.ready()
        if array.data.size < _SMALL:  # not worth a thread's while
            if array.data.size:
                pending.append(
                    (
                        number,
                        _encode_run(
                            plans[number], level, array, slice(0, array.data.size), array.data
                        ),
                        None,
                    )
                )
            continue
        run_bytes = plans[number].run_bytes()
        for start in range(0, array.data.size, run_bytes):
            where = slice(start, min(start + run_bytes, array.data.size))
            if (
                plans[number].codec == "raw" or threads.resting()
            ):  # what is raw needs but a checksum
                while pending:
                    yield from finish()
                yield number, _encode_run(plans[number], level, array, where, scratches[-1])
                continue
            while not scratches:
                yield from finish()
            scratch = scratches.pop()
            future = threads.submit(_encode_run, plans[number], level, array, where, scratch)
            pending.append((number, future, scratch))
    while pending:
        yield from finish()


def _encode_run(
    plan: _Plan, level: int | None, array: ArraySource, where: slice, scratch: Bytes
) -> _Run:
    """Return the chunks in a part of an array; the buffers are valid as long as the scratch."""
    codec, done = CODECS[plan.codec], _Run([], [], [])
    whole = array.part(where)
    if whole.size != where.stop - where.start:
        raise ValueError(
            f"{array.name}: {whole.size} bytes were cut, expected {where.stop - where.start}"
        )
    for start in range(0, whole.size, plan.chunk_bytes):
        chunk = whole[start : start + plan.chunk_bytes]
        rows = plan.rows.at(where.start + start) if plan.rows else None
        buffers = codec.encode(chunk, array.element, level, scratch, rows)
        checksum = xxhash.xxh3_64()
        for buffer in buffers:
            checksum.update(buffer)
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        done.buffers += buffers
        done.sizes.append(size)
        done.checksums.append(checksum.intdigest())
        # row codecs put what they code at its beginning, others have a chunk a run
        scratch = scratch[size:]
    return done


class Container:
    """An open container: its index at once, its arrays when asked for.

    It is closed when it is told to, or else when nobody has it any more.

    Args:
        path: the file, or what errors call it.
        descriptor: of the file, if it is open already; it is closed with this.
    """

    def __init__(self, path: str | os.PathLike[str], *, descriptor: int | None = None) -> None:
        self._descriptor = open_to_read(path) if descriptor is None else descriptor
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._close.atexit = False  # the end of the process closes it, after all who may still read
        try:
            self._found = os.fstat(self._descriptor)
            self.index: Index = read_index_of(self._descriptor, Path(path))
        except BaseException:
            self.close()
            raise

    def is_still(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path leads to the file that is open here; while it is, no other can have
        its number.
        """
        try:
            now, then = os.stat(path), self._found
        except OSError:
            return False
        return os.path.samestat(now, then) and (now.st_size, now.st_mtime_ns) == (
            then.st_size,
            then.st_mtime_ns,
        )

    def read(
        self, entries: Sequence[ArrayEntry], outputs: Sequence[Bytes], *, workers: int | None = None
    ) -> Sequence[Bytes]:
        """Fill each output with the bytes of its array, chunks side by side in `workers` threads.

        Raises:
            ContainerError: a chunk is damaged; the message names the file and the array.
        """
        chunks = [
            (entry, number, output)
            for entry, output in zip(entries, outputs, strict=True)
            for number in _chunks(entry)
        ]
        self._each(self._read_chunk, chunks, workers)
        return outputs

    def read_rows(
        self,
        entry: ArrayEntry,
        wanted: range | NDArray[np.int64],
        output: Bytes,
        *,
        workers: int | None = None,
    ) -> None:
        """Fill the output with some rows of an array that is stored by rows, in the order given;
        the rest is not decoded.

        Rows of one chunk that follow one another are best given as a range (of step 1).

        Raises:
            ContainerError: the array is not stored by rows, or a chunk that was needed is damaged.
        """
        codec, rows = CODECS[entry.codec], entry.rows
        if rows is None or not isinstance(codec, RowCodec):
            raise ContainerError(
                f"{self.index.path}: array {entry.name!r} is not stored by rows, but by "
                f"{entry.codec}"
            )
        per_chunk = entry.chunk_bytes // rows.row_bytes
        if (
            isinstance(wanted, range)
            and wanted.start // per_chunk == (wanted.stop - 1) // per_chunk
        ):
            number, first = divmod(wanted.start, per_chunk)
            chunk = self._decoded(
                entry,
                codec,
                rows,
                number,
                range(first // rows.group, (first + len(wanted) - 1) // rows.group + 1),
            )
            output[:] = chunk[first * rows.row_bytes :][: output.size]
            return
        lines = output.reshape(len(wanted), rows.row_bytes)

        def read(number: int, targets: Any, places: Any, groups: Iterable[int]) -> None:
            lines[targets] = self._decoded(entry, codec, rows, number, groups).reshape(
                -1, rows.row_bytes
            )[places]

        self._each(read, [*_pieces(np.asarray(wanted), per_chunk, rows.group)], workers)

    def _decoded(
        self, entry: ArrayEntry, codec: RowCodec, rows: Rows, number: int, groups: Iterable[int]
    ) -> Bytes:
        """Return a chunk in which these groups of rows are decoded; it is valid until this thread
        decodes the next.
        """
        where = entry.chunk(number)
        chunk = _scratch(where.stop - where.start, "decoded")
        stored = self._load_chunk(entry, number)
        try:
            codec.decode(stored, chunk, entry.element, rows.at(where.start), groups)
        except ContainerError as error:
            raise self._named(error, entry, number) from error
        return chunk

    def verify(
        self, entries: Sequence[ArrayEntry] | None = None, *, workers: int | None = None
    ) -> None:
        """Check every stored chunk against its checksum, without decoding.

        Raises:
            ContainerError: a chunk is damaged; the message names the file and the array.
        """
        entries = self.index.arrays if entries is None else entries
        self._each(
            self._load_chunk,
            [(entry, number) for entry in entries for number in _chunks(entry)],
            workers,
        )

    def _each(
        self,
        function: Callable[..., object],
        chunks: Sequence[tuple[Any, ...]],
        workers: int | None,
    ) -> None:
        """Call the function on every chunk, in this thread and `workers - 1` more; each takes the
        next that is left.
        """
        count = workers or (usable_cores() if self.index.size >= _WORTH_THREADS else 1)
        if min(count, len(chunks)) <= 1:
            for chunk in chunks:
                function(*chunk)
            return
        left = iter(chunks)

        def work() -> None:
            for chunk in left:  # `next` of a list's iterator is safe to share
                function(*chunk)

        with TaskThreads(min(count, len(chunks)) - 1, "navrl-read") as threads:
            others = [threads.submit(work) for _ in range(threads.count)]
            try:
                work()
            finally:
                failures = [error for other in others if (error := other.exception()) is not None]
        if failures:
            raise failures[0]

    def _read_chunk(self, entry: ArrayEntry, number: int, output: Bytes) -> None:
        chunk = output[entry.chunk(number)]
        if entry.codec == "raw":
            self._load_chunk(entry, number, chunk)
            return
        stored = self._load_chunk(entry, number)
        try:
            CODECS[entry.codec].decode(
                stored,
                chunk,
                entry.element,
                entry.rows and entry.rows.at(number * entry.chunk_bytes),
            )
        except ContainerError as error:
            raise self._named(error, entry, number) from error

    def _named(self, error: ContainerError, entry: ArrayEntry, number: int) -> ContainerError:
        """Return what a codec says about a chunk with the name of the chunk."""
        return ContainerError(f"{self.index.path}: array {entry.name!r}, chunk {number}: {error}")

    def _load_chunk(self, entry: ArrayEntry, number: int, into: Bytes | None = None) -> Bytes:
        """Return the stored bytes of a chunk, verified; they are valid until this thread loads the
        next.
        """
        size = entry.stored[number]
        stored = _scratch(size) if into is None else into
        offset = entry.offsets[number]
        checksum, data = xxhash.xxh3_64(), stored.data
        read = 0
        while read < size:
            piece = data[read : read + _READ_BYTES]
            try:
                count = os.preadv(self._descriptor, [piece], offset + read)
            except OSError as error:
                raise ContainerError(
                    f"{self.index.path}: array {entry.name!r} cannot be read: chunk {number} "
                    f"(byte {offset} of the file): {error}; use an older checkpoint"
                ) from error
            if not count:
                break
            checksum.update(piece[:count])
            read += count
        if read < size or checksum.intdigest() != entry.checksums[number]:
            raise ContainerError(
                f"{self.index.path}: array {entry.name!r} is damaged: the checksum of chunk "
                f"{number} "
                f"(byte {offset} of the file) does not match; use an older checkpoint"
            )
        return stored

    def close(self) -> None:
        """Close the file."""
        self._descriptor = -1
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _pieces(
    wanted: NDArray[np.int64], per_chunk: int, group: int
) -> Iterator[tuple[int, Any, Any, Iterable[int]]]:
    """Yield, for each chunk that is needed: its number, where its rows go, which they are in it,
    and their groups.
    """
    chunk_of = wanted // per_chunk
    for number in np.unique(chunk_of).tolist():
        targets = chunk_of == number
        places = wanted[targets] - number * per_chunk
        yield number, targets, places, np.unique(places // group).tolist()


def _chunks(entry: ArrayEntry) -> range:
    return range(len(entry.stored))


_of_this_thread = threading.local()


def _scratch(size: int, purpose: str = "stored") -> Bytes:
    """Return memory of this thread's own, valid until it asks for the same purpose again."""
    buffer = getattr(_of_this_thread, purpose, None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(max(size, CHUNK_BYTES + 4096), np.uint8)
        setattr(_of_this_thread, purpose, buffer)
    return buffer[:size]
