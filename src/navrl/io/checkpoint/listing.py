"""What a folder of checkpoints holds, from the indexes of its files alone; nothing is changed."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navrl.errors import ContainerError
from navrl.io.checkpoint.checkpoint_file import NoCheckpointError, verify_checkpoint
from navrl.io.checkpoint.differences import base_of
from navrl.io.checkpoint.parts import parts_of
from navrl.io.checkpoint.torch_files import UnsafePickleError
from navrl.io.container.atomic_files import irregular_kind
from navrl.io.container.index import read_index
from navrl.io.container.sequence import sequence_of
from navrl.io.container.step_names import format_rollout_name

__all__ = [
    "CHECKPOINT_NAME",
    "NOT_WHOLE",
    "Entry",
    "list_aliases",
    "list_entries",
    "list_unreadable",
    "newest_first",
    "newest_whole",
]

CHECKPOINT_NAME = re.compile(r"checkpoint_(\d{9,})\.pt")
# what loading raises for a file that is damaged, is not a checkpoint, or was pruned meanwhile
NOT_WHOLE = (ContainerError, UnsafePickleError, FileNotFoundError, NoCheckpointError)


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a run, as its index describes it.

    >>> from navrl.io import CheckpointDirectory
    >>> with CheckpointDirectory("checkpoints") as checkpoints:
    ...     path = checkpoints.save(100, {"step": 100}, metrics={"success": 0.5})
    >>> entry = checkpoints.latest()
    >>> entry.step, entry.metrics
    (100, {'success': 0.5})
    """

    step: int
    path: Path
    metrics: Mapping[str, float | None]  # None: was not finite
    config: Any
    created: float  # by the clock, which may have been wrong: for people
    raw_bytes: int  # of all its files
    stored_bytes: int
    base: str | None = None  # the file that this one is a difference to
    sequence: int | None = None  # orders files; those of an older navrl have None and come first
    parts: tuple[str, ...] = ()  # files of the other ranks, which belong to it

    @property
    def age(self) -> tuple[int, float, int]:
        """A key that sorts checkpoints in the order in which they were saved.

        Not by step: a run resumed from an older step goes back in steps.
        """
        return self.sequence or 0, self.created, self.step

    @property
    def rollout_path(self) -> Path:
        """Where a batch kept beside this checkpoint would be."""
        return self.path.parent / format_rollout_name(self.step)


def list_entries(folder: str | os.PathLike[str]) -> list[Entry]:
    """Return the readable checkpoints of a folder by step; only their indexes are read."""
    entries = []
    for step, path in checkpoint_files(folder):
        with suppress(ContainerError, FileNotFoundError):
            entries.append(_read_entry(step, path))
    return entries


def _read_entry(step: int, path: Path) -> Entry:
    index = read_index(path)
    metadata = dict_or_empty(index.document.get("metadata"))
    created = index.document.get("created")
    parts = parts_of(index)
    return Entry(
        step=step,
        path=path,
        metrics=dict_or_empty(metadata.get("metrics")),
        config=metadata.get("config"),
        created=created if isinstance(created, float) else 0.0,
        sequence=sequence_of(index.document),
        raw_bytes=index.size + parts.raw_bytes,
        stored_bytes=index.file_size + parts.stored_bytes,
        parts=tuple(part.file for part in parts.parts),
        base=base.file if (base := base_of(index)) else None,
    )


def list_unreadable(folder: str | os.PathLike[str]) -> dict[Path, str]:
    """Return what is named like a checkpoint but has no readable index, with the reason."""
    reasons = {}
    for _, path in checkpoint_files(folder):
        try:
            index = read_index(path)
            base_of(index)
            parts_of(index)
        except ContainerError as error:
            reasons[path] = str(error)
        except FileNotFoundError:  # pruned meanwhile
            continue
    return reasons


def list_aliases(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the aliases of a folder, and the files they point at, relative to the folder."""
    home = os.path.realpath(folder)
    aliases = {}
    for path in Path(folder).iterdir():
        # an alias with a temporary name is about to be renamed
        if path.name.startswith(".navrl-") or not path.is_symlink():
            continue
        with suppress(OSError):  # removed or replaced since it was listed
            target = os.path.realpath(os.path.join(home, os.readlink(path)))
            aliases[path.name] = os.path.relpath(target, home)
    return aliases


def checkpoint_files(folder: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Return step and path of everything that is named like a checkpoint, by step.

    Links to files are left out: they are aliases.
    """
    matches = ((CHECKPOINT_NAME.fullmatch(path.name), path) for path in Path(folder).iterdir())
    named = [(int(match[1]), path) for match, path in matches if match]
    return sorted((step, path) for step, path in named if not _is_link_to_file(path))


def newest_first(folder: str | os.PathLike[str], entries: Iterable[Entry]) -> list[Path]:
    """Return everything that is named like a checkpoint, the last saved first.

    What has no readable index (damaged, of `torch.save`, or no file at all) is ordered by its step:
    it counts as saved after the checkpoint with the next lower step.
    """
    ordered = [entry.path for entry in sorted(entries, key=lambda entry: entry.age)]
    known = set(ordered)
    before = None
    for _, path in checkpoint_files(folder):  # by step
        if path not in known:
            ordered.insert(0 if before is None else ordered.index(before) + 1, path)
        before = path
    return ordered[::-1]


def newest_whole(folder: str | os.PathLike[str]) -> Path:
    """Return the last saved checkpoint that is whole; a warning names later ones that are not.

    Raises:
        NoCheckpointError: there is none.
        OSError: the folder cannot be read.
    """
    damaged: list[str] = []
    for path in newest_first(folder, list_entries(folder)):
        try:
            verify_checkpoint(path)
        except NOT_WHOLE as error:
            damaged.append(str(error))
            continue
        if damaged:
            warnings.warn(
                f"using {path.name}, because later checkpoints are not whole: {'; '.join(damaged)}",
                RuntimeWarning,
                stacklevel=2,
            )
        return path
    raise NoCheckpointError(
        f"{folder}: no whole checkpoint" + "".join(f"; {line}" for line in damaged)
    )


def _is_link_to_file(path: Path) -> bool:
    return path.is_symlink() and irregular_kind(path) is None


def dict_or_empty(value: Any) -> dict[str, Any]:
    """Return a value of a document that should be a dict; an empty one if it is none."""
    return value if isinstance(value, dict) else {}
