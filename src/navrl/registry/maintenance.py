"""Garbage collection and verification of a registry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from navrl.registry.blobs import BlobStore, Stored
from navrl.registry.database import Database, explained
from navrl.registry.queries import Queries, reading, writing

__all__ = ["Damage", "Garbage", "collect_garbage", "discard", "unowned", "verify"]


class Damage(NamedTuple):
    """What `verify` found: a version (`name:v3`), the database or the journal, and its fault.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     path = registry.register("policy", PRETRAINED).path
    ...     path.chmod(0o600)
    ...     written = path.write_bytes(b"damaged")
    ...     [damage] = registry.verify()
    >>> damage.label
    'policy:v1'
    """

    label: str
    path: Path
    problem: str


@dataclass(frozen=True)
class Garbage:
    """What `collect_garbage` removed or, in a dry run, would remove.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     version = registry.register("policy", PRETRAINED)
    ...     registry.collect_garbage(dry_run=True).bytes
    0
    """

    # of deleted versions, of dead writers (temporary), and of a purged quarantine
    files: tuple[Path, ...]
    bytes: int
    quarantined: tuple[Path, ...] = ()  # unowned files, by their paths before they were moved


def collect_garbage(
    database: Database, blobs: BlobStore, dry_run: bool, purge_quarantine: bool
) -> Garbage:
    """Remove what no version refers to; see `Registry.collect_garbage`."""
    with explained(database.path.parent):
        quarantine = blobs.quarantined() if purge_quarantine else []
        purged = {path: path.stat().st_size for path in quarantine}
        digests = list(blobs.digests())
        access = reading if dry_run or not digests else writing
        with access(database, blobs) as queries:
            unused = [digest for digest in digests if not queries.uses(digest)]
            deleted = {
                digest: blobs.size(digest) for digest in unused if queries.was_deleted(digest)
            }
            unknown = [digest for digest in unused if digest not in deleted and blobs.holds(digest)]
            if not dry_run:
                _remove(queries, blobs, deleted)
                for digest in unknown:
                    blobs.put_into_quarantine(digest)
        leftovers = blobs.leftovers() if dry_run else blobs.remove_leftovers()
        for path in () if dry_run else purged:
            path.unlink(missing_ok=True)
    return Garbage(
        files=(*map(blobs.path, deleted), *leftovers, *purged),
        bytes=sum(deleted.values()) + sum(purged.values()),
        quarantined=tuple(map(blobs.path, unknown)),
    )


def unowned(queries: Queries, blobs: BlobStore) -> list[str]:
    """Return the digests of the files that no version refers to and no deleted version left."""
    return [
        digest
        for digest in blobs.digests()
        if not queries.uses(digest) and not queries.was_deleted(digest)
    ]


def discard(database: Database, blobs: BlobStore, digests: Sequence[str]) -> None:
    """Remove those of the files that no version refers to.

    No process can begin to refer to one meanwhile: it too would have to be the only writer, and
    check that the file is there.
    """
    if not digests:
        return
    with explained(database.path.parent), writing(database, blobs) as queries:
        unused = [digest for digest in dict.fromkeys(digests) if not queries.uses(digest)]
        _remove(queries, blobs, unused)


def _remove(queries: Queries, blobs: BlobStore, digests: Iterable[str]) -> None:
    """Remove files inside a transaction, and the notes that they may be removed."""
    for digest in digests:
        blobs.remove(digest)
        if queries.was_deleted(digest):
            queries.forget(digest)


def verify(database: Database, blobs: BlobStore) -> list[Damage]:
    """Check the database, the journal, and every file against its digest; return all damage."""
    with reading(database, blobs) as queries:
        versions = queries.all_versions()
        found = [Damage("database", database.path, fault) for fault in queries.faults()]
    if problem := database.journal.fault():
        found.append(Damage("journal", database.journal.path, problem))
    files = {Stored(version.digest, version.size) for version in versions}
    faults = {stored: blobs.fault(stored) for stored in files}
    with reading(database, blobs) as queries:  # again: a version deleted meanwhile is not damaged
        left = [
            version
            for version in versions
            if queries.version(version.name, version.version) is not None
        ]
    for version in left:
        if problem := faults[Stored(version.digest, version.size)]:
            found.append(Damage(version.label, version.path, problem))
    return found
