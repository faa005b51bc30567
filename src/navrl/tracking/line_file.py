"""An append-only file of checksummed JSON lines that several processes share."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from navrl.io.container.checksums import decode_line, encode_line


class LineFile:
    """Appends records and reads those appended since the last read.

    A last line cut short by a crash is removed by the next writer; readers ignore it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._read = 0  # bytes
        self.damaged = 0  # lines that failed their checksum

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writer's lock for the block, after removing a line that was cut short."""
        if self._descriptor < 0:
            self._descriptor = open_private(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            )
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                os.ftruncate(self._descriptor, self.path.read_bytes().rfind(b"\n") + 1)
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record, inside a `locked` block; on failure nothing of it stays in the file."""
        line = encode_line(record)
        size = os.fstat(self._descriptor).st_size
        try:
            while line:  # the system may write only a part
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            with contextlib.suppress(OSError):
                # a full disk: half a line would damage the next one
                os.ftruncate(self._descriptor, size)
            raise

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the records appended since the last call; none if there is no file."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return
        *lines, _ = content.split(b"\n")  # the last one is still being written, or was cut short
        for line in lines:
            self._read += len(line) + 1
            record = decode_line(line)
            if record is None:
                self.damaged += 1
            else:
                yield record

    def sync(self) -> None:
        """Flush the file to the disk."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Close the file; the next `locked` block opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file readable by its owner only: it may hold addresses and user names."""
    descriptor = os.open(path, flags, 0o600)
    with contextlib.suppress(PermissionError):  # another user's run, in a shared folder
        os.fchmod(descriptor, 0o600)  # earlier versions made it readable by everyone
    return descriptor
