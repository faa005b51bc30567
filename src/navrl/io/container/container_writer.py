"""Containers: named arrays and a JSON document in one file, written whole or not at all, read
verified.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        plans = [_plan(array, find_codec(array.codec or codec), chunk_bytes) for array in arrays]
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

    codec: ChunkCodec
    chunk_bytes: int = 1 << 20  # of small arrays, which are one chunk
    rows: Rows | None = None

    def fields(self) -> dict[str, Any]:
        """Return what the index says about it."""
        fields = {**self.codec.describe(), "chunk_bytes": self.chunk_bytes}
        return fields if self.rows is None else fields | {"part_rows": self.rows.group}

    def run_bytes(self) -> int:
        """Return the bytes of chunks that a thread takes at once: to hand over a small one takes
        longer than to code it.
        """
        return self.chunk_bytes * (max(1, CHUNK_BYTES // self.chunk_bytes) if self.rows else 1)


def _plan(array: ArraySource, codec: ChunkCodec, chunk_bytes: int) -> _Plan:
    if array.data.size < _SMALL:
        return _Plan(RAW)
    if not isinstance(codec, RowCodec):
        # raw chunks gain nothing from being smaller
        return _Plan(codec, CHUNK_BYTES if codec == RAW else chunk_bytes)
    plan = plan_rows(array.shape, array.element)
    if plan is None:
        return _Plan(find_codec("zstd"), chunk_bytes)
    return _Plan(codec, plan.chunk_bytes, plan.rows)


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
            if plans[number].codec == RAW or threads.resting():  # what is raw needs but a checksum
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
    done = _Run([], [], [])
    whole = array.part(where)
    if whole.size != where.stop - where.start:
        raise ValueError(
            f"{array.name}: {whole.size} bytes were cut, expected {where.stop - where.start}"
        )
    for start in range(0, whole.size, plan.chunk_bytes):
        chunk = whole[start : start + plan.chunk_bytes]
        buffers = _encode(plan, chunk, where.start + start, array.element, level, scratch)
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


def _encode(
    plan: _Plan, chunk: Bytes, start: int, element: str, level: int | None, scratch: Bytes
) -> list[Any]:
    """Return the stored form of the chunk that begins at a byte of its array."""
    if isinstance(plan.codec, RowCodec) and plan.rows is not None:
        return plan.codec.encode(chunk, element, level, scratch, plan.rows.at(start))
    return plan.codec.encode(chunk, element, level, scratch)
