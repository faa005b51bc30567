"""One file on its way to the disk, how many there are, and those that failed."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from navrl.errors import CheckpointError, add_note
from navrl.io.container.container_writer import Written
from navrl.io.container.snapshot import Snapshot

__all__ = ["Failures", "Job", "Load", "absolute"]


@dataclass(eq=False)
class Job:
    """A snapshot, and the file to write it to."""

    location: str
    snapshot: Snapshot
    document: dict[str, Any]
    codec: str
    after: Callable[[Written], None] | None = None
    before: Callable[[], Mapping[str, Any]] | None = None
    failure: BaseException | None = None  # why it cannot be written
    written: bool = False  # the file is on the disk
    settled: bool = False  # its outcome was counted and reported
    _claimed: threading.Lock = field(default_factory=threading.Lock)

    def claim(self) -> bool:
        """Return True to one caller only, who then completes the snapshot."""
        return self._claimed.acquire(blocking=False)

    @cached_property
    def path(self) -> Path:
        """The file; made in the background."""
        return Path(self.location)

    def failed(
        self, error: BaseException, what: str = "not saved, earlier files are untouched"
    ) -> CheckpointError:
        """Return the error for the caller."""
        failed = CheckpointError(f"{self.path}: {what}: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed


@dataclass
class Load:
    """What the background has to do, which decides how many cores it uses."""

    few_cores: bool
    pending: list[Job] = field(default_factory=list)  # not on the disk yet
    waiting: int = 0  # threads that wait for a file

    def leaves_cores_to_training(self) -> bool:
        """Return whether the writer thread encodes alone: few cores, and no hurry."""
        return self.few_cores and not self.waiting and len(self.pending) <= 1


@dataclass
class Failures:
    """Failed saves that no call has raised yet, or warned about."""

    raises: bool
    errors: list[CheckpointError] = field(default_factory=list)

    def report(self) -> None:
        """Raise the failures as one error, or warn about each."""
        if not self.errors:
            return
        errors, self.errors = self.errors, []
        for error in errors[1:]:
            add_note(errors[0], f"and: {error}")
        if self.raises:
            raise errors[0]
        for error in errors:
            warnings.warn(str(error), RuntimeWarning, stacklevel=4)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path that does not depend on the working directory."""
    text = os.fspath(path)
    return text if text.startswith("/") else os.path.join(os.getcwd(), text)
