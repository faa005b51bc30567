"""`Registry`: models by name, version and alias on this machine.

The registry is the source of truth; trackers hold copies of it (`tracker_sync`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.errors import RegistryError
from navrl.registry import maintenance, validation
from navrl.registry.aliases import before
from navrl.registry.blobs import BlobStore, Stored
from navrl.registry.database import Database, explained
from navrl.registry.journal import Journal
from navrl.registry.maintenance import Damage, Garbage
from navrl.registry.model_card import model_card
from navrl.registry.model_names import Reference, check_alias, check_name, parse_reference
from navrl.registry.queries import Queries, reading, writing
from navrl.registry.repair import Repair, repair
from navrl.registry.schema import PRODUCTION_ALIAS, STAGES, AliasMove, ModelSummary, ModelVersion
from navrl.registry.version_comparison import Row, compare_versions
from navrl.registry.version_retention import prunable

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Registry", "default_root"]

LATEST = "latest"


def default_root() -> Path:
    """Return the registry's folder: `$NAVRL_REGISTRY`, or `navrl/registry` in the data folder.

    >>> from navrl.registry import default_root
    >>> default_root().name
    'registry'
    """
    if own := os.environ.get("NAVRL_REGISTRY"):
        return Path(own).expanduser()
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data if data.is_absolute() else Path.home() / ".local/share") / "navrl" / "registry"


class Registry:
    """Models with numbered versions, aliases and stages in one folder.

    The folder holds an SQLite database and the model files under their SHA-256, and must be on a
    local disk. Many processes may use it at once. A process killed at any moment leaves it
    consistent; at worst it leaves garbage, which `collect_garbage` removes. A database that is lost
    or out of date is rebuilt from the journal beside the files.

    Every method raises RegistryError for a name that is illegal or does not exist.

    Args:
        root: the folder; `default_root()` if None.
        deadline: seconds that all calls of this object together may wait for other processes; None
            for up to a minute each.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     version = registry.register("policy", PRETRAINED, aliases=["best"])
    ...     print(version.label, registry.resolve("policy:best").version)
    policy:v1 1
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, deadline: float | None = None
    ) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._blobs = BlobStore(self.root / "objects")
        journal = Journal(self._blobs.folder / "journal.jsonl")
        self._database = Database(self.root / "registry.db", journal, deadline=deadline)

    # ---- register

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
        """Copy a file in as the next version of a model and return that version.

        `latest` and `aliases` move to it last.

        Args:
            name: of the model.
            file: a model, a checkpoint, or any other file.
            aliases: that move to the new version, beside `latest`.
            metrics: numbers by name; None takes those of the evaluation in the model file.
            tags: words, or texts by word.
            lineage: added to what is found out about the file's origin (run, settings, commit,
                versions), and wins over it. Its key `parent` names the version that this one was
                made from.
            notes: free text.
            stage: one of `STAGES`; None for `none`.
            reuse: if a version of this model has the same content, move the aliases to it and
                register nothing new.

        Raises:
            RegistryError: a name is illegal, the parent does not exist, or the file is missing,
                empty or damaged.
        """
        check_name(name)
        moved = _aliases(aliases, stage)
        known = lineage if lineage is not None else {}
        validation.json_text(known, "lineage")
        if known.get("parent") is not None:
            parse_reference(known["parent"])
        entry = {
            "name": name,
            "stage": stage or "none",
            "notes": validation.check_text(notes, "notes"),
            "tags": validation.json_text(validation.tags_of(tags or {}), "tags"),
            "metrics": validation.metrics_text(metrics) if metrics is not None else None,
        }
        version = None
        while version is None:
            version = self._try_to_register(Path(file), entry, known, moved, reuse)
        return version

    def _try_to_register(
        self,
        file: Path,
        entry: dict[str, Any],
        lineage: Mapping[str, Any],
        aliases: list[str],
        reuse: bool,
    ) -> ModelVersion | None:
        """Copy the file in, read it, and refer to it.

        Returns None if another process collected the file as garbage before it was referred to.
        """
        from navrl.registry.blob_contents import as_one_file, read_contents
        from navrl.registry.provenance import gather_lineage

        with explained(self.root):
            # before there are files: without a database nothing tells which of them are needed
            self._database.open()
            with as_one_file(file) as whole:
                stored, copied = self._blobs.place(whole)
            try:
                contents = read_contents(self._blobs.path(stored.digest), str(file))
                gathered = gather_lineage(file, contents, lineage)
                metrics = entry["metrics"] or validation.metrics_text(contents.metrics)
                values = entry | {
                    "metrics": metrics,
                    "digest": stored.digest,
                    "size": stored.size,
                    "kind": contents.kind,
                    "created": time.time(),
                }
                return self._insert(values, gathered, aliases, reuse)
            except FileNotFoundError:
                return None
            except RegistryError:
                if copied:
                    with suppress(RegistryError):  # the first error is the one to report
                        maintenance.discard(self._database, self._blobs, [stored.digest])
                raise

    def _insert(
        self, values: dict[str, Any], lineage: dict[str, Any], aliases: list[str], reuse: bool
    ) -> ModelVersion | None:
        """Insert a version, or give the aliases to the one that has the same file already.

        Returns None if the file is gone.
        """
        with self._writing() as queries:
            if not self._blobs.holds(values["digest"]):
                return None
            known = queries.twin(values["name"], values["digest"]) if reuse else None
            if known is not None:
                return queries.give(known, aliases)
            return queries.insert(values, lineage, aliases)

    # ---- look up

    def resolve(self, reference: str | Reference | ModelVersion) -> ModelVersion:
        """Return the version that a reference means; a bare name means its `latest`.

        References are `name`, `name:alias`, `name:v3` or `user/project/name:alias`.
        """
        asked = _reference(reference)
        with self._reading() as queries:
            return queries.find(asked)

    def models(self) -> list[ModelSummary]:
        """Return all models that have a version, by name."""
        with self._reading() as queries:
            return queries.models()

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions of a model, oldest first."""
        check_name(name)
        with self._reading() as queries:
            queries.check_model(name)
            return queries.versions(name)

    def history(self, name: str, alias: str) -> list[AliasMove]:
        """Return every move of an alias, oldest first; also of one that has been removed."""
        check_name(name), check_alias(alias)
        with self._reading() as queries:
            queries.check_model(name)
            return queries.history(name, alias)

    def compare(self, references: Sequence[str | Reference | ModelVersion]) -> list[Row]:
        """Return the metrics of versions side by side, and the settings in which they differ."""
        asked = [_reference(reference) for reference in references]
        if len(asked) < 2:
            raise RegistryError(f"a comparison needs at least two versions; got {len(asked)}")
        with self._reading() as queries:
            return compare_versions([queries.find(reference) for reference in asked])

    def card(self, reference: str | Reference | ModelVersion) -> str:
        """Return a version's model card as Markdown."""
        return model_card(self.resolve(reference))

    # ---- move aliases, stages and tags

    def set_alias(self, name: str, alias: str, version: int | str) -> ModelVersion:
        """Point an alias at a version (`3`, `"v3"`, or another alias) and return that version."""
        check_name(name), check_alias(alias)
        asked = _numbered(name, version)
        with self._writing() as queries:
            queries.move(name, alias, queries.find(asked).version, "set")
            return queries.find(asked._replace(label=alias))

    def remove_alias(self, name: str, alias: str) -> None:
        """Remove an alias; its history stays, and `rollback` brings it back."""
        check_name(name), check_alias(alias)
        with self._writing() as queries:
            queries.find(Reference(None, None, name, alias))
            queries.move(name, alias, None, "remove")

    def rollback(self, name: str, alias: str) -> ModelVersion:
        """Point an alias at its previous version and return that; deleted versions are skipped.

        Every further rollback goes one step further back.
        """
        check_name(name), check_alias(alias)
        with self._writing() as queries:
            queries.check_model(name)
            existing = {version.version for version in queries.versions(name)}
            version = before(queries.history(name, alias), existing)
            if version is None:
                raise RegistryError(
                    f"alias {name}:{alias} has no earlier version; `navrl models show {name}` "
                    "shows its history"
                )
            queries.move(name, alias, version, "rollback")
            return queries.find(Reference(None, None, name, alias))

    def promote(self, reference: str | Reference | ModelVersion, to: str) -> ModelVersion:
        """Put a version into a stage, or give it an alias; return it.

        Stages are none, staging, production and archived. Production moves the alias `prod`, and
        the version that had it is archived. A version leaves production only when another takes its
        place, or when the alias is removed.
        """
        asked = _reference(reference)
        if to in STAGES:
            alias = PRODUCTION_ALIAS if to == "production" else None
        else:
            alias = check_alias(to)
        with self._writing() as queries:
            found = queries.find(asked)
            if alias is not None:
                queries.move(found.name, alias, found.version, "promote")
            elif found.stage == "production":
                raise RegistryError(
                    f"{found.label} is in production; promote another version to production "
                    f"first, or remove the alias {PRODUCTION_ALIAS}"
                )
            else:
                queries.set_stage(found, to)
            return queries.find(parse_reference(found.label))

    def tag(
        self,
        reference: str | Reference | ModelVersion,
        tags: Mapping[str, str] | Iterable[str] = (),
        remove: Iterable[str] = (),
    ) -> ModelVersion:
        """Add tags to a version, remove others, and return it."""
        asked = _reference(reference)
        added, removed = validation.tags_of(tags), validation.tags_of(remove)
        with self._writing() as queries:
            found = queries.find(asked)
            kept = {key: text for key, text in (found.tags | added).items() if key not in removed}
            queries.set_tags(found, kept)
            return queries.find(parse_reference(found.label))

    # ---- remove

    def delete(self, name: str, version: int | str, *, force: bool = False) -> ModelVersion:
        """Remove a version and return what it was.

        `force` also removes the aliases that point at it; `latest` moves to the newest version that
        is left.

        Raises:
            RegistryError: an alias points at it, and `force` is False.
        """
        check_name(name)
        asked = _numbered(name, version)
        with self._writing() as queries:
            found = queries.find(asked)
            if found.aliases and not force:
                raise RegistryError(
                    f"{found.label} has the aliases {', '.join(found.aliases)}; move them to "
                    "another version, or force the deletion"
                )
            others = [
                other.version for other in queries.versions(name) if other.version != found.version
            ]
            for alias in found.aliases:
                target = max(others) if alias == LATEST and others else None
                queries.move(name, alias, target, "delete")
            queries.delete(found)
        maintenance.discard(self._database, self._blobs, [found.digest])
        return found

    def prune(self, name: str, keep_last_n: int, *, dry_run: bool = False) -> list[ModelVersion]:
        """Remove old versions and return them.

        The last n, versions with an alias, and those in staging or production are kept.
        """
        check_name(name)
        with self._reading() if dry_run else self._writing() as queries:
            queries.check_model(name)
            pruned = prunable(queries.versions(name), keep_last_n)
            if not dry_run:
                for version in pruned:
                    queries.delete(version)
        if not dry_run:
            maintenance.discard(self._database, self._blobs, [version.digest for version in pruned])
        return pruned

    # ---- maintain

    def collect_garbage(self, *, dry_run: bool = False, purge_quarantine: bool = False) -> Garbage:
        """Remove the files of deleted versions and what dead writers left; return what was found.

        A file is removed only if the registry knows that its last version was deleted. An unowned
        file may be all that is left of a lost registry: it is moved to the folder `quarantine`,
        which `purge_quarantine` empties. Safe beside a `register` in another process.
        """
        return maintenance.collect_garbage(self._database, self._blobs, dry_run, purge_quarantine)

    def unowned_files(self) -> list[str]:
        """Return the digests of the files that no version refers to and no deleted version left."""
        with self._reading() as queries:
            return maintenance.unowned(queries, self._blobs)

    def repair(self) -> Repair:
        """Rebuild a damaged database or journal and adopt unowned files; return what was done.

        Nothing is deleted.
        """
        with explained(self.root):
            return repair(self, self._database, self._blobs)

    def verify(self) -> list[Damage]:
        """Check the database, and every file against its digest; return what is damaged."""
        return maintenance.verify(self._database, self._blobs)

    def fault(self, version: ModelVersion) -> str | None:
        """Return what is wrong with the file of a version, or None; reads all of it."""
        return self._blobs.fault(Stored(version.digest, version.size))

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _reading(self) -> AbstractContextManager[Queries]:
        return reading(self._database, self._blobs)

    def _writing(self) -> AbstractContextManager[Queries]:
        return writing(self._database, self._blobs)


def _reference(reference: str | Reference | ModelVersion) -> Reference:
    if isinstance(reference, Reference):
        return parse_reference(str(reference))
    return parse_reference(reference.label if isinstance(reference, ModelVersion) else reference)


def _numbered(name: str, version: int | str) -> Reference:
    """Return the reference to a version by its number, or by what follows the colon."""
    label = f"v{version}" if isinstance(version, int) else version
    return parse_reference(f"{name}:{label}")


def _aliases(aliases: Iterable[str], stage: str | None) -> list[str]:
    """Return the aliases that `register` moves: those given, `latest`, and `prod` in production."""
    if isinstance(aliases, str):
        raise RegistryError(
            f"aliases is the text {aliases!a:.80}; expected a list of names, such as ['best']"
        )
    if stage is not None and stage not in STAGES:
        raise RegistryError(f"stage is {stage!a:.80}; expected one of {', '.join(STAGES)}")
    moved = [check_alias(alias) for alias in aliases]
    if stage == "production":
        moved.append(PRODUCTION_ALIAS)
    if PRODUCTION_ALIAS in moved and stage not in (None, "production"):
        raise RegistryError(
            f"alias {PRODUCTION_ALIAS} and stage {stage} contradict each other: "
            f"{PRODUCTION_ALIAS} is production"
        )
    return list(dict.fromkeys([*moved, LATEST]))
