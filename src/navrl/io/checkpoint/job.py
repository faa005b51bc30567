"""One save on its way: what to write, where, and what to say should it fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from navrl.errors import CheckpointError
from navrl.io.checkpoint.snapshot import Snapshot
from navrl.io.container.container_writer import Written

__all__ = ["Job", "absolute"]


@dataclass(eq=False)
class Job:
    """A snapshot and the file that it is for."""

    location: str
    snapshot: Snapshot
    document: dict[str, Any]
    codec: str
    after: Callable[[Written], None] | None
    written: bool = False  # whether the file is on the disk
    settled: bool = False  # whether it was counted and reported how the save ended

    @cached_property
    def path(self) -> Path:
        """The file, as a path; made in the background."""
        return Path(self.location)

    def failed(
        self, error: BaseException, what: str = "not saved, earlier files are untouched"
    ) -> CheckpointError:
        """Return the error that the caller of the saver is to get."""
        failed = CheckpointError(f"{self.path}: {what}: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as it is seen from now, whatever the current folder is when it is used."""
    text = os.fspath(path)
    return text if text.startswith("/") else os.path.join(os.getcwd(), text)
