"""Read a container: its index at once, its arrays when asked for, every byte verified."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from navrl.errors import ContainerError
from navrl.io.container.codecs import CODECS, Bytes, RowCodec, Rows
from navrl.io.container.index import ArrayEntry, Index, open_to_read, read_index_of
from navrl.io.container.thread_pool import TaskThreads
from navrl.machine import usable_cores

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Container"]

_WORTH_THREADS = 4 << 20  # below this, starting a thread takes longer than reading
# small enough to be still in the cache when the checksum is computed
_READ_BYTES = 1 << 19
_SCRATCH_BYTES = (1 << 21) + 4096  # room for a chunk of any of our files


class Container:
    """An open container: its index at once, its arrays when asked for.

    Closed by `close`, or when it is garbage collected.

    Args:
        path: the file, or what errors call it.
        descriptor: of the file, if it is open already; closed with this object.
    """

    def __init__(self, path: str | os.PathLike[str], *, descriptor: int | None = None) -> None:
        self._descriptor = open_to_read(path) if descriptor is None else descriptor
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._close.atexit = False  # other exit handlers may still read; the process closes it
        try:
            self._found = os.fstat(self._descriptor)
            self.index: Index = read_index_of(self._descriptor, Path(path))
        except BaseException:
            self.close()
            raise

    def is_still(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path still leads to the file that is open here.

        While it is open, no other file can have its inode number.
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
        """Fill each output with the bytes of its array; `workers` threads decode chunks.

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
        """Fill the output with some rows of an array stored by rows; no others are decoded.

        Consecutive rows of one chunk are read fastest if they are asked for as a range of step 1.

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
            groups = range(first // rows.group, (first + len(wanted) - 1) // rows.group + 1)
            chunk = self._decoded(entry, codec, rows, number, groups)
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
        """Return a chunk in which these groups of rows are decoded.

        It is valid until this thread decodes the next.
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
        """Call the function on every chunk, in this thread and `workers - 1` more."""
        count = workers or (usable_cores() if self.index.size >= _WORTH_THREADS else 1)
        if min(count, len(chunks)) <= 1:
            for chunk in chunks:
                function(*chunk)
            return
        left = iter(chunks)

        def work() -> None:
            for chunk in left:  # threads may share a list's iterator
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
            codec = CODECS[entry.codec]
            if isinstance(codec, RowCodec) and entry.rows is not None:
                rows = entry.rows.at(number * entry.chunk_bytes)
                codec.decode(stored, chunk, entry.element, rows)
            else:
                codec.decode(stored, chunk, entry.element)
        except ContainerError as error:
            raise self._named(error, entry, number) from error

    def _named(self, error: ContainerError, entry: ArrayEntry, number: int) -> ContainerError:
        """Return a codec's error with the name of the file, array and chunk."""
        return ContainerError(f"{self.index.path}: array {entry.name!r}, chunk {number}: {error}")

    def _load_chunk(self, entry: ArrayEntry, number: int, into: Bytes | None = None) -> Bytes:
        """Return the stored bytes of a chunk, verified; valid until this thread's next."""
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
                f"{number} (byte {offset} of the file) does not match; use an older checkpoint"
            )
        return stored

    def close(self) -> None:
        """Close the file."""
        self._descriptor = -1
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _pieces(
    wanted: NDArray[np.int64], per_chunk: int, group: int
) -> Iterator[tuple[int, Any, Any, Iterable[int]]]:
    """Yield for each chunk that is needed: its number, where its rows go, places, and groups.

    The places are those of the rows in the chunk.
    """
    chunk_of = wanted // per_chunk
    for number in np.unique(chunk_of).tolist():
        targets = chunk_of == number
        places = wanted[targets] - number * per_chunk
        yield number, targets, places, np.unique(places // group).tolist()


def _chunks(entry: ArrayEntry) -> range:
    return range(len(entry.stored))


_thread_local = threading.local()


def _scratch(size: int, purpose: str = "stored") -> Bytes:
    """Return memory of this thread, valid until it asks for the same purpose again."""
    buffer = getattr(_thread_local, purpose, None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(max(size, _SCRATCH_BYTES), np.uint8)
        setattr(_thread_local, purpose, buffer)
    return buffer[:size]
