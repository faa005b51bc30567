"""The durable queue of a run: records that survive kill -9, and the files they refer to.

`RUN/tracking/records.log` holds one checksummed record a line, numbered from 1. Only the training
process appends to it. The file of a record is kept in `files/` under its SHA-256, as a hard link
where that is safe. What each tracker has received is in `TRACKER.log` beside it (`delivery_log`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.errors import TrackingError
from navrl.io.container.checksums import sha256_of
from navrl.tracking.delivery_log import DeliveryLog
from navrl.tracking.line_file import LineFile

if TYPE_CHECKING:
    from typing_extensions import Self

FOLDER = "tracking"
# First bytes of navrl.io's files; workers do not load navrl.io's index.
CONTAINER = b"\x89NavRL\r\n"
_PIECE = 1 << 20
_ABANDONED = 3600.0  # s after which a temporary file has no writer any more


class Undeliverable(TrackingError):
    """A record can never be delivered: its file is gone, or what it refers to is."""


class Dropped(Undeliverable):
    """The file of a record was removed because every tracker had received it."""


class RecordQueue:
    """The queue of one run: `append` for its only writer, `read` for every process."""

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self.run = Path(run)
        self.folder = self.run / FOLDER
        self.files = self.folder / "files"
        self.records: list[dict[str, Any]] = []
        self.ended = False  # the last session of the run has ended
        self._lines = LineFile(self.folder / "records.log")

    def exists(self) -> bool:
        """Return whether the run has a queue."""
        return self._lines.path.exists()

    def read(self) -> list[dict[str, Any]]:
        """Return all records, including those appended since the last call."""
        for record in self._lines.new():
            self.records.append(record)
            if record["kind"] in ("run", "end"):
                self.ended = record["kind"] == "end"
        return self.records

    def session(self) -> dict[str, Any] | None:
        """Return the record that began the last session, or None if there is none yet."""
        sessions = (record for record in reversed(self.records) if record["kind"] == "run")
        return next(sessions, None)

    def deliveries(self, tracker: str) -> DeliveryLog:
        """Return the log of what a tracker has received."""
        return DeliveryLog(self.folder, tracker)

    @property
    def damaged(self) -> int:
        """Records that failed their checksum."""
        return self._lines.damaged

    def append(self, kind: str, **values: Any) -> dict[str, Any]:
        """Write a record and return it with its number; once this returns it survives a kill."""
        self.make_folder()
        with self._lines.locked():
            records = self.read()
            # damaged records had numbers too
            number = (records[-1]["number"] if records else 0) + 1 + self.damaged
            record = {"number": number, "kind": kind, "time": time.time(), **values}
            self._lines.append(record)
        return record

    def make_folder(self) -> None:
        """Create the folder of the queue if it is missing, for its owner only."""
        self.run.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def keep(self, descriptor: int) -> str:
        """Keep the open file, whatever happens to its name, and return its SHA-256."""
        self.files.mkdir(parents=True, exist_ok=True)
        temporary = self.files / f".{secrets.token_hex(8)}.tmp"
        try:
            digest = _link(descriptor, temporary) or _copy(descriptor, temporary)
            os.replace(temporary, self.files / digest)
        finally:
            temporary.unlink(missing_ok=True)
        return digest

    def file(self, digest: str) -> Path:
        """Return the path of a kept file.

        Raises:
            Dropped: it was removed after every tracker had received it.
            Undeliverable: it is missing, or was changed.
        """
        path = self.files / digest
        if not path.is_file():
            if (self.files / f"{digest}.dropped").exists():
                raise Dropped(
                    f"{path}: the file was removed after every tracker of the run had received "
                    "it; download it from one of them"
                )
            raise Undeliverable(f"{path}: the file of a record is missing; it cannot be delivered")
        if sha256_of(path) != digest:
            raise Undeliverable(
                f"{path}: the file was changed after it was queued; it cannot be delivered"
            )
        return path

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Hold the lock that blocks file removal: a file just kept has no record yet."""
        self.make_folder()
        descriptor = os.open(
            self.folder / "files.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def drop(self) -> int:
        """Remove the files that every tracker has received and no alias points at; return how many.

        Aliases keep their files, so that `latest` and `best` can be read without network.
        """
        with self.keeping():
            records = self.read()
            sessions = [record for record in records if record["kind"] == "run"]
            trackers = {tracker for session in sessions for tracker in session["trackers"]}
            needed = _aliased(records)
            for tracker in trackers:
                missing = self.deliveries(tracker).read().missing(records)
                needed |= {record["number"] for record in missing}
            with_files = [record for record in records if "sha256" in record]
            digests = {record["sha256"] for record in with_files}
            digests -= {record["sha256"] for record in with_files if record["number"] in needed}
            dropped = [digest for digest in digests if (self.files / digest).exists()]
            for digest in dropped:
                (self.files / f"{digest}.dropped").touch()
                (self.files / digest).unlink()
        return len(dropped)

    def tidy(self) -> Self:
        """Remove temporary files that a killed writer left more than an hour ago."""
        for left in (*self.files.glob(".*.tmp"), *self.folder.glob(".written-*")):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        return self

    def sync(self) -> None:
        """Flush the records to the disk."""
        self._lines.sync()

    def close(self) -> None:
        """Close the file of records."""
        self._lines.close()


def _aliased(records: list[dict[str, Any]]) -> set[int]:
    """Return the numbers of the models that an alias points at."""
    targets: dict[tuple[str, str], int] = {}
    for record in records:
        if record["kind"] == "artifact":
            for alias in ("latest", *record["aliases"]):
                targets[record["name"], alias] = record["number"]
        elif record["kind"] == "alias":
            targets[record["name"], record["alias"]] = record["of"]
    return {*targets.values()}


def _link(descriptor: int, target: Path) -> str | None:
    """Hard-link an open file and return its digest, or None if it has to be copied.

    navrl's own files are only ever replaced. Any other file may be rewritten in place, which would
    change the link too.
    """
    if os.pread(descriptor, len(CONTAINER), 0) != CONTAINER:
        return None
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With dst_dir_fd Python calls linkat and follows the link in /proc to the open file.
        os.link(f"/proc/self/fd/{descriptor}", target.name, dst_dir_fd=folder)
    except OSError:  # another file system, or the file has no name left
        return None
    finally:
        os.close(folder)
    return sha256_of(target)


def _copy(descriptor: int, target: Path) -> str:
    digest = hashlib.sha256()
    with open(target, "xb") as file:
        position = 0
        while piece := os.pread(descriptor, _PIECE, position):
            file.write(piece)
            digest.update(piece)
            position += len(piece)
    return digest.hexdigest()
