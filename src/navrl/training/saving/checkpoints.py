"""Checkpoints and other files of a training, whose failed writes are reported and retried."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from navrl.config import Config
from navrl.errors import CheckpointError, ConfigError, NavrlError
from navrl.io.checkpoint.directory import CheckpointDirectory
from navrl.io.container.step_names import format_checkpoint_name

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AwaitParts", "CheckpointSaving", "FileWrites", "SaveStatus", "reason_of"]

AwaitParts = Callable[[], Mapping[str, Any]]
PATIENCE = 3  # checkpoints in a row that may fail before training stops
LONGEST_REASON = 160  # characters


@dataclass(frozen=True)
class SaveStatus:
    """The checkpoints of this process so far."""

    iteration: int | None = None  # of the last one on disk
    at: float = 0.0  # time.monotonic() when it was complete
    failure: str = ""  # why the last attempt failed; empty if it succeeded
    failed_in_row: int = 0
    failed: int = 0


def reason_of(error: BaseException) -> str:
    """Return in a few words why a file was not written: the system's message if there is one."""
    cause = error.__cause__ or error
    text = (
        cause.strerror
        if isinstance(cause, OSError) and cause.strerror
        else str(cause) or type(cause).__name__
    )
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


class CheckpointSaving:
    """A run's CheckpointDirectory whose failures do not stop training, but are kept in `status`.

    Raises:
        ConfigError: the folder cannot be made or read.
    """

    def __init__(
        self, folder: Path, config: Config, optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self.status = SaveStatus()
        self._compress = config.compress_checkpoint
        self._lock = threading.Lock()
        self._news: deque[str] = deque()
        try:
            self.directory = CheckpointDirectory(
                folder,
                keep_last_n=config.keep_last_n,
                with_rollouts=True,  # of compress_lidar, now or before a resume
                optimizers=optimizers,
                on_done=self._done,
                max_queue_size=config.async_checkpoint_queue_size,
                level=config.save_compression_level or None,
                delta_chain=config.checkpoint_delta_chain,
                lossy_moments=config.checkpoint_lossy_moments,
            )
        except OSError as error:
            reason = f"{folder} cannot hold checkpoints: {reason_of(error)}"
            raise ConfigError(f"{reason}; make it writable, or name another run_folder") from error

    def save(
        self,
        iteration: int,
        state: Any,
        metrics: Mapping[str, float] | None = None,
        sequence: int | None = None,
        await_parts: AwaitParts | None = None,
    ) -> None:
        """Save a state in the background; `status` has the result later.

        For `sequence` and `await_parts` see `CheckpointDirectory.save`.
        """
        try:
            self.directory.save(
                iteration,
                state,
                metrics=metrics,
                compress=self._compress,
                sequence=sequence,
                await_parts=await_parts,
            )
        except CheckpointError as error:
            self._done(self.directory.folder / format_checkpoint_name(iteration), False, error)

    @property
    def gives_up(self) -> bool:
        """Whether too many checkpoints in a row have failed."""
        return self.status.failed_in_row >= PATIENCE

    def barrier(self) -> None:
        """Return when no state is being copied."""
        self.directory.saver.barrier()

    def flush(self) -> None:
        """Return when every attempt so far has ended."""
        self.directory.flush()

    def prune(self) -> None:
        """Remove what no rule keeps; a failure is reported like one of a save."""
        try:
            self.directory.prune()
        except OSError as error:
            self._news.append(f"old checkpoints are not removed: {reason_of(error)}")

    def statistics(self) -> dict[str, float]:
        """Return the statistics of the saver."""
        return self.directory.saver.get_stats()

    def news(self) -> list[str]:
        """Return sentences on failures and recoveries since the last call."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def newest(self) -> str:
        """Return a sentence that names the newest whole checkpoint of the folder."""
        entry = None
        with suppress(OSError):
            entry = self.directory.latest()
        if entry is None:
            return f"there is no whole checkpoint in {self.directory.folder}"
        return f"the newest whole checkpoint is {entry.path}"

    def _done(self, path: Path, written: bool, error: CheckpointError | None) -> None:
        """Record the result of an attempt; called in the background thread."""
        iteration = int(path.stem.rpartition("_")[2])
        with self._lock:
            if written:
                self._note_written(path, iteration, error)
            elif error is not None:
                self._note_failed(path, error)

    def _note_written(self, path: Path, iteration: int, error: CheckpointError | None) -> None:
        before = self.status
        self.status = replace(
            before, iteration=iteration, at=time.monotonic(), failure="", failed_in_row=0
        )
        if before.failed_in_row:
            self._news.append(f"checkpoints are written again: {path.name}")
        if error is not None:
            self._news.append(
                f"{path.name} was written, but `latest` was not updated or old checkpoints "
                f"were not removed: {reason_of(error)}"
            )

    def _note_failed(self, path: Path, error: CheckpointError) -> None:
        before = self.status
        reason, count = reason_of(error), before.failed_in_row + 1
        self.status = replace(before, failure=reason, failed_in_row=count, failed=before.failed + 1)
        if count <= PATIENCE:  # the display shows further ones
            self._news.append(f"{path.name} was NOT written ({count} in a row failed): {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.directory.__exit__(*exception)


class FileWrites:
    """Small files beside the checkpoints; the last failed write of each is kept and retried."""

    def __init__(self) -> None:
        self.failed = 0
        self._pending: dict[Path, Callable[[], object]] = {}

    @property
    def pending(self) -> list[Path]:
        """Files whose last write failed."""
        return [*self._pending]

    def attempt(self, path: Path, write: Callable[[], object]) -> str:
        """Call `write`, now and after a failure again later; return why it failed, or ""."""
        failure = self._write(path, write)
        self.failed += bool(failure)
        return failure

    def retry(self) -> list[Path]:
        """Retry failed writes; return the files that were written."""
        return [path for path, write in list(self._pending.items()) if not self._write(path, write)]

    def _write(self, path: Path, write: Callable[[], object]) -> str:
        try:
            write()
        except (OSError, NavrlError) as error:
            self._pending[path] = write
            return reason_of(error)
        self._pending.pop(path, None)
        return ""
