"""Records what this process does to a folder through `os`, for `power_loss`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from power_loss import Recording, read_tree


@contextlib.contextmanager
def record(root: Path) -> Iterator[Recording]:
    """Record what is done below a folder in the block, by this process and through `os`."""
    root = Path(root).absolute()
    recording = Recording(root, read_tree(root))
    shim = _Shim(recording)
    with contextlib.ExitStack() as stack:
        for name in _Shim.PATCHED:
            stack.enter_context(mock.patch.object(os, name, getattr(shim, name)))
        yield recording
    recording.check_complete()


class _Shim:
    """Functions of `os` that note what they did to files below a folder."""

    PATCHED = (
        "open",
        "close",
        "write",
        "writev",
        "pwrite",
        "ftruncate",
        "fsync",
        "fdatasync",
        "replace",
        "rename",
        "symlink",
        "link",
        "unlink",
        "remove",
        "mkdir",
        "rmdir",
    )

    def __init__(self, recording: Recording) -> None:
        self._root = recording.root
        self._note = recording.operations.append
        self._names: dict[
            int, str
        ] = {}  # of open files; a file keeps its descriptor through a rename
        self._lock = threading.RLock()
        self._real = {name: getattr(os, name) for name in self.PATCHED}

    def _name(self, path: Any) -> str | None:
        whole = os.path.abspath(os.fspath(path))
        return os.path.relpath(whole, self._root) if whole.startswith(f"{self._root}/") else None

    def open(self, path, flags, *arguments, **options):
        with self._lock:
            name = "" if os.path.abspath(path) == str(self._root) else self._name(path)
            new = name is not None and not os.path.lexists(path)
            descriptor = self._real["open"](path, flags, *arguments, **options)
            if name is not None:
                if new:
                    self._note(("create", name))
                elif flags & os.O_TRUNC:
                    self._note(("resize", name, 0))
                self._note(("opened", name, bool(flags & os.O_APPEND)))
                self._names[descriptor] = name
            return descriptor

    def close(self, descriptor):
        with self._lock:
            self._names.pop(descriptor, None)
            self._real["close"](descriptor)

    def write(self, descriptor, data):
        return self._written(descriptor, None, [data], self._real["write"](descriptor, data))

    def writev(self, descriptor, buffers):
        return self._written(descriptor, None, buffers, self._real["writev"](descriptor, buffers))

    def pwrite(self, descriptor, data, offset):
        return self._written(
            descriptor, offset, [data], self._real["pwrite"](descriptor, data, offset)
        )

    def _written(
        self, descriptor: int, offset: int | None, buffers: Sequence[Any], count: int
    ) -> int:
        if descriptor in self._names:
            data = b"".join(bytes(buffer) for buffer in buffers)[:count]
            self._note(("write", self._names[descriptor], offset, data))
        return count

    def ftruncate(self, descriptor, size):
        self._real["ftruncate"](descriptor, size)
        if descriptor in self._names:
            self._note(("resize", self._names[descriptor], size))

    def fsync(self, descriptor):
        self._real["fsync"](descriptor)
        if descriptor in self._names:
            self._note(("sync", self._names[descriptor]))

    def fdatasync(self, descriptor):
        self.fsync(descriptor)

    def replace(self, source, target):
        with self._lock:
            self._real["replace"](source, target)
            one, other = self._name(source), self._name(target)
            if one is not None and other is not None:
                self._note(("rename", one, other))
                for descriptor, name in self._names.items():
                    if name == one:
                        self._names[descriptor] = other

    rename = replace

    def symlink(self, target, path, *arguments, **options):
        self._real["symlink"](target, path, *arguments, **options)
        self._noted("symlink", os.fspath(target), path)

    def link(self, source, target, **options):
        self._real["link"](source, target, **options)
        self._noted("link", self._name(source), target)

    def unlink(self, path, **options):
        self._real["unlink"](path, **options)
        self._noted("unlink", path)

    remove = unlink

    def mkdir(self, path, *arguments, **options):
        self._real["mkdir"](path, *arguments, **options)
        self._noted("mkdir", path)

    def rmdir(self, path, **options):
        self._real["rmdir"](path, **options)
        self._noted("unlink", path)

    def _noted(self, operation: str, *arguments: Any) -> None:
        """Note an operation whose last argument is a path."""
        name = self._name(arguments[-1])
        if name is not None:
            self._note((operation, *arguments[:-1], name))
