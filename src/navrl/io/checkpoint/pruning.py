"""Remove the checkpoints that retention does not keep, with the batches kept beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from navrl.errors import ContainerError
from navrl.io.checkpoint.listing import Entry, checkpoint_files, list_aliases, list_entries
from navrl.io.checkpoint.parts import unused_parts
from navrl.io.container.atomic_files import sync_folder
from navrl.io.container.index import read_index
from navrl.io.container.sequence import sequence_of
from navrl.io.container.step_names import ROLLOUT_NAME
from navrl.io.retention import Item, Retention

__all__ = ["as_item", "prune", "prune_entries", "remove_orphaned_rollouts", "remove_unused_parts"]


def as_item(entry: Entry, *, pinned: bool = False) -> Item[Entry]:
    """Return a checkpoint as the retention policy sees it."""
    return Item(
        entry,
        order=entry.age,
        step=entry.step,
        metrics=entry.metrics,
        pinned=pinned,
        name=entry.path.name,
        base=entry.base,
    )


def prune(
    folder: str | os.PathLike[str],
    retention: Retention,
    *,
    with_rollouts: bool = False,
    dry_run: bool = False,
) -> list[Entry]:
    """Remove the checkpoints that no rule, alias or kept difference needs; return them.

    Args:
        folder: of the checkpoints.
        retention: the rules.
        with_rollouts: also remove `rollout_STEP.navrl` of a checkpoint that is removed.
        dry_run: remove nothing.
    """
    entries = list_entries(folder)
    return prune_entries(folder, retention, entries, with_rollouts=with_rollouts, dry_run=dry_run)


def prune_entries(
    folder: str | os.PathLike[str],
    retention: Retention,
    entries: Sequence[Entry],
    *,
    with_rollouts: bool = False,
    dry_run: bool = False,
) -> list[Entry]:
    """Do what `prune` does, with the entries of the folder listed already."""
    named = set(list_aliases(folder).values())
    items = [as_item(entry, pinned=entry.path.name in named) for entry in entries]
    prunable = retention.prunable(items)
    if not dry_run:
        _remove(folder, prunable, with_rollouts)
    return prunable


def _remove(folder: str | os.PathLike[str], entries: Sequence[Entry], with_rollouts: bool) -> None:
    """Remove checkpoints, differences before their bases: a crash leaves none without its base.

    A batch goes before its checkpoint, so that a crash leaves none without one. Parts go after it:
    a checkpoint without its parts would count as damaged.
    """
    while entries:
        bases = {entry.base for entry in entries}
        first = [entry for entry in entries if entry.path.name not in bases] or entries
        for entry in first:
            if with_rollouts:
                entry.rollout_path.unlink(missing_ok=True)
            entry.path.unlink(missing_ok=True)
            for part in entry.parts:
                (entry.path.parent / part).unlink(missing_ok=True)
        sync_folder(folder)
        entries = [entry for entry in entries if entry not in first]


def remove_unused_parts(
    folder: str | os.PathLike[str], entries: Sequence[Entry], *, dry_run: bool = False
) -> list[Path]:
    """Remove parts of other ranks that no checkpoint names, and return their paths."""
    readable = {entry.step for entry in entries}
    unused = unused_parts(
        folder,
        used={part for entry in entries for part in entry.parts},
        kept_steps={step for step, _ in checkpoint_files(folder) if step not in readable},
        newest=max((entry.sequence or 0 for entry in entries), default=0),
    )
    if unused and not dry_run:
        for path in unused:
            path.unlink(missing_ok=True)
        sync_folder(folder)
    return unused


def remove_orphaned_rollouts(
    folder: str | os.PathLike[str], entries: Sequence[Entry], *, dry_run: bool = False
) -> list[Path]:
    """Remove batches whose checkpoint is gone or was never written, and return their paths.

    A batch is saved after its checkpoint, and checkpoints are written in order. So a checkpoint
    with a higher sequence number shows that the batch's own is not still being written.
    """
    newest = max((entry.sequence or 0 for entry in entries), default=0)
    steps = {step for step, _ in checkpoint_files(folder)}
    orphans = []
    for path in sorted(Path(folder).iterdir()):
        match = ROLLOUT_NAME.fullmatch(path.name)
        if match is None or int(match[1]) in steps:
            continue
        with suppress(ContainerError, FileNotFoundError):  # an unreadable file is never removed
            if (sequence_of(read_index(path).document) or 0) < newest:
                orphans.append(path)
    if orphans and not dry_run:
        for path in orphans:
            path.unlink(missing_ok=True)
        sync_folder(folder)
    return orphans
