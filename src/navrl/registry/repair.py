"""Repair of a registry whose database or journal is damaged or lost. Nothing is deleted."""

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

RECOVERED = "recovered"  # the model whose versions are files of which no record is left


@dataclass(frozen=True)
class Repair:
    """What `repair` did, and what it could not do."""

    kept: tuple[Path, ...]  # damaged databases and journals, under the names that they have now
    rebuilt: bool  # the database was made again from the journal
    versions: int  # that there are now
    adopted: tuple[str, ...]  # files without any record, by the labels that they have now
    returned: tuple[str, ...]  # labels of versions whose files came back from quarantine
    quarantined: tuple[Path, ...]  # damaged files without any record, where they are now
    missing: tuple[str, ...]  # labels of versions whose files are gone

    def as_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        plain: dict[str, Any] = json.loads(json.dumps(vars(self), default=str))
        return plain


def repair(registry: Registry, database: Database, files: BlobStore) -> Repair:
    """Make database or journal, whichever is damaged, again from the other; adopt files.

    Every whole file without a record becomes a version of `recovered`. See `Registry.repair`.
    """
    before = _kept(database)
    with database.alone():
        rebuilt = _mend_records(database)
    returned = _return_files(registry, files)
    adopted, quarantined = _adopt(registry, files)
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


def _mend_records(database: Database) -> bool:
    """Make database or journal, whichever is damaged, again; return whether it was the database."""
    journal_is_damaged = database.journal.fault() is not None
    rebuilt = database.is_damaged() or (not journal_is_damaged and _differs(database))
    if rebuilt:
        database.close()
        _set_database_aside(database.path)
    with database.writing() as transaction:  # makes it again from the journal, if it was put aside
        if database.journal.fault() is not None:
            set_aside(database.journal.path)
            rewrite_journal(transaction.connection, database.journal)
    return rebuilt


def _kept(database: Database) -> set[Path]:
    """Return the damaged databases and journals that were kept under other names."""
    pairs = ((path.parent, path.name) for path in (database.path, database.journal.path))
    found = (path for folder, name in pairs for path in folder.glob(f"{name}.damaged-*"))
    return {path for path in found if path.suffix[-4:] not in ("-wal", "-shm")}


def _differs(database: Database) -> bool:
    """Return whether the database holds other rows than the journal says."""
    with database.writing() as transaction:
        made = empty_database()
        catch_up(made, database.journal)
        return [*all_rows(made)] != [*all_rows(transaction.connection)]


def _set_database_aside(path: Path) -> None:
    """Keep a database under another name, with its log, which belongs to no other."""
    if path.exists():
        kept = set_aside(path)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{kept}{suffix}")


def _return_files(registry: Registry, files: BlobStore) -> list[str]:
    """Put files that versions need back from quarantine; return the labels of those versions."""
    returned = []
    for model in registry.models():
        for version in registry.versions(model.name):
            if not files.holds(version.digest) and files.take_from_quarantine(version.digest):
                returned.append(version.label)
    return returned


def _adopt(registry: Registry, files: BlobStore) -> tuple[list[str], list[Path]]:
    """Register the files without a record; those that are damaged go into quarantine."""
    adopted, quarantined = [], []
    for digest in registry.unknown_files():
        if files.fault(Stored(digest, files.size(digest))) is None:
            with suppress(RegistryError):
                lineage = {"git": {}, "file": digest}
                tags = {RECOVERED: ""}
                path = files.path(digest)
                version = registry.register(RECOVERED, path, tags=tags, lineage=lineage)
                adopted.append(version.label)
                continue
        quarantined.append(files.put_into_quarantine(digest))
    return adopted, quarantined
