"""The files of the registry, stored once under their SHA-256; whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from navrl.errors import RegistryError
from navrl.io.container.checksums import sha256_of_file

__all__ = ["BlobStore", "Stored"]

_PIECE = 1 << 20
_FOLDER = re.compile(r"[0-9a-f]{2}", re.ASCII)
_FILE = re.compile(r"[0-9a-f]{62}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Stored(NamedTuple):
    """A stored file."""

    digest: str
    size: int


QUARANTINE_NOTE = """The registry has no record of these files: a registration was killed, or
the registry lost its records.

    navrl models repair                          returns the files that a version needs
    navrl models register NAME quarantine/FILE   registers one as a model
    navrl models gc --purge-quarantine           deletes all of them
"""


class BlobStore:
    """The folder `objects`: the file with digest `abcdef...` is `objects/ab/cdef...`, read-only.

    The folder `quarantine` beside it has the unowned files, under their whole digests.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quarantine = folder.with_name("quarantine")

    def path(self, digest: str) -> Path:
        """Return where the file with this digest is, or would be."""
        if not _FOLDER.fullmatch(digest[:2]) or not _FILE.fullmatch(digest[2:]):
            raise RegistryError(
                f"{digest[:80]!r} is not a SHA-256; the registry's database was changed by "
                "another program"
            )
        return self.folder / digest[:2] / digest[2:]

    def place(self, source: Path) -> tuple[Stored, bool]:
        """Copy a file in and flush it; return its digest, and whether it was copied.

        Content that is there already is not copied, unless it is damaged: then it is replaced.

        Raises:
            RegistryError: the source is not a file, is empty, cannot be read, or changed while it
                was copied.
        """
        with _opened(source) as file:
            return self._place(source, file)

    def _place(self, source: Path, file: BufferedReader) -> tuple[Stored, bool]:
        # imported here because it loads torch, which listing models does not need
        from navrl.io.container.atomic_files import AtomicFile, make_folder

        digest = sha256_of_file(file)
        stored, target = Stored(digest, file.tell()), self.path(digest)
        if self.fault(stored) is None:
            return stored, False
        if not target.parent.is_dir():
            make_folder(target.parent)
        file.seek(0)
        copied = hashlib.sha256()
        with AtomicFile(target) as copy:
            while piece := file.read(_PIECE):
                copied.update(piece)
                copy.write([piece])
            if copied.hexdigest() != digest:
                raise RegistryError(
                    f"{str(source)!r} changed while it was copied; register it again when it is "
                    "complete"
                )
            copy.commit()
        # a file system without permissions, or the file was collected: then it is placed again
        with suppress(OSError):
            target.chmod(0o444)
        return stored, True

    def holds(self, digest: str) -> bool:
        """Return whether there is a file with this digest, without reading it."""
        return self.path(digest).is_file()

    def fault(self, stored: Stored) -> str | None:
        """Return what is wrong with a file, or None; reads all of it."""
        try:
            with open(self.path(stored.digest), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != stored.size:
                    return f"has {size} bytes instead of {stored.size}"
                found = sha256_of_file(file)
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return (
            None if found == stored.digest else "is damaged: its content does not match its digest"
        )

    def size(self, digest: str) -> int:
        """Return the size of a file, 0 if it is not there."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def remove(self, digest: str) -> int:
        """Remove a file and return its size."""
        path, size = self.path(digest), self.size(digest)
        path.unlink(missing_ok=True)
        return size

    def put_into_quarantine(self, digest: str) -> Path:
        """Move a file to the quarantine, and return its new path."""
        target = self.quarantine / digest
        if not self.quarantine.is_dir():
            self.quarantine.mkdir(parents=True, exist_ok=True)
            (self.quarantine / "README.txt").write_text(QUARANTINE_NOTE)
        os.replace(self.path(digest), target)
        return target

    def take_from_quarantine(self, digest: str) -> bool:
        """Move a file back from the quarantine; return whether it was there."""
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(self.quarantine / digest, target)
        except FileNotFoundError:
            return False
        return True

    def quarantined(self) -> list[Path]:
        """Return the files in quarantine."""
        if not self.quarantine.is_dir():
            return []
        names = (path for path in self.quarantine.iterdir() if _DIGEST.fullmatch(path.name))
        return sorted(names)

    def digests(self) -> Iterator[str]:
        """Yield the digest of every stored file; files with other names are ignored."""
        for folder in self._folders():
            for path in sorted(folder.iterdir()):
                if _FILE.fullmatch(path.name):
                    yield folder.name + path.name

    def leftovers(self) -> list[Path]:
        """Return the temporary files, including those of living writers."""
        from navrl.io.container.atomic_files import TEMPORARY_PATTERN

        return [
            path
            for folder in self._written_folders()
            for path in sorted(folder.glob(TEMPORARY_PATTERN))
        ]

    def remove_leftovers(self) -> list[Path]:
        """Remove the temporary files of dead writers, and return their paths."""
        from navrl.io.container.atomic_files import remove_stale_files

        return [path for folder in self._written_folders() for path in remove_stale_files(folder)]

    def _written_folders(self) -> list[Path]:
        """Return the folders that may hold temporary files; the first is the journal's."""
        return [self.folder, *self._folders()]

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(
            path for path in self.folder.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir()
        )


def _opened(source: Path) -> BufferedReader:
    """Open a file to be copied in; it must be a regular file that is not empty."""
    name = repr(str(source))  # on one line, whatever it contains
    try:
        # O_NONBLOCK: opening a pipe must not wait for its other end
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise RegistryError(
            f"{name}: no such file; expected a file written by `navrl train`, such as RUN/model.pt"
        ) from error
    except (OSError, ValueError) as error:
        raise RegistryError(
            f"{name} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return open(descriptor, "rb")
    os.close(descriptor)
    raise RegistryError(f"{name} is {_kind(status.st_mode)}; expected a model or a checkpoint")


def _kind(mode: int) -> str:
    """Return what a file is that cannot be copied in."""
    if stat.S_ISREG(mode):
        return "empty"
    return "a folder" if stat.S_ISDIR(mode) else "not a regular file"
