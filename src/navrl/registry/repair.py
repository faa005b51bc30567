"""Repairs a registry whose database or journal is damaged or lost. Nothing is deleted."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.errors import RegistryError
from navrl.registry.blobs import BlobStore, Stored
from navrl.registry.database import Database, empty_database
from navrl.registry.journal import set_aside
from navrl.registry.journal_sync import catch_up, rewrite_journal
from navrl.registry.transaction import all_rows

if TYPE_CHECKING:
    from navrl.registry.registry import Registry

__all__ = ["RECOVERED", "Repair", "repair"]

RECOVERED = "recovered"  # the model that unowned files become versions of


@dataclass(frozen=True)
class Repair:
    """What `repair` did, and what is still missing.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     version = registry.register("policy", PRETRAINED)
    ...     repair = registry.repair()
    >>> repair.versions, repair.missing
    (1, ())
    """

    kept: tuple[Path, ...]  # damaged databases and journals, by their new names
    rebuilt: bool  # the database was rebuilt from the journal
    versions: int  # after the repair
    adopted: tuple[str, ...]  # labels that unowned files got
    returned: tuple[str, ...]  # labels of versions whose files were in quarantine
    quarantined: tuple[Path, ...]  # damaged unowned files, by their new paths
    missing: tuple[str, ...]  # labels of versions whose files are missing

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(vars(self), default=str))
        return plain


def repair(registry: Registry, database: Database, blobs: BlobStore) -> Repair:
    """Rebuild the database or the journal, whichever is damaged, from the other; adopt files.

    Every undamaged unowned file becomes a version of `recovered`. See `Registry.repair`.
    """
    before = _kept(database)
    with database.alone():
        rebuilt = _rebuild(database)
    returned = _return_files(registry, blobs)
    adopted, quarantined = _adopt(registry, blobs)
    versions = [version for model in registry.models() for version in registry.versions(model.name)]
    return Repair(
        kept=tuple(sorted(_kept(database) - before)),
        rebuilt=rebuilt,
        versions=len(versions),
        adopted=tuple(adopted),
        returned=tuple(returned),
        quarantined=tuple(quarantined),
        missing=tuple(version.label for version in versions if not version.path.is_file()),
    )


def _rebuild(database: Database) -> bool:
    """Rebuild the database or the journal if damaged; return whether it was the database."""
    journal_is_damaged = database.journal.fault() is not None
    rebuilt = database.is_damaged() or (not journal_is_damaged and _differs(database))
    if rebuilt:
        database.close()
        _set_database_aside(database.path)
    with database.writing() as transaction:  # rebuilds it from the journal, if it was set aside
        if database.journal.fault() is not None:
            set_aside(database.journal.path)
            rewrite_journal(transaction.connection, database.journal)
    return rebuilt


def _kept(database: Database) -> set[Path]:
    """Return the damaged databases and journals that were renamed and kept."""
    pairs = ((path.parent, path.name) for path in (database.path, database.journal.path))
    found = (path for folder, name in pairs for path in folder.glob(f"{name}.damaged-*"))
    return {path for path in found if path.suffix[-4:] not in ("-wal", "-shm")}


def _differs(database: Database) -> bool:
    """Return whether the database differs from what the journal says."""
    with database.writing() as transaction:
        made = empty_database()
        catch_up(made, database.journal)
        return [*all_rows(made)] != [*all_rows(transaction.connection)]


def _set_database_aside(path: Path) -> None:
    """Rename a database and its write-ahead log, which fits no other database."""
    if path.exists():
        kept = set_aside(path)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{kept}{suffix}")


def _return_files(registry: Registry, blobs: BlobStore) -> list[str]:
    """Take the files that versions need out of quarantine; return those versions' labels."""
    returned = []
    for model in registry.models():
        for version in registry.versions(model.name):
            if not blobs.holds(version.digest) and blobs.take_from_quarantine(version.digest):
                returned.append(version.label)
    return returned


def _adopt(registry: Registry, blobs: BlobStore) -> tuple[list[str], list[Path]]:
    """Register the unowned files; damaged ones go into quarantine."""
    adopted, quarantined = [], []
    for digest in registry.unowned_files():
        if blobs.fault(Stored(digest, blobs.size(digest))) is None:
            with suppress(RegistryError):
                lineage = {"git": {}, "file": digest}
                tags = {RECOVERED: ""}
                path = blobs.path(digest)
                version = registry.register(RECOVERED, path, tags=tags, lineage=lineage)
                adopted.append(version.label)
                continue
        quarantined.append(blobs.put_into_quarantine(digest))
    return adopted, quarantined
