"""CheckpointDirectory: the checkpoints of one training run, by step; old ones go, the good ones and
the newest stay.
"""

from __future__ import annotations

import math
import os
import re
import threading
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from navrl.arguments import as_mapping, as_path
from navrl.errors import CheckpointError, ConfigError, ContainerError
from navrl.io.checkpoint.checkpoint_file import (
    NoCheckpointError,
    load_checkpoint,
    verify_checkpoint,
)
from navrl.io.checkpoint.differences import base_of
from navrl.io.checkpoint.saver import AsyncCheckpointSaver, OnDone
from navrl.io.checkpoint.step_names import format_checkpoint_name
from navrl.io.checkpoint.torch_files import UnsafePickleError
from navrl.io.container.atomic_files import (
    irregular_kind,
    make_folder,
    point_alias,
    remove_stale_files,
    sync_folder,
)
from navrl.io.container.codecs import DEFAULT_CODEC
from navrl.io.container.container_writer import Written
from navrl.io.container.index import read_index
from navrl.io.container.sequence import SequenceNumbers, sequence_of
from navrl.io.retention import Item, Retention, rank

__all__ = ["CheckpointDirectory", "Entry"]

_STEP = re.compile(r"checkpoint_(\d{9,})\.pt")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LATEST = "latest"
# The last two: it was pruned meanwhile, or is no file at all.
_NOT_WHOLE = (ContainerError, UnsafePickleError, FileNotFoundError, NoCheckpointError)


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a run, as far as its index tells."""

    step: int
    path: Path
    metrics: Mapping[str, float | None]  # None: was not finite
    config: Any
    created: float  # by the clock, which may have been wrong: for people
    raw_bytes: int
    stored_bytes: int
    base: str | None = None  # the file that this one builds on
    sequence: int | None = None  # orders files; those of an older navrl have None and come first


def _age(entry: Entry) -> tuple[int, float, int]:
    """Return a key that sorts checkpoints in the order in which they were saved.

    Not by step: a run resumed from an older step goes back in steps.
    """
    return entry.sequence or 0, entry.created, entry.step


def _item(entry: Entry, *, pinned: bool = False) -> Item[Entry]:
    """Return a checkpoint as the retention policy sees it."""
    return Item(
        entry,
        order=_age(entry),
        step=entry.step,
        metrics=entry.metrics,
        pinned=pinned,
        name=entry.path.name,
        base=entry.base,
    )


class CheckpointDirectory:
    """The checkpoints of one run: `save` by step in the background, `latest`, `best`, `load`, and
    pruning.

    Args:
        folder: where they live; created. What dead writers left half-written is removed.
        keep_last_n, keep_best, metric, mode, keep_every: see `Retention`.
        optimizers, max_queue_size, codec, level, delta_chain, lossy_moments, on_error,
            on_done: see `AsyncCheckpointSaver`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last_n: int | None = None,
        keep_best: int = 0,
        metric: str | None = None,
        mode: Literal["max", "min"] = "max",
        keep_every: int = 0,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        max_queue_size: int = 3,
        codec: str = DEFAULT_CODEC,
        level: int | None = None,
        delta_chain: int = 0,
        lossy_moments: bool = False,
        on_error: Literal["raise", "warn"] = "raise",
        on_done: OnDone | None = None,
    ) -> None:
        self.folder = as_path("folder", folder).absolute()
        # held while names are given, and while what has none is removed
        self._naming = threading.Lock()
        self.retention = Retention(keep_last_n, keep_best, metric, mode, keep_every)
        make_folder(self.folder)
        remove_stale_files(self.folder)
        entries = self.entries()
        unreadable = len(entries) < len(_checkpoint_files(self.folder))
        self._numbers = SequenceNumbers(self.folder, _sequences(entries), unreadable=unreadable)
        self.saver = AsyncCheckpointSaver(
            max_queue_size,
            optimizers=optimizers,
            codec=codec,
            level=level,
            delta_chain=delta_chain,
            lossy_moments=lossy_moments,
            on_error=on_error,
            on_done=on_done,
        )

    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, float] | None = None,
        config: Any = None,
        compress: bool = True,
    ) -> Path:
        """Save a state under its step in the background and return the path that it will have.

        When the file is on the disk, the alias `latest` moves to it, and then what the rules do not
        keep is removed. `metrics` and `config` are kept in the index: listing a folder reads no
        array.
        """
        path = self.folder / format_checkpoint_name(step)
        known = as_mapping("metrics", metrics)
        finite = {
            name: float(value) if math.isfinite(value) else None for name, value in known.items()
        }
        metadata = {"step": int(step), "metrics": finite, "config": config}
        number = self._numbers.take()
        self.saver.save_async(state, path, compress, metadata, sequence=number, after=self._saved)
        return path

    def _saved(self, written: Written) -> None:
        with self._naming:
            point_alias(self.folder / LATEST, written.path.name)
        self.prune()

    def entries(self) -> list[Entry]:
        """Return the readable checkpoints by step; a damaged index is left out."""
        return list_entries(self.folder)

    def latest(self) -> Entry | None:
        """Return the checkpoint that was saved last, by its sequence number, or None."""
        return max(self.entries(), key=_age, default=None)

    def best(
        self, metric: str | None = None, mode: Literal["max", "min"] | None = None
    ) -> Entry | None:
        """Return the best checkpoint by a metric (default: the one of the retention rules), or
        None.
        """
        metric = metric or self.retention.metric
        if metric is None:
            raise ConfigError(
                "best() needs the name of a metric: none was given here or to the "
                "CheckpointDirectory"
            )
        ranked = rank(map(_item, self.entries()), metric, mode or self.retention.mode)
        return ranked[0].stored if ranked else None

    def load(
        self, step: int | None = None, *, device: str | torch.device = "cpu", into: Any = None
    ) -> Any:
        """Return the state of a step; by default of the last saved that is whole.

        A warning names later ones that are not whole.
        With `into`, live tensors are filled in place, once no save is being copied from them any
        more.

        Raises:
            CheckpointError: there is none.
            ContainerError: the checkpoint of the step asked for is damaged.
        """
        if into is not None:
            self.saver.barrier()
        if step is not None:
            return load_checkpoint(self.folder / format_checkpoint_name(step), device, into=into)
        damaged = []
        entries = self.entries()
        for path in _newest_first(self.folder, entries):
            try:
                if into is not None:
                    # a damaged file must not leave its half in live tensors
                    verify_checkpoint(path)
                state = load_checkpoint(path, device, into=into)
            except _NOT_WHOLE as error:
                damaged.append(str(error))
                continue
            if damaged:
                warnings.warn(
                    f"{path.name} was loaded, because: {'; '.join(damaged)}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            elif entries and path not in {entry.path for entry in entries}:
                warnings.warn(
                    f"{path.name} was loaded, going by its step: it is no container of navrl, so "
                    "that it does not say whether it was saved before or after the others",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return state
        raise CheckpointError(
            f"{self.folder}: no whole checkpoint" + "".join(f"; {line}" for line in damaged)
        )

    def alias(self, name: str, step: int) -> Path:
        """Point a name, such as `best` or `v1.0`, at the checkpoint of a step; pruning spares what
        has a name.
        """
        if not _ALIAS.fullmatch(name) or _STEP.fullmatch(name):
            raise ConfigError(
                f"alias {name!r}: expected letters, digits, '.', '_' and '-', and no "
                "checkpoint's name"
            )
        target = format_checkpoint_name(step)
        alias = self.folder / name
        if alias.exists() and not alias.is_symlink():
            raise CheckpointError(
                f"{alias}: a file or folder stands there, which a name would replace; use "
                "another name"
            )
        with self._naming:
            if (self.folder / target).is_file():
                point_alias(alias, target)
            if not (self.folder / target).is_file():  # perhaps since: another process may prune
                if alias.is_symlink() and os.readlink(alias) == target:
                    alias.unlink()
                raise CheckpointError(
                    f"{self.folder / target}: no such checkpoint to name {name!r}"
                )
        return alias

    def prune(self) -> list[Entry]:
        """Remove what neither a rule nor an alias keeps, and return what was removed."""
        with self._naming:
            entries = self.entries()
            self._numbers.saw(_sequences(entries))
            return _prune(self.folder, self.retention, entries)

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything saved so far is on the disk."""
        self.saver.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Write everything that is pending and stop; raise what failed."""
        self.saver.shutdown(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.saver.__exit__(kind, error, trace)


def list_entries(folder: str | os.PathLike[str]) -> list[Entry]:
    """Return the readable checkpoints of a folder by step; only their indexes are read."""
    entries = []
    for step, path in _checkpoint_files(folder):
        with suppress(ContainerError, FileNotFoundError):
            index = read_index(path)
            metadata = _dict_or_empty(index.document.get("metadata"))
            created = index.document.get("created")
            entries.append(
                Entry(
                    step=step,
                    path=path,
                    metrics=_dict_or_empty(metadata.get("metrics")),
                    config=metadata.get("config"),
                    created=created if isinstance(created, float) else 0.0,
                    sequence=sequence_of(index.document),
                    raw_bytes=index.size,
                    stored_bytes=index.file_size,
                    base=base.file if (base := base_of(index)) else None,
                )
            )
    return entries


def newest_whole(folder: str | os.PathLike[str]) -> Path:
    """Return the checkpoint that was saved last and is whole; the folder is only read.

    A warning names later ones that are not whole.

    Raises:
        NoCheckpointError: there is none.
        OSError: the folder cannot be read.
    """
    damaged: list[str] = []
    for path in _newest_first(folder, list_entries(folder)):
        try:
            verify_checkpoint(path)
        except _NOT_WHOLE as error:
            damaged.append(str(error))
            continue
        if damaged:
            told = f"{path.name} is used, because: {'; '.join(damaged)}"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        return path
    raise NoCheckpointError(
        f"{folder}: no whole checkpoint" + "".join(f"; {line}" for line in damaged)
    )


def list_unreadable(folder: str | os.PathLike[str]) -> dict[Path, str]:
    """Return what is named like a checkpoint and has no readable index, with the reason."""
    reasons = {}
    for _, path in _checkpoint_files(folder):
        try:
            base_of(read_index(path))
        except ContainerError as error:
            reasons[path] = str(error)
        except FileNotFoundError:  # pruned meanwhile
            continue
    return reasons


def _sequences(entries: Iterable[Entry]) -> list[int]:
    return [entry.sequence for entry in entries if entry.sequence is not None]


def _checkpoint_files(folder: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Return step and path of all that is named like a checkpoint, by step.

    Links to files are left out: they are aliases.
    """
    matches = ((_STEP.fullmatch(path.name), path) for path in Path(folder).iterdir())
    named = [(int(match[1]), path) for match, path in matches if match]
    return sorted((step, path) for step, path in named if not _is_link_to_file(path))


def _is_link_to_file(path: Path) -> bool:
    return path.is_symlink() and irregular_kind(path) is None


def _newest_first(folder: str | os.PathLike[str], entries: Iterable[Entry]) -> list[Path]:
    """Return all that is named like a checkpoint, the last saved first.

    What has no readable index (damaged, of `torch.save`, or no file at all) goes by its step: it
    follows the checkpoint with the next lower one.
    """
    ordered = [entry.path for entry in sorted(entries, key=_age)]
    known = set(ordered)
    before = None
    for _, path in _checkpoint_files(folder):  # by step
        if path not in known:
            ordered.insert(0 if before is None else ordered.index(before) + 1, path)
        before = path
    return ordered[::-1]


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def list_aliases(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the names of a folder and the files that they point at, as seen from the folder."""
    home = os.path.realpath(folder)
    aliases = {}
    for path in Path(folder).iterdir():
        if (
            path.name.startswith(".navrl-") or not path.is_symlink()
        ):  # the former are about to be renamed
            continue
        with suppress(OSError):  # gone, or replaced, since it was listed
            aliases[path.name] = os.path.relpath(
                os.path.realpath(os.path.join(home, os.readlink(path))), home
            )
    return aliases


def prune(
    folder: str | os.PathLike[str], retention: Retention, *, dry_run: bool = False
) -> list[Entry]:
    """Remove the checkpoints that neither a rule, an alias nor a kept checkpoint needs, and return
    them.
    """
    return _prune(folder, retention, list_entries(folder), dry_run=dry_run)


def _prune(
    folder: str | os.PathLike[str],
    retention: Retention,
    entries: list[Entry],
    *,
    dry_run: bool = False,
) -> list[Entry]:
    named = set(list_aliases(folder).values())
    items = [_item(entry, pinned=entry.path.name in named) for entry in entries]
    prunable = retention.prunable(items)
    if not dry_run:
        _remove(folder, prunable)
    return prunable


def _remove(folder: str | os.PathLike[str], entries: list[Entry]) -> None:
    """Remove checkpoints, those that build on others first, so that a crash leaves none without its
    base.
    """
    while entries:
        bases = {entry.base for entry in entries}
        first = [entry for entry in entries if entry.path.name not in bases] or entries
        for entry in first:
            with suppress(FileNotFoundError):
                entry.path.unlink()
        sync_folder(folder)
        entries = [entry for entry in entries if entry not in first]
