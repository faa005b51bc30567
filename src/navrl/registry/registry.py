"""Registry: models by name, version and alias, on this machine; the source of truth that trackers
only mirror.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from navrl.errors import RegistryError
from navrl.registry import validation
from navrl.registry.aliases import before
from navrl.registry.blobs import BlobStore, Stored
from navrl.registry.compare import Row, compare_versions
from navrl.registry.database import Database, explained
from navrl.registry.journal import Journal
from navrl.registry.model_card import model_card
from navrl.registry.model_names import Reference, check_alias, check_name, parse_reference
from navrl.registry.pruning import prunable
from navrl.registry.queries import Queries
from navrl.registry.repair import Repair, repair
from navrl.registry.schema import PRODUCTION_ALIAS, STAGES, AliasMove, ModelSummary, ModelVersion

__all__ = ["Damage", "Garbage", "Registry", "Repair", "default_root"]

LATEST = "latest"


class Damage(NamedTuple):
    """What `verify` found: which version (`name:v3`, or the database), which file, and what is
    wrong with it.
    """

    label: str
    path: Path
    problem: str


@dataclass(frozen=True)
class Garbage:
    """What nobody refers to: files that went (or would), their bytes, and files that were put into
    quarantine.
    """

    # of deleted versions, temporary files of dead writers, and of a purged quarantine
    files: tuple[Path, ...]
    bytes: int
    quarantined: tuple[Path, ...] = ()  # where they were: the registry knows nothing about them


def default_root() -> Path:
    """Return the folder of the registry: `$NAVRL_REGISTRY`, or `navrl/registry` in the user's data
    folder.
    """
    if own := os.environ.get("NAVRL_REGISTRY"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_DATA_HOME", "")
    return (
        (Path(shared) if Path(shared).is_absolute() else Path.home() / ".local" / "share")
        / "navrl"
        / "registry"
    )


class Registry:
    """Models with numbered versions, aliases and stages in one folder: an SQLite database, and
    files by their content.

    Many processes may use one registry at once. A process that is killed at any moment leaves it
    consistent; what it leaves behind is garbage at worst, which `collect_garbage` removes. A
    database that is lost, or an older copy, is made again from the journal beside the files. Every
    method raises RegistryError for a name that is not legal or not there. The folder must be on a
    local disk.

    A call waits up to a minute for other processes; with `deadline`, all calls of this object
    together wait so many seconds.
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, deadline: float | None = None
    ) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._files = BlobStore(self.root / "objects")
        self._database = Database(
            self.root / "registry.db",
            Journal(self._files.folder / "journal.jsonl"),
            deadline=deadline,
        )

    # ---- putting in

    def register(
        self,
        name: str,
        file: str | os.PathLike[str],
        *,
        aliases: Iterable[str] = (LATEST,),
        metrics: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | Iterable[str] | None = None,
        lineage: Mapping[str, Any] | None = None,
        notes: str = "",
        stage: str | None = None,
        reuse: bool = False,
    ) -> ModelVersion:
        """Copy a file in as the next version of a model and return it; `latest` and the other
        aliases move to it last.

        Where the file is from (its run, settings, commit, versions) is found out; `lineage` adds to
        that and goes first. Its key `parent` is a reference to the version that this one was made
        from. Without `metrics`, those of the evaluation in the model file are taken. With `reuse`,
        a version of this model with the same content gets the aliases, and no new one is made.

        Raises:
            RegistryError: a name is not legal, the parent is not there, or the file is missing,
                empty or damaged.
        """
        check_name(name)
        asked = _aliases(aliases, stage)
        told = lineage if lineage is not None else {}
        validation.json_text(told, "lineage")
        if told.get("parent") is not None:
            parse_reference(told["parent"])
        tagged = validation.json_text(validation.tags_of(tags or {}), "tags")
        notes = validation.check_text(notes, "notes")
        measured = validation.metrics_text(metrics) if metrics is not None else None
        entry = {
            "name": name,
            "stage": stage or "none",
            "notes": notes,
            "tags": tagged,
            "metrics": measured,
        }
        version = None
        while version is None:
            version = self._try_to_register(Path(file), entry, told, asked, reuse)
        return version

    def _try_to_register(
        self,
        file: Path,
        entry: dict[str, Any],
        told: Mapping[str, Any],
        aliases: list[str],
        reuse: bool,
    ) -> ModelVersion | None:
        """Place the file, look into it, and refer to it; None if somebody collected it before
        anything referred to it.
        """
        from navrl.registry.blob_contents import read_contents
        from navrl.registry.provenance import gather_lineage

        with explained(self.root):
            # before there are files: without a database nobody could tell which of them are needed
            self._database.open()
            stored, copied = self._files.place(file)
            try:
                contents = read_contents(self._files.path(stored.digest), str(file))
                lineage = gather_lineage(file, contents, told)
                values = entry | {
                    "digest": stored.digest,
                    "size": stored.size,
                    "kind": contents.kind,
                    "created": time.time(),
                }
                values["metrics"] = values["metrics"] or validation.metrics_text(contents.metrics)
                with self._writing() as rows:
                    if not self._files.holds(stored.digest):
                        return None
                    known = rows.twin(values["name"], stored.digest) if reuse else None
                    return (
                        rows.insert(values, lineage, aliases)
                        if known is None
                        else rows.give(known, aliases)
                    )
            except FileNotFoundError:
                return None
            except RegistryError:
                if copied:
                    with suppress(
                        RegistryError
                    ):  # what went wrong first is what the caller is told
                        self._discard([stored.digest])
                raise

    # ---- finding

    def resolve(self, reference: str | Reference | ModelVersion) -> ModelVersion:
        """Return what `name`, `name:alias`, `name:v3` or `user/project/name:alias` means; `name`
        alone is its `latest`.
        """
        asked = _reference(reference)
        with self._reading() as rows:
            return rows.find(asked)

    def models(self) -> list[ModelSummary]:
        """Return all models that have a version, by name."""
        with self._reading() as rows:
            return rows.models()

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions of a model, the oldest first."""
        check_name(name)
        with self._reading() as rows:
            rows.check_model(name)
            return rows.versions(name)

    def history(self, name: str, alias: str) -> list[AliasMove]:
        """Return every move of an alias, the oldest first; also of one that has been removed."""
        check_name(name), check_alias(alias)
        with self._reading() as rows:
            rows.check_model(name)
            return rows.history(name, alias)

    def compare(self, references: Sequence[str | Reference | ModelVersion]) -> list[Row]:
        """Return the metrics of versions side by side, and the settings in which they differ."""
        asked = [_reference(reference) for reference in references]
        if len(asked) < 2:
            raise RegistryError(
                "a comparison needs at least two versions; there "
                f"{'is one' if asked else 'are none'}"
            )
        with self._reading() as rows:
            return compare_versions([rows.find(reference) for reference in asked])

    def card(self, reference: str | Reference | ModelVersion) -> str:
        """Return a version's model card as Markdown: what it is, its results, how to load it,
        lineage, settings.
        """
        return model_card(self.resolve(reference))

    # ---- moving names

    def set_alias(self, name: str, alias: str, version: int | str) -> ModelVersion:
        """Point an alias at a version (`3`, `"v3"`, or another alias) and return that version."""
        check_name(name), check_alias(alias)
        asked = _numbered(name, version)
        with self._writing() as rows:
            rows.move(name, alias, rows.find(asked).version, "set")
            return rows.find(asked._replace(label=alias))

    def remove_alias(self, name: str, alias: str) -> None:
        """Remove an alias; its history stays, and `rollback` brings it back."""
        check_name(name), check_alias(alias)
        with self._writing() as rows:
            rows.find(Reference(None, None, name, alias))
            rows.move(name, alias, None, "remove")

    def rollback(self, name: str, alias: str) -> ModelVersion:
        """Point an alias at the version it pointed at before; again, at the one before that.
        Deleted ones are skipped.
        """
        check_name(name), check_alias(alias)
        with self._writing() as rows:
            rows.check_model(name)
            version = before(
                rows.history(name, alias), {version.version for version in rows.versions(name)}
            )
            if version is None:
                raise RegistryError(
                    f"alias {name}:{alias} has no earlier version; `navrl models show {name}` "
                    "has its history"
                )
            rows.move(name, alias, version, "rollback")
            return rows.find(Reference(None, None, name, alias))

    def promote(self, reference: str | Reference | ModelVersion, to: str) -> ModelVersion:
        """Put a version into a stage (none, staging, production, archived), or give it an alias;
        return it.

        Production moves the alias `prod`; the version that had it is archived. One in production
        leaves it only when another takes its place, or when the alias is removed.
        """
        asked = _reference(reference)
        alias = (
            PRODUCTION_ALIAS if to == "production" else None if to in STAGES else check_alias(to)
        )
        with self._writing() as rows:
            found = rows.find(asked)
            if alias is not None:
                rows.move(found.name, alias, found.version, "promote")
            elif found.stage == "production":
                raise RegistryError(
                    f"{found.label} is in production; promote another version to production "
                    "first, or remove its alias "
                    f"{PRODUCTION_ALIAS}"
                )
            else:
                rows.set_stage(found, to)
            return rows.find(parse_reference(found.label))

    def tag(
        self,
        reference: str | Reference | ModelVersion,
        tags: Mapping[str, str] | Iterable[str] = (),
        remove: Iterable[str] = (),
    ) -> ModelVersion:
        """Add tags to a version, remove others, and return it."""
        asked, added, gone = (
            _reference(reference),
            validation.tags_of(tags),
            validation.tags_of(remove),
        )
        with self._writing() as rows:
            found = rows.find(asked)
            rows.set_tags(
                found,
                {key: value for key, value in (found.tags | added).items() if key not in gone},
            )
            return rows.find(parse_reference(found.label))

    # ---- taking out

    def delete(self, name: str, version: int | str, *, force: bool = False) -> ModelVersion:
        """Remove a version and return what it was. `force` also removes the aliases that point at
        it; `latest` moves back.

        Raises:
            RegistryError: an alias points at it, and `force` is not given.
        """
        check_name(name)
        asked = _numbered(name, version)
        with self._writing() as rows:
            found = rows.find(asked)
            if found.aliases and not force:
                points = "points" if len(found.aliases) == 1 else "point"
                raise RegistryError(
                    f"{found.label} is needed: {', '.join(found.aliases)} {points} at it; move "
                    "the alias, or force it"
                )
            left = [
                other.version for other in rows.versions(name) if other.version != found.version
            ]
            for alias in found.aliases:
                rows.move(name, alias, max(left) if alias == LATEST and left else None, "delete")
            rows.delete(found)
        self._discard([found.digest])
        return found

    def prune(self, name: str, keep_last_n: int, *, dry_run: bool = False) -> list[ModelVersion]:
        """Remove old versions and return them; never one of the last n, with an alias, or in
        staging or production.
        """
        check_name(name)
        with self._reading() if dry_run else self._writing() as rows:
            rows.check_model(name)
            gone = prunable(rows.versions(name), keep_last_n)
            for version in [] if dry_run else gone:
                rows.delete(version)
        if not dry_run:
            self._discard([version.digest for version in gone])
        return gone

    def collect_garbage(self, *, dry_run: bool = False, purge_quarantine: bool = False) -> Garbage:
        """Remove the files of deleted versions and what dead writers left; put unknown files into
        quarantine; return all.

        A file is removed only if the registry knows that its last version was deleted. One that it
        knows nothing about may be all that is left of a lost registry: it is moved to the folder
        `quarantine`, which `purge_quarantine` empties. Safe beside a `register` in another process:
        that one looks again before it refers to its file.
        """
        with explained(self.root):
            purged = {
                path: path.stat().st_size
                for path in (self._files.quarantined() if purge_quarantine else ())
            }
            found = list(self._files.digests())
            with self._reading() if dry_run or not found else self._writing() as rows:
                idle = [digest for digest in found if not rows.uses(digest)]
                deleted = {
                    digest: self._files.size(digest) for digest in idle if rows.was_deleted(digest)
                }
                unknown = [
                    digest for digest in idle if digest not in deleted and self._files.holds(digest)
                ]
                if not dry_run:
                    self._remove(rows, deleted)
                    for digest in unknown:
                        self._files.put_into_quarantine(digest)
            leftovers = self._files.leftovers() if dry_run else self._files.remove_leftovers()
            for path in () if dry_run else purged:
                path.unlink(missing_ok=True)
        return Garbage(
            files=(*map(self._files.path, deleted), *leftovers, *purged),
            bytes=sum(deleted.values()) + sum(purged.values()),
            quarantined=tuple(map(self._files.path, unknown)),
        )

    def unknown_files(self) -> list[str]:
        """Return the digests of the files that no version refers to, and that were not left by a
        deleted one.
        """
        with self._reading() as rows:
            return [
                d for d in self._files.digests() if not rows.uses(d) and not rows.was_deleted(d)
            ]

    def repair(self) -> Repair:
        """Make database and journal whole again, adopt unknown files, delete nothing, and return
        what was done.
        """
        with explained(self.root):
            return repair(self, self._database, self._files)

    def verify(self) -> list[Damage]:
        """Read every file and compare it with its digest, check the database, and return all that
        is damaged.
        """
        with self._reading() as rows:
            versions = rows.all_versions()
            found = [Damage("database", self._database.path, text) for text in rows.complaints()]
        if problem := self._database.journal.fault():
            found.append(Damage("journal", self._database.journal.path, problem))
        faults: dict[Stored, str | None] = {}
        for stored in {Stored(version.digest, version.size) for version in versions}:
            faults[stored] = self._files.fault(stored)
        with self._reading() as rows:  # again: what somebody deleted meanwhile is not damaged
            left = [
                version
                for version in versions
                if rows.version(version.name, version.version) is not None
            ]
        for version in left:
            if problem := faults[Stored(version.digest, version.size)]:
                found.append(Damage(version.label, version.path, problem))
        return found

    def fault(self, version: ModelVersion) -> str | None:
        """Return what is wrong with the file of a version, or None; reads all of it."""
        return self._files.fault(Stored(version.digest, version.size))

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Queries]:
        with self._database.reading() as transaction:
            yield Queries(transaction, self._files)

    @contextmanager
    def _writing(self) -> Iterator[Queries]:
        with self._database.writing() as transaction:
            yield Queries(transaction, self._files)

    def _discard(self, digests: Sequence[str]) -> None:
        """Remove those of the files that no version refers to.

        Nobody can begin to refer to one meanwhile: for that too one must be the only writer, and
        look whether it is there.
        """
        if not digests:
            return
        with explained(self.root), self._writing() as rows:
            self._remove(
                rows, [digest for digest in dict.fromkeys(digests) if not rows.uses(digest)]
            )

    def _remove(self, rows: Queries, digests: Iterable[str]) -> None:
        """Remove files inside a transaction, and the notes that they may be removed."""
        for digest in digests:
            self._files.remove(digest)
            if rows.was_deleted(digest):
                rows.forget(digest)


def _reference(reference: str | Reference | ModelVersion) -> Reference:
    if isinstance(reference, Reference):
        return parse_reference(str(reference))
    return parse_reference(reference.label if isinstance(reference, ModelVersion) else reference)


def _numbered(name: str, version: int | str) -> Reference:
    """Return the reference to a version of a model by its number, or by what would stand behind the
    colon.
    """
    return parse_reference(
        f"{name}:v{version}" if isinstance(version, int) else f"{name}:{version}"
    )


def _aliases(aliases: Iterable[str], stage: str | None) -> list[str]:
    """Return what moves at `register`: what was asked for, `latest`, and `prod` if the stage says
    so.
    """
    if isinstance(aliases, str):
        raise RegistryError(
            f"aliases is the text {aliases!a:.80}; expected a list of names, such as ['best']"
        )
    if stage is not None and stage not in STAGES:
        raise RegistryError(f"stage is {stage!a:.80}; expected one of {', '.join(STAGES)}")
    asked = [check_alias(alias) for alias in aliases]
    if stage == "production":
        asked.append(PRODUCTION_ALIAS)
    if PRODUCTION_ALIAS in asked and stage not in (None, "production"):
        raise RegistryError(
            f"alias {PRODUCTION_ALIAS} and stage {stage} contradict each other; "
            f"{PRODUCTION_ALIAS} is production"
        )
    return list(dict.fromkeys([*asked, LATEST]))
