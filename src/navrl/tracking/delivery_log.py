"""What one tracker has received of a run's records: `RUN/tracking/TRACKER.log`.

Only the worker that holds `TRACKER.lock` writes it; the lock file holds the worker's process id.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.tracking.line_file import LineFile

if TYPE_CHECKING:
    from typing_extensions import Self


class DeliveryLog:
    """Records delivered to a tracker, records it refused, and why the last attempt failed."""

    def __init__(self, folder: Path, tracker: str) -> None:
        self.tracker = tracker
        self.path = folder / f"{tracker}.log"
        self.done: dict[int, str] = {}  # record number -> the tracker's label for it
        self.refused: dict[int, str] = {}  # record number -> why it is never tried again
        self.failure = ""  # why the last attempt failed; empty after a success
        self.previous_worker = 0  # process id of the worker before this one, or 0
        self._folder = folder
        self._lines = LineFile(self.path)
        self._lock = -1

    def read(self) -> Self:
        """Read what a worker has written since the last call."""
        for line in self._lines.new():
            if "failed" in line:
                self.failure = line["failed"]
            elif "refused" in line:
                self.refused[line["number"]] = line["refused"]
            else:
                numbers = range(line["first"], line["number"] + 1)
                self.done |= dict.fromkeys(numbers, line.get("label", ""))
                self.failure = ""
        return self

    def deliver(self, first: int, last: int, label: str = "") -> None:
        """Note that the records `first` to `last` were delivered."""
        self._note({"first": first, "number": last, **({"label": label} if label else {})})

    def refuse(self, number: int, reason: str) -> None:
        """Note that a record can never be delivered."""
        self._note({"number": number, "refused": reason})

    def fail(self, reason: str) -> None:
        """Note that an attempt failed."""
        self._note({"failed": reason})

    def missing(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the records that were neither delivered nor refused."""
        return [
            record
            for record in records
            if record["number"] not in self.done and record["number"] not in self.refused
        ]

    def lock(self) -> bool:
        """Become the tracker's only worker until `close`; False if another process is."""
        path = self._folder / f"{self.tracker}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        written = os.pread(descriptor, 32, 0)
        self.previous_worker = int(written) if written.isdigit() else 0
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return True

    def close(self) -> None:
        """Release the lock, so that another worker can take over."""
        self._lines.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _note(self, line: Mapping[str, Any]) -> None:
        with self._lines.locked():
            self._lines.append(line)
        self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
