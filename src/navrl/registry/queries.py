"""Queries: what one transaction reads from the tables and changes in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from navrl.errors import RegistryError, nearest_name
from navrl.registry import aliases, validation
from navrl.registry.blobs import BlobStore
from navrl.registry.database import Database
from navrl.registry.model_names import Reference, parse_reference
from navrl.registry.schema import AliasMove, ModelSummary, ModelVersion, instant, version_of
from navrl.registry.transaction import Transaction


@contextmanager
def reading(database: Database, blobs: BlobStore) -> Iterator[Queries]:
    """Give the queries of a transaction that sees one moment of the registry."""
    with database.reading() as transaction:
        yield Queries(transaction, blobs)


@contextmanager
def writing(database: Database, blobs: BlobStore) -> Iterator[Queries]:
    """Give the queries of a transaction that is committed if the block succeeds."""
    with database.writing() as transaction:
        yield Queries(transaction, blobs)


class Queries:
    """Reads and changes the tables inside a transaction."""

    def __init__(self, transaction: Transaction, blobs: BlobStore) -> None:
        self._transaction = transaction
        self._connection = transaction.connection
        self._blobs = blobs

    def find(self, reference: Reference) -> ModelVersion:
        """Return the version that a reference means.

        Raises:
            RegistryError: there is none; the message says which there are.
        """
        name = reference.name
        number = reference.version
        known = aliases.current(self._connection, name)
        if number is None:
            number = known.get(reference.alias or "")
        found = self.version(name, number) if number is not None else None
        if found is not None:
            return found
        self.check_model(name)
        numbers = [version.version for version in self.versions(name)]
        there = f"v{numbers[0]} to v{numbers[-1]}" if len(numbers) > 1 else f"v{numbers[0]}"
        raise RegistryError(
            f"model {name!r} has no {reference.label or reference.alias!r}; it has {there}"
            f"{', aliases ' + ', '.join(known) if known else ', no aliases'}."
            f"{nearest_name(reference.label or '', known)} `navrl models show {name}` lists them"
        )

    def version(self, name: str, number: int) -> ModelVersion | None:
        """Return a version by its number, or None."""
        row = self._connection.execute(
            "SELECT * FROM versions WHERE name = ? AND version = ?", (name, number)
        ).fetchone()
        return self._record(row, aliases.current(self._connection, name)) if row else None

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions of a model, oldest first."""
        known = aliases.current(self._connection, name)
        rows = self._connection.execute(
            "SELECT * FROM versions WHERE name = ? ORDER BY version", (name,)
        )
        return [self._record(row, known) for row in rows]

    def models(self) -> list[ModelSummary]:
        """Return all models that have a version, by name."""
        rows = self._connection.execute(
            "SELECT name, count(*) AS count, max(version) AS last, sum(size) AS size, created "
            "AS updated "
            # with max(), SQLite takes `created` from the row that has the maximum
            "FROM versions GROUP BY name ORDER BY name"
        ).fetchall()
        return [
            ModelSummary(
                name=row["name"],
                versions=row["count"],
                last_version=row["last"],
                aliases=aliases.current(self._connection, row["name"]),
                size=row["size"],
                updated=instant(row["updated"]),
            )
            for row in rows
        ]

    def check_model(self, name: str) -> None:
        """Raise a RegistryError that names the nearest model if there is no such model."""
        known = [
            row["name"] for row in self._connection.execute("SELECT DISTINCT name FROM versions")
        ]
        if name not in known:
            raise RegistryError(
                f"no model {name!r} in the registry.{nearest_name(name, known)} `navrl models "
                "ls` lists all"
            )

    def insert(
        self, values: dict[str, Any], lineage: dict[str, Any], names: Iterable[str]
    ) -> ModelVersion:
        """Add the next version of a model, then move the aliases to it."""
        if lineage.get("parent") is not None:
            lineage = lineage | {"parent": self.find(parse_reference(lineage["parent"])).label}
        name = values["name"]
        known = self._connection.execute(
            "SELECT created, last_version FROM models WHERE name = ?", (name,)
        ).fetchone()
        created, last = tuple(known) if known else (values["created"], 0)
        number = last + 1
        self._transaction.put("models", name=name, created=created, last_version=number)
        row = values | {"version": number, "lineage": validation.json_text(lineage, "lineage")}
        self._transaction.put("versions", **row)
        return self.give(self.find(Reference(None, None, name, f"v{number}")), names)

    def give(self, version: ModelVersion, names: Iterable[str]) -> ModelVersion:
        """Move aliases to a version as part of its registration, and return it with them."""
        for alias in names:
            self.move(version.name, alias, version.version, "register")
        return self.find(parse_reference(version.label))

    def twin(self, name: str, digest: str) -> ModelVersion | None:
        """Return the newest version of a model with this content, or None."""
        return next(
            (version for version in reversed(self.versions(name)) if version.digest == digest), None
        )

    def move(self, name: str, alias: str, version: int | None, reason: str) -> None:
        """Point an alias at a version, or remove it."""
        aliases.move(self._transaction, name, alias, version, reason)

    def history(self, name: str, alias: str) -> list[AliasMove]:
        """Return every move of an alias, oldest first."""
        return aliases.history(self._connection, name, alias)

    def set_stage(self, version: ModelVersion, stage: str) -> None:
        """Put a version into a stage."""
        aliases.set_stage(self._transaction, version.name, version.version, stage)

    def set_tags(self, version: ModelVersion, tags: dict[str, str]) -> None:
        """Replace the tags of a version."""
        key = {"name": version.name, "version": version.version}
        self._transaction.set("versions", key, tags=validation.json_text(tags, "tags"))

    def delete(self, version: ModelVersion) -> None:
        """Remove a version that no alias points at.

        Its file may be removed afterwards if no other version has the same content.
        """
        self._transaction.drop("versions", name=version.name, version=version.version)
        if not self.uses(version.digest):
            self._transaction.put("removals", digest=version.digest)

    def was_deleted(self, digest: str) -> bool:
        """Return whether the last version with this content was deleted."""
        sql = "SELECT 1 FROM removals WHERE digest = ?"
        return self._connection.execute(sql, (digest,)).fetchone() is not None

    def forget(self, digest: str) -> None:
        """Drop the note that a file may be removed, once it has been removed."""
        self._transaction.drop("removals", digest=digest)

    def uses(self, digest: str) -> bool:
        """Return whether a version refers to a file."""
        sql = "SELECT 1 FROM versions WHERE digest = ? LIMIT 1"
        return self._connection.execute(sql, (digest,)).fetchone() is not None

    def all_versions(self) -> list[ModelVersion]:
        """Return every version of every model."""
        return [version for model in self.models() for version in self.versions(model.name)]

    def faults(self) -> list[str]:
        """Return what SQLite finds wrong with the database."""
        checked = [row[0] for row in self._connection.execute("PRAGMA integrity_check")]
        dangling = self._connection.execute("PRAGMA foreign_key_check").fetchall()
        return [text for text in checked if text != "ok"] + [
            f"a row of {row[0]} refers to nothing" for row in dangling
        ]

    def _record(self, row: sqlite3.Row, known: dict[str, int]) -> ModelVersion:
        own = tuple(alias for alias, number in known.items() if number == row["version"])
        return version_of(row, self._blobs.path(row["digest"]), own)
