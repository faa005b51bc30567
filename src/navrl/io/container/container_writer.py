"""Write a container: named arrays and a JSON document in one file, whole or not at all."""

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

CHUNK_BYTES = 1 << 21
# While training runs and nobody waits for the file: input and output of a chunk stay in the core's
# own cache, so that memory bandwidth is left to training.
_CALM_CHUNK_BYTES = 1 << 19
_SMALL = 1 << 12  # arrays below this are stored raw: compression would gain little


@dataclass(frozen=True)
class ArraySource:
    """An array to be written: its name, type and shape, and its bytes."""

    name: str
    element: str
    shape: tuple[int, ...]
    data: Bytes
    ready: Callable[[], None] = lambda: None  # blocks until the data are complete
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
    check: Callable[[], None] = lambda: None,
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
        threads: encode chunks, as the calling thread does when it has nothing to write; None starts
            one for each other core, at least one.
        check: called when the file is on the disk, before it is renamed; if it raises, the file
            never appears under its name.
        into: a file in memory to write to instead; `path` is then only used in errors.

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
                "nothing was written. Keep long lists of numbers in tensors, and metadata short"
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
        """Return how many bytes of chunks a thread encodes in one task.

        Handing over a small chunk takes longer than encoding it.
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
    """Encoded chunks of an array: buffers to write, and size and checksum of each chunk."""

    buffers: list[Any]
    sizes: list[int]
    checksums: list[int]


def _encode_all(
    arrays: Sequence[ArraySource], plans: Sequence[_Plan], level: int | None, threads: TaskThreads
) -> Iterator[tuple[int, _Run]]:
    """Yield the number of an array and some of its encoded chunks, all in order.

    The buffers are valid until the next.
    """
    # runs that may wait for the disk; each has a scratch buffer, which is reused
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
        if array.data.size < _SMALL:  # not worth a task
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
            if plans[number].codec == RAW or threads.resting():  # raw only needs a checksum
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
    """Return the encoded chunks of a part of an array; valid as long as the scratch."""
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
        # row codecs write to its beginning; other codecs have one chunk a run
        scratch = scratch[size:]
    return done


def _encode(
    plan: _Plan, chunk: Bytes, start: int, element: str, level: int | None, scratch: Bytes
) -> list[Any]:
    """Return the stored form of the chunk that begins at a byte of its array."""
    if isinstance(plan.codec, RowCodec) and plan.rows is not None:
        return plan.codec.encode(chunk, element, level, scratch, plan.rows.at(start))
    return plan.codec.encode(chunk, element, level, scratch)
