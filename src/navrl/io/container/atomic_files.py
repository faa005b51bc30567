"""Files that appear under their name whole, or not at all, whatever kills the writer.

A file is written under a temporary name beside its destination, flushed to the disk, renamed, and
the folder flushed. The writer holds a lock on the temporary file, which the kernel drops when the
process dies: so the next start can tell files of dead writers from files that are being written.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.errors import CheckpointError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "AtomicFile",
    "MemoryFile",
    "check_is_folder",
    "descriptor_of",
    "irregular_kind",
    "make_folder",
    "point_alias",
    "remove_stale_files",
    "sync_file",
    "sync_folder",
    "sync_tree",
]

TEMPORARY_PATTERN = ".navrl-*.tmp"

# the disk starts writing each part of this size while the next is being encoded
_START_EVERY = 8 << 20
_BUFFERS_AT_ONCE = 512  # writev accepts at most 1024
_BYTES_AT_ONCE = 1 << 20  # larger writes stall now and then on ext4
_SLOW_TO_FREE = 8 << 20  # bytes; freeing a smaller file takes less than starting a thread


class AtomicFile:
    """A file being written: `write`, then `commit`; without `commit` it leaves no trace."""

    def __init__(self, path: str | os.PathLike[str], *, mode: int = 0o666) -> None:
        self.path = Path(path)
        self.size = 0
        self._temporary, self._descriptor = _create_locked(self.path.parent, mode)
        self._started = 0

    def write(self, buffers: Sequence[Any]) -> None:
        """Append the buffers."""
        for views in _portions(buffers):
            while views:
                written = os.writev(self._descriptor, views)
                self.size += written
                while views and written >= views[0].nbytes:
                    written -= views.pop(0).nbytes
                if written:
                    views[0] = views[0][written:]
        if self.size - self._started >= _START_EVERY:
            _start_writing(self._descriptor, self._started, self.size - self._started)
            self._started = self.size

    def commit(self) -> None:
        """Make the file durable, and only then rename it to its path."""
        os.fsync(self._descriptor)
        with _outliving(self.path):
            os.replace(self._temporary, self.path)
            sync_folder(self.path.parent)
        self._close()

    def _close(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            self._close()


class MemoryFile:
    """A file in memory, with the methods of `AtomicFile`."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def size(self) -> int:
        """How many bytes were written."""
        return len(self._data)

    def write(self, buffers: Sequence[Any]) -> None:
        """Append the buffers."""
        for buffer in buffers:
            self._data += memoryview(buffer).cast("B")

    def commit(self) -> None:
        """Do nothing: a file in memory has no name."""

    def getvalue(self) -> bytes:
        """Return what was written."""
        return bytes(self._data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def descriptor_of(data: bytes) -> int:
    """Return a descriptor of an unnamed file that holds these bytes, to read from."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("navrl", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        view = memoryview(data)
        while view.nbytes:
            view = view[os.write(descriptor, view) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _portions(buffers: Sequence[Any]) -> Iterator[list[memoryview]]:
    """Yield the bytes of the buffers in order, in lists that one `writev` takes."""
    portion: list[memoryview] = []
    room = _BYTES_AT_ONCE
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while view.nbytes:
            portion.append(view[:room])
            view, room = view[room:], room - portion[-1].nbytes
            if not room or len(portion) == _BUFFERS_AT_ONCE:
                yield portion
                portion, room = [], _BYTES_AT_ONCE
    if portion:
        yield portion


@contextlib.contextmanager
def _outliving(path: Path) -> Iterator[None]:
    """Keep the file at `path` open during the block; close a large one later, in a thread.

    Freeing a large replaced file takes longer than making its successor durable, and nothing has
    to wait for it.
    """
    try:
        held = os.open(path, _HOLD) if _HOLD else None
    except OSError:  # usually because there is no such file
        held = None
    try:
        yield
    finally:
        if held is not None:
            _close_later(held)


def _close_later(descriptor: int) -> None:
    if os.fstat(descriptor).st_size < _SLOW_TO_FREE:
        os.close(descriptor)
        return
    try:
        threading.Thread(
            target=os.close, args=(descriptor,), name="navrl-free", daemon=True
        ).start()
    except RuntimeError:  # the interpreter exits and starts no more threads
        os.close(descriptor)


# refers to a file without opening it: needs no permission, and has no effect on devices and pipes
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_PATH") else 0


def _start_writing(descriptor: int, start: int, size: int) -> None:
    """Ask the kernel to start writing to the disk now.

    Only a hint: `fsync` waits for all of it and reports errors.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, start, size, _SYNC_FILE_RANGE_WRITE)


# a Linux call that Python does not offer
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_SYNC_FILE_RANGE_WRITE = 2


def _create_locked(folder: Path, mode: int) -> tuple[Path, int]:
    """Create a temporary file that this process has locked."""
    while True:
        path = folder / f".navrl-{secrets.token_hex(8)}.tmp"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except OSError as error:
            error.filename = os.fspath(folder)  # the user never named the temporary file
            raise
        # without locks on this file system, nothing is cleaned up there either
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # a cleaner in another process may have locked and removed the file before us
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)


def remove_stale_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Remove the temporary files whose writers are dead, and return their paths."""
    removed = []
    for path in sorted(Path(folder).glob(TEMPORARY_PATTERN)):
        if path.is_symlink():  # an alias between creation and rename, which cannot be locked
            with contextlib.suppress(OSError):
                os.unlink(path)
                removed.append(path)
            continue
        if irregular_kind(path) is not None:  # not ours; opening a named pipe would block
            continue
        if _remove_unlocked(path):
            removed.append(path)
    return removed


def _remove_unlocked(path: Path) -> bool:
    """Remove a file whose writer does not hold its lock; return whether it is gone by that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return False  # its writer lives or has just finished, or we lack permission
    finally:
        os.close(descriptor)
    return True


def point_alias(alias: str | os.PathLike[str], target: str) -> None:
    """Make `alias` a symbolic link to a file of the same folder.

    Readers see the old target or the new, never none.

    Raises:
        CheckpointError: `alias` is a directory.
    """
    alias = Path(alias)
    if alias.is_dir() and not alias.is_symlink():
        raise CheckpointError(
            f"{alias}: found a directory, expected a link; move the directory away"
        )
    moved = False
    while not moved:
        temporary = alias.parent / f".navrl-{secrets.token_hex(8)}.tmp"
        os.symlink(target, temporary)
        # if a cleaner removes the link before it is renamed, try again
        with contextlib.suppress(FileNotFoundError):
            try:
                os.replace(temporary, alias)
                moved = True
            finally:
                if not moved:
                    os.unlink(temporary)
    sync_folder(alias.parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush a folder, so that a rename or a removal in it survives a power cut."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Flush a file that something else has written."""
    _sync(path, os.O_RDONLY)


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Flush every file and folder below a folder, and the folder itself."""
    for place, _, files in os.walk(folder):
        for name in files:
            sync_file(os.path.join(place, name))
        sync_folder(place)


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Create a folder and its parents, and make their names durable.

    After a power loss a file is lost with the name of its folder. The process that created the
    parents may not have flushed them, so all are flushed here, as far as permissions allow.

    Raises:
        CheckpointError: the path is taken by something else.
    """
    folder = Path(folder).absolute()
    kind = irregular_kind(folder)
    if kind not in (None, "a directory") or os.path.isfile(folder):
        raise CheckpointError(f"{folder}: found {kind or 'a file'}, expected a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for parent in folder.parents:
        with contextlib.suppress(OSError):
            sync_folder(parent)


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def check_is_folder(folder: str | os.PathLike[str]) -> None:
    """Raise `CheckpointError`, which says what is there, unless the path is a folder."""
    if os.path.isdir(folder):
        return
    if not os.path.lexists(folder):
        raise CheckpointError(f"{os.fspath(folder)}: no such folder")
    kind = irregular_kind(folder) or "a file"
    raise CheckpointError(f"{os.fspath(folder)}: found {kind}, expected a folder")


def irregular_kind(path: str | os.PathLike[str]) -> str | None:
    """Return what a path is, such as `a directory`; None for a regular file or nothing.

    Nothing is opened: opening a named pipe blocks, and opening a device may have side effects.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a symbolic link to nothing" if os.path.islink(path) else None
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        looped = isinstance(error, OSError) and error.errno == errno.ELOOP
        return "a symbolic link that leads back to itself" if looped else None
    return next((name for is_kind, name in _KINDS if is_kind(mode)), None)
