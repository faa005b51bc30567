"""RolloutStorage: batches of experience on disk, written in the background, read in part."""

from __future__ import annotations

import builtins
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from navrl.arguments import as_path, whole_number
from navrl.errors import (
    CheckpointError,
    ContainerError,
    RolloutError,
    UnsupportedStateError,
    add_note,
)
from navrl.io.container.atomic_files import irregular_kind, sync_folder
from navrl.io.container.background import BackgroundWriter
from navrl.io.container.codecs import DEFAULT_CODEC, MAX_LEVEL
from navrl.io.container.container_writer import Written, write_container
from navrl.io.container.index import read_index
from navrl.io.container.job import Job
from navrl.io.container.sequence import SequenceNumbers, sequence_of
from navrl.io.container.snapshot import ArenaPool, Snapshot
from navrl.io.container.state_tree import pack_state
from navrl.io.container.step_names import ROLLOUT_NAME, format_rollout_name
from navrl.io.container.thread_pool import TaskThreads
from navrl.io.retention import Item, Retention
from navrl.io.rollouts.reader import RolloutReader
from navrl.io.rollouts.rollout_document import complete_document, rollout_document
from navrl.io.rollouts.rollout_keys import Key, plain_rollout
from navrl.io.rollouts.rollout_layout import RolloutInfo, rollout_info

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RolloutStorage"]


class RolloutStorage:
    """A folder of rollouts, one file an iteration; a file equals the data when `save` was called.

    A rollout is a TensorDict or a nested dict of arrays (environments, steps, ...), of any element
    types. The first two lengths that most of the arrays share are taken for environments and steps;
    other arrays are stored too, but are always read whole.

    Args:
        save_dir: the folder; created with the first rollout.
        compression_level: 0 to 16. Levels up to 9 are zstd's level 1; higher ones are zstd's own:
            slower, for a few percent. Reading takes the same time whatever the level.
        error_bounds: keys of floats that may be rounded, and by how much at most; all others are
            lossless. A nested key is a tuple, or its parts joined by `/`. The file says what was
            rounded; NaN and infinity stay.
        time_first: the arrays are (steps, environments, ...), and are loaded as such.
        keep_last_n: after each save, remove all but the last n saved; None keeps all. A file whose
            index cannot be read is never removed.
        max_queue_size: rollouts that may be pending at once; each holds one copy of the data in
            memory.
        on_error: `raise` a failed save at the next call and at the end, or `warn` and continue.
        workers: threads that compress; None is one for each core.

    >>> import torch, navrl
    >>> with navrl.RolloutStorage("rollouts") as storage:
    ...     path = storage.save({"lidar": torch.zeros(4, 32, 36), "reward": torch.ones(4, 32)}, 7)
    >>> storage.list()
    [7]
    >>> storage.load(7, keys=["reward"])["reward"].shape
    torch.Size([4, 32])
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        compression_level: int = 9,
        *,
        error_bounds: Mapping[Key, float] | None = None,
        time_first: bool = False,
        keep_last_n: int | None = None,
        max_queue_size: int = 2,
        on_error: Literal["raise", "warn"] = "raise",
        workers: int | None = None,
    ) -> None:
        level = zstd_level(compression_level)
        self.folder = as_path("save_dir", save_dir)
        self.error_bounds = dict(error_bounds or {})
        self.time_first = time_first
        self.retention = Retention(keep_last_n)
        self._level = level
        self._options: dict[str, Any] = {
            "max_queue_size": max_queue_size,
            "on_error": on_error,
            "workers": workers,
        }
        self._writer: BackgroundWriter | None = None  # started with the first rollout
        self._numbers: SequenceNumbers | None = None  # of the files; made with the first rollout
        self._reader: RolloutReader | None = None  # of the last rollout that was read
        self._closed = False

    def save(
        self,
        data: Any,
        iteration: int,
        *,
        metadata: Mapping[str, Any] | None = None,
        wait: bool = False,
    ) -> Path:
        """Copy a rollout and return the path it will have; a background thread writes it.

        Args:
            data: a TensorDict or a nested dict; numbers and strings may stand beside the arrays.
            iteration: its number; an earlier rollout of that number is replaced when the new one is
                complete.
            metadata: JSON values that can be read without reading the rollout.
            wait: return when the file is on the disk.

        Raises:
            RolloutError: an earlier save failed (this one was not started; call again), or `data`
                is not a rollout.
            UnsupportedStateError: the data hold an object that cannot be stored; the message says
                where.
        """
        path = self.path(iteration)
        if self._closed:
            raise RolloutError(
                f"{self.folder}: this RolloutStorage is closed; create a new one to save more"
            )
        plain, tensordicts = plain_rollout(data)
        document = rollout_document(
            plain,
            tensordicts,
            _checked_iteration(iteration),
            time_first=self.time_first,
            error_bounds=self.error_bounds,
            metadata=metadata,
        )
        document["sequence"] = self._next_number()
        with _as_rollout_errors():
            if self._writer is None:
                write = partial(_write_rollout, level=self._level)
                self._writer = BackgroundWriter("RolloutStorage", write, **self._options)
            take = partial(_snapshot, plain)
            self._writer.submit(path, take, document, DEFAULT_CODEC, self._prune)
        if wait:
            self.flush()
        return path

    def load(
        self,
        iteration: int,
        device: str | torch.device = "cpu",
        envs: int | slice | Sequence[int] | None = None,
        keys: Sequence[Key] | Key | None = None,
        steps: int | slice | Sequence[int] | None = None,
    ) -> Any:
        """Return a rollout, or a part of it; only the bytes needed are read, and all verified.

        It is a TensorDict if one was saved and tensordict is installed, else nested dicts. Keys,
        shapes and element types are those that were saved, as far as they were asked for.

        Args:
            iteration: its number.
            device: where tensors go.
            envs: environments: a number (the axis is dropped), a slice, or numbers in any order.
            keys: names of keys, tuples for nested ones (or joined by `/`); a key with others below
                it means all of those.
            steps: steps, as `envs`.

        Raises:
            RolloutError: there is no such rollout, key, environment or step.
            ContainerError: the file is damaged; the message names the file and the array.
        """
        self.flush()
        reader = self._reader
        if reader is None or not reader.is_still(self.path(iteration)):
            reader = RolloutReader(self._existing(iteration))
        self._reader = reader
        # a file that was removed meanwhile would keep its space on the disk while it is open
        if self._closed or not reader.is_still(reader.path):
            self._reader = None
        return reader.read(device, envs, keys, steps)

    def info(self, iteration: int) -> RolloutInfo:
        """Return what a rollout holds, from the index of its file alone.

        Raises:
            RolloutError: there is no such rollout.
            ContainerError: the index is damaged, or not that of a rollout.
        """
        return rollout_info(read_index(self._existing(iteration)))

    def list(self) -> builtins.list[int]:
        """Return the iterations of the rollouts that are on the disk, in order."""
        self.flush()
        return sorted(_stored(self.folder))

    def latest(self) -> int | None:
        """Return the iteration of the rollout that was saved last, or None.

        The sequence number decides, not the iteration or the clock. Damaged files are skipped.
        """
        self.flush()
        ordered = _oldest_first(_stored(self.folder))
        return ordered[-1][0] if ordered else None

    def size(self, iteration: int | None = None) -> int:
        """Return the bytes on disk of one rollout, or of all."""
        if iteration is not None:
            return self._existing(iteration).stat().st_size
        self.flush()
        paths = _stored(self.folder).values()
        return sum(path.stat().st_size for path in paths if os.path.isfile(path))

    def delete(self, iteration: int) -> None:
        """Remove a rollout.

        Raises:
            RolloutError: there is no such rollout.
        """
        self._existing(iteration).unlink()
        self._reader = None
        sync_folder(self.folder)

    def path(self, iteration: int) -> Path:
        """Return where the rollout of an iteration is, or would be."""
        return self.folder / format_rollout_name(_checked_iteration(iteration))

    def flush(self) -> None:
        """Return when everything saved so far is on the disk.

        Raises:
            RolloutError: a save failed.
        """
        if self._writer is not None:
            with _as_rollout_errors():
                self._writer.flush()

    def close(self) -> None:
        """Write what is pending, stop the threads, raise what failed; reading still works."""
        self._closed, self._reader = True, None
        writer, self._writer = self._writer, None
        if writer is not None:
            with _as_rollout_errors():
                writer.shutdown()

    def get_stats(self) -> dict[str, float]:
        """Return counts, bytes and the time of the calls, as `AsyncCheckpointSaver.get_stats`.

        Empty before the first save.
        """
        return {} if self._writer is None else self._writer.get_stats()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}  # an open file stays in its process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except RolloutError as failed:
            if error is None:
                raise
            add_note(error, f"a rollout was not saved either: {failed}")

    def _existing(self, iteration: int) -> Path:
        """Return the file of a rollout, after pending saves."""
        path = self.path(iteration)
        self.flush()
        if not os.path.isfile(path):
            if (kind := irregular_kind(path)) is not None:
                raise RolloutError(f"{path}: found {kind}, expected the file of a rollout")
            known = sorted(_stored(self.folder))
            shown = (
                ", ".join(map(str, known[:3] + known[-3:] if len(known) > 6 else known)) or "none"
            )
            raise RolloutError(
                f"{self.folder}: no rollout of iteration {iteration}; there are {shown}"
            )
        return path

    def _next_number(self) -> int:
        """Return the sequence number of the next file; the first call reads all indexes."""
        if self._numbers is None:
            stored = _stored(self.folder)
            ages = _ages(stored)
            numbers = [number for number, _, _ in ages]
            unreadable = len(ages) < len(stored)
            self._numbers = SequenceNumbers(self.folder, numbers, unreadable=unreadable)
        return self._numbers.take()

    def _prune(self, written: Written) -> None:
        """Remove what `keep_last_n` does not keep; called in the background thread."""
        self._reader = None  # its file may be replaced or removed
        if self.keep_last_n is None:
            return
        stored = _stored(self.folder)
        items = [Item(stored[age[-1]], order=age) for age in _ages(stored)]
        if prunable := self.retention.prunable(items):
            for path in prunable:
                path.unlink(missing_ok=True)  # the user may have removed it
            sync_folder(self.folder)

    @property
    def keep_last_n(self) -> int | None:
        """How many of the last saved rollouts are kept; None keeps all."""
        return self.retention.keep_last_n


def _snapshot(plain: Any, pool: ArenaPool) -> Snapshot:
    return Snapshot(pack_state(plain), pool)


def _write_rollout(job: Job, threads: TaskThreads, *, level: int) -> Written:
    """Write the arrays by rows, cut from the copy as they are written."""
    sources = job.snapshot.sources()
    stored = complete_document(job.document, sources, job.snapshot.packed.tree)
    return write_container(
        job.path, stored, job.document, codec=job.codec, level=level, threads=threads
    )


def _checked_iteration(iteration: Any) -> int:
    """Return the number of an iteration as an int, whatever kind of integer it is."""
    try:
        number = -1 if isinstance(iteration, bool) else operator.index(iteration)
    except TypeError:
        number = -1
    if number < 0:
        raise RolloutError(f"iteration is {iteration!r:.60}; expected a whole number of at least 0")
    return number


def _stored(folder: Path) -> dict[int, Path]:
    """Return the files of a folder that are named like a rollout, by iteration."""
    if not os.path.isdir(folder):
        return {}
    found = ((ROLLOUT_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in found if match is not None}


def _ages(stored: Mapping[int, Path]) -> builtins.list[tuple[int, float, int]]:
    """Return (sequence number, time, iteration) of the rollouts with a readable index.

    Files of an older navrl have no number, and count as 0.
    """
    ages = []
    for iteration, path in stored.items():
        with suppress(ContainerError, FileNotFoundError):
            document = read_index(path).document
            created = document.get("created")
            time = created if isinstance(created, float) else 0.0
            ages.append((sequence_of(document) or 0, time, iteration))
    return ages


def _oldest_first(stored: Mapping[int, Path]) -> builtins.list[tuple[int, Path]]:
    """Return iteration and path of the rollouts with a readable index, as they were saved."""
    return [(iteration, stored[iteration]) for _, _, iteration in sorted(_ages(stored))]


@contextmanager
def _as_rollout_errors() -> Iterator[None]:
    """Turn the saver's errors into `RolloutError`."""
    try:
        yield
    except UnsupportedStateError:
        raise
    except CheckpointError as error:
        failed = RolloutError(str(error))
        for note in getattr(error, "__notes__", ()):
            add_note(failed, note)
        raise failed from error


def zstd_level(compression_level: int) -> int:
    """Return zstd's level for a compression level; the row codecs leave little to search for.

    Raises:
        ConfigError: there is no such level.
    """
    compression_level = whole_number("compression_level", compression_level, 0, MAX_LEVEL)
    return 1 if compression_level <= 9 else compression_level
