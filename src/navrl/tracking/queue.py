"""The durable queue of a run: records that survive kill -9, files that survive pruning, and what
each tracker has of them.

`RUN/tracking/records.log` holds a record a line, numbered from 1, with a checksum in front of it;
only ever appended to, by the one process that trains. A file of a record is kept under its SHA-256
in `files/`, as a hard link where that is safe. `RUN/tracking/TRACKER.log` has the same form; the
tracker's worker notes there what was delivered, refused or has failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from navrl.errors import TrackingError

FOLDER = "tracking"
CONTAINER = b"\x89NavRL\r\n"  # how navrl.io's files begin; a worker does not load navrl.io for it
_PIECE = 1 << 20
_ABANDONED = 3600.0  # s after which nobody works on a temporary file any more


class Undeliverable(TrackingError):
    """A record can never be delivered: its file is gone, or what it refers to is."""


class Dropped(Undeliverable):
    """The file of a record was removed when every tracker had got it."""


class LineFile:
    """A file of checked lines, one JSON object each. A torn tail is cut off by whoever appends, and
    ignored by who reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._read = 0
        self.damaged = 0  # lines in the middle that nobody can read any more

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out for the block; what one that died has left of a line is cut
        off.
        """
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
        """Write a record, in a block of `locked`: whole for every reader, or cut off again."""
        line = _line(record)
        size = os.fstat(self._descriptor).st_size
        try:
            while line:  # the system may take a part only
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            with contextlib.suppress(OSError):
                # a full disk: half a line would spoil the next one
                os.ftruncate(self._descriptor, size)
            raise

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the records that were appended since the last call; nothing where there is no
        file.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return
        *lines, _ = content.split(b"\n")  # what has no end is still being written, or torn
        for line in lines:
            self._read += len(line) + 1
            record = _record(line)
            if record is None:
                self.damaged += 1
            else:
                yield record

    def sync(self) -> None:
        """Put everything on the disk."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Close the file; another `append` opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that only its owner can read: addresses and names of users are in it."""
    descriptor = os.open(path, flags, 0o600)
    with contextlib.suppress(PermissionError):  # another user's run, in a shared folder
        os.fchmod(descriptor, 0o600)  # an earlier version made it for all to read
    return descriptor


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, or None where it is damaged."""
    checksum, _, body = line.partition(b" ")
    try:
        record = json.loads(body) if int(checksum, 16) == zlib.crc32(body) else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class RecordQueue:
    """The queue of one run: `append` for its only writer, `read` for everybody."""

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self.run = Path(run)
        self.folder = self.run / FOLDER
        self.files = self.folder / "files"
        self.records: list[dict[str, Any]] = []
        self.ended = False  # whether the last session of the run has come to its end
        self._lines = LineFile(self.folder / "records.log")

    def exists(self) -> bool:
        """Tell whether the run has a queue at all."""
        return self._lines.path.exists()

    def read(self) -> list[dict[str, Any]]:
        """Return all records, those included that were appended since the last call."""
        for record in self._lines.new():
            self.records.append(record)
            if record["kind"] in ("run", "end"):
                self.ended = record["kind"] == "end"
        return self.records

    @property
    def damaged(self) -> int:
        """How many records cannot be read any more."""
        return self._lines.damaged

    def append(self, kind: str, **values: Any) -> dict[str, Any]:
        """Write a record and return it with its number; when this returns, no kill can lose it."""
        self.make_folder()
        with self._lines.locked():
            records = self.read()
            # a damaged one had a number too
            number = (records[-1]["number"] if records else 0) + 1 + self.damaged
            record = {"number": number, "kind": kind, "time": time.time(), **values}
            self._lines.append(record)
        return record

    def make_folder(self) -> None:
        """Make the folder of the queue if it is not there, for its owner only."""
        self.run.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def keep(self, descriptor: int) -> str:
        """Keep the file that is open at `descriptor` whatever becomes of its name, and return its
        SHA-256.
        """
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
            Dropped: every tracker had got it.
            Undeliverable: it is gone, or no longer what it was.
        """
        path = self.files / digest
        if not path.is_file():
            if (self.files / f"{digest}.dropped").exists():
                raise Dropped(
                    f"{path}: the file was removed when every tracker of the run had got it; "
                    "fetch it from there"
                )
            raise Undeliverable(
                f"{path}: the file of a record is gone; it cannot be delivered any more"
            )
        if digest_of(path) != digest:
            raise Undeliverable(
                f"{path}: the file was changed after it was queued; it cannot be delivered any more"
            )
        return path

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Hold the lock that blocks file removal: what is kept has no record yet."""
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
        """Remove the files that every tracker has got, but not those that an alias still means;
        return how many.
        """
        with self.keeping():
            records = self.read()
            trackers = {
                tracker
                for record in records
                if record["kind"] == "run"
                for tracker in record["trackers"]
            }
            logs = [DeliveryLog(self, tracker).read() for tracker in trackers]
            needed = {
                record["number"] for deliveries in logs for record in deliveries.missing(records)
            } | _meant(records)
            of_files = [record for record in records if "sha256" in record]
            digests = {record["sha256"] for record in of_files}
            digests -= {record["sha256"] for record in of_files if record["number"] in needed}
            there = [digest for digest in digests if (self.files / digest).exists()]
            for digest in there:
                (self.files / f"{digest}.dropped").touch()
                (self.files / digest).unlink()
        return len(there)

    def tidy(self) -> Self:
        """Remove what a writer that was killed has left half written; what is young may be
        somebody's work.
        """
        for left in (*self.files.glob(".*.tmp"), *self.folder.glob(".written-*")):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        return self

    def sync(self) -> None:
        """Put the records on the disk."""
        self._lines.sync()

    def close(self) -> None:
        """Close the file of records."""
        self._lines.close()


def _meant(records: list[dict[str, Any]]) -> set[int]:
    """Return the numbers of the models that an alias points at."""
    meant: dict[tuple[str, str], int] = {}
    for record in records:
        if record["kind"] == "artifact":
            meant |= {
                (record["name"], alias): record["number"]
                for alias in ("latest", *record["aliases"])
            }
        elif record["kind"] == "alias":
            meant[record["name"], record["alias"]] = record["of"]
    return {*meant.values()}


def digest_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _link(descriptor: int, target: Path) -> str | None:
    """Give an open file another name and return its digest; None where only a copy will do.

    Our own files are replaced, never written again; any other may be, and a link would change with
    it.
    """
    if os.pread(descriptor, len(CONTAINER), 0) != CONTAINER:
        return None
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder the system is asked to follow the link in /proc to the file; without one
        # Python does not ask.
        os.link(f"/proc/self/fd/{descriptor}", target.name, dst_dir_fd=folder)
    except OSError:  # another disk, or nobody else has the file any more
        return None
    finally:
        os.close(folder)
    return digest_of(target)


def _copy(descriptor: int, target: Path) -> str:
    digest = hashlib.sha256()
    with open(target, "xb") as file:
        place = 0
        while piece := os.pread(descriptor, _PIECE, place):
            file.write(piece)
            digest.update(piece)
            place += len(piece)
    return digest.hexdigest()


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else 0


class DeliveryLog:
    """What a tracker has of a run's records; one worker at a time writes it."""

    def __init__(self, queue: RecordQueue, tracker: str) -> None:
        self.tracker = tracker
        self.done: dict[int, str] = {}  # record number -> what the tracker calls it
        self.refused: dict[int, str] = {}  # record number -> why nobody will try again
        self.failure = ""  # why the last attempt failed; empty after a success
        self.before = 0  # the process that was the worker before this one
        self._queue, self._folder = queue, queue.folder
        self._lines = LineFile(queue.folder / f"{tracker}.log")
        self._lock = -1

    def read(self) -> Self:
        """Take in what a worker has noted since the last call."""
        for line in self._lines.new():
            if "failed" in line:
                self.failure = line["failed"]
            elif "refused" in line:
                self.refused[line["number"]] = line["refused"]
            else:
                self.done |= dict.fromkeys(
                    range(line["first"], line["number"] + 1), line.get("label", "")
                )
                self.failure = ""
        return self

    def deliver(self, first: int, last: int, label: str = "") -> None:
        """Note that the records `first` to `last` are delivered."""
        self._note({"first": first, "number": last, **({"label": label} if label else {})})

    def refuse(self, number: int, reason: str) -> None:
        """Note that a record can never be delivered."""
        self._note({"number": number, "refused": reason})

    def fail(self, reason: str) -> None:
        """Note that an attempt has failed."""
        self._note({"failed": reason})

    def _note(self, line: Mapping[str, Any]) -> None:
        self._queue.make_folder()
        with self._lines.locked():
            self._lines.append(line)
        self.read()

    def missing(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the records that the tracker has not got and may still get."""
        return [
            record
            for record in records
            if record["number"] not in self.done and record["number"] not in self.refused
        ]

    def lock(self) -> bool:
        """Become the tracker's only worker, until `close`; False where another one is."""
        self._queue.make_folder()
        descriptor = os.open(
            self._folder / f"{self.tracker}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        self.before = _number(os.pread(descriptor, 32, 0))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return True

    def worker(self) -> int:
        """Return the process that was the tracker's worker last, or 0."""
        try:
            return _number((self._folder / f"{self.tracker}.lock").read_bytes())
        except OSError:
            return 0

    def close(self) -> None:
        """Let another worker take over."""
        self._lines.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
