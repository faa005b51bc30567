"""The tables of the registry, and the records read from them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

__all__ = ["PRODUCTION_ALIAS", "STAGES", "AliasMove", "ModelSummary", "ModelVersion"]

STAGES = ("none", "staging", "production", "archived")
PRODUCTION_ALIAS = "prod"  # always points at the version in stage production

# Each layout's changes to the one before it; the last is the current one.
LAYOUTS = (
    """
CREATE TABLE models (
    name TEXT PRIMARY KEY,
    created REAL NOT NULL,
    last_version INTEGER NOT NULL  -- numbers of deleted versions are not reused
);
CREATE TABLE versions (
    name TEXT NOT NULL REFERENCES models (name),
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    kind TEXT NOT NULL,
    created REAL NOT NULL,
    stage TEXT NOT NULL,
    notes TEXT NOT NULL,
    metrics TEXT NOT NULL,
    tags TEXT NOT NULL,
    lineage TEXT NOT NULL,
    PRIMARY KEY (name, version)
);
CREATE INDEX versions_by_digest ON versions (digest);
CREATE TABLE aliases (
    name TEXT NOT NULL,
    alias TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (name, alias),
    FOREIGN KEY (name, version) REFERENCES versions (name, version)
);
CREATE TABLE moves (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    alias TEXT NOT NULL,
    old INTEGER,  -- null: the alias was not there
    new INTEGER,  -- null: it was removed
    moved REAL NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX moves_by_alias ON moves (name, alias, number);
""",
    """
CREATE TABLE removals (
    digest TEXT PRIMARY KEY  -- of a file whose last version was deleted, and that may be removed
);
CREATE TABLE followed (  -- one row: how far this database has followed the journal
    store TEXT NOT NULL,
    generation TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
""",
)
SCHEMA_VERSION = len(LAYOUTS)


@dataclass(frozen=True)
class ModelVersion:
    """One version of a model: its file, and everything known about it.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     version = registry.register("policy", PRETRAINED, aliases=["best"])
    >>> version.label, version.kind
    ('policy:v1', 'model')
    """

    name: str
    version: int
    path: Path  # the file; never write to it
    digest: str  # SHA-256 of the file
    size: int  # bytes
    kind: str  # model, checkpoint, or file
    created: datetime
    stage: str
    notes: str
    aliases: tuple[str, ...]
    metrics: dict[str, float | None]  # None: was not finite
    tags: dict[str, str]
    lineage: dict[str, Any]

    @property
    def label(self) -> str:
        """The reference that always points at this version: `name:v3`."""
        return f"{self.name}:v{self.version}"

    @property
    def parent(self) -> str | None:
        """The version that this one was made from, as `name:v2`."""
        return self.lineage.get("parent")

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        values = asdict(self) | {
            "path": str(self.path),
            "created": self.created.isoformat(),
            "parent": self.parent,
        }
        return values | {"aliases": list(self.aliases), "label": self.label}


@dataclass(frozen=True)
class ModelSummary:
    """A model in a list.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     version = registry.register("policy", PRETRAINED, aliases=["best"])
    ...     [model] = registry.models()
    >>> model.name, model.versions, model.aliases
    ('policy', 1, {'best': 1, 'latest': 1})
    """

    name: str
    versions: int
    last_version: int
    aliases: dict[str, int]
    size: int  # bytes of all versions
    updated: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self) | {"updated": self.updated.isoformat()}


@dataclass(frozen=True)
class AliasMove:
    """One line of an alias's history.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     version = registry.register("policy", PRETRAINED, aliases=["best"])
    ...     [move] = registry.history("policy", "best")
    >>> move.old, move.new, move.reason
    (None, 1, 'register')
    """

    alias: str
    old: int | None
    new: int | None
    moved: datetime
    reason: str  # set, remove, rollback, register, promote, delete

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self) | {"moved": self.moved.isoformat()}


def instant(seconds: float) -> datetime:
    """Return the time of a column."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def version_of(row: sqlite3.Row, path: Path, aliases: tuple[str, ...]) -> ModelVersion:
    """Return the record of a row of `versions`."""
    return ModelVersion(
        row["name"],
        row["version"],
        path,
        row["digest"],
        row["size"],
        row["kind"],
        instant(row["created"]),
        row["stage"],
        row["notes"],
        aliases,
        json.loads(row["metrics"]),
        json.loads(row["tags"]),
        json.loads(row["lineage"]),
    )
