"""W&B without network: models go into a queue, can be read back, and `navrl sync` delivers them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navrl.registry.model_names import Reference, check_alias, check_name, parse_reference
from navrl.tracking.backends.interface import (
    Backend,
    RunInfo,
    all_aliases,
    described,
    verified,
    wanted_version,
)
from navrl.tracking.queue import RecordQueue
from navrl.tracking.tracker_settings import WandbSettings


@dataclass
class _Version:
    number: int  # of the record
    sha256: str
    file: str


class QueuedBackend(Backend):
    """The queue of a run as a backend; versions are `v0`, `v1`, ... in the order of the queue."""

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        self._queue = RecordQueue(folder)
        self._options = options

    def start(self, run: RunInfo) -> int:
        """Begin a run."""
        self._queue.append(
            "run",
            id=run.id,
            name=run.name,
            trackers=["wandb"],
            options={"wandb": self._options},
            config=dict(run.config),
            patience=8.0,
            deadline=60.0,
        )
        return 0

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Queue the metrics of a step."""
        self._queue.append("metrics", step=step, values=dict(values))

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Queue a picture."""
        self._media("image", step, name, file)

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Queue a video."""
        self._media("video", step, name, file)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Queue the summary of the run."""
        self._queue.append("summary", values=dict(values))

    def finish(self) -> None:
        """End the session."""
        self._queue.append("end")
        self._queue.sync()

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a file as the newest version."""
        check_name(name)
        labels = all_aliases(aliases)
        self._queue.read()
        if self._queue.session() is None:
            self.start(
                RunInfo(os.urandom(4).hex(), self._queue.run.resolve().name, self._queue.run)
            )
        known = described(file, metadata)
        with self._queue.keeping():
            digest = self._keep(file)
            for version, entry in self._state(name)[0].items():
                if entry.sha256 == digest:
                    for alias in labels:
                        self.set_alias(name, alias, version)
                    return version
            self._queue.append(
                "artifact",
                name=name,
                file=known["file"],
                aliases=labels[1:],
                metadata=known,
                sha256=digest,
            )
        return [*self._state(name)[0]][-1]

    def download(self, reference: str, folder: Path) -> Path:
        """Copy a file out of the queue, verified.

        A user and project in the reference leave out what was queued for others. What was queued
        for the default project, or without a user, is found under any.
        """
        asked = parse_reference(reference)
        versions, aliases = self._state(asked.name, asked)
        parsed, version = wanted_version(reference, versions, aliases)
        entry = versions[version]
        target = Path(folder) / parsed.name / version / entry.file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._queue.file(entry.sha256), target)
        return verified(target, entry.sha256, reference)

    def versions(self, name: str) -> list[str]:
        """Return the versions, oldest first."""
        return [*self._state(name)[0]]

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias."""
        return self._state(name)[1]

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias."""
        _, version = wanted_version(f"{check_name(name)}:{version}", *self._state(name))
        self._queue.append(
            "alias", name=name, alias=check_alias(alias), of=self._state(name)[0][version].number
        )

    def delete(self, name: str, version: str) -> None:
        """Remove a version; its file stays until the version has been delivered."""
        _, version = wanted_version(f"{check_name(name)}:{version}", *self._state(name))
        self._queue.append("delete", name=name, of=self._state(name)[0][version].number)

    def _media(self, kind: str, step: int, name: str, file: Path) -> None:
        with self._queue.keeping():
            self._queue.append(kind, step=step, name=name, file=file.name, sha256=self._keep(file))

    def _keep(self, file: Path) -> str:
        with open(file, "rb") as opened:
            return self._queue.keep(opened.fileno())

    def _state(
        self, name: str, asked: Reference | None = None
    ) -> tuple[dict[str, _Version], dict[str, str]]:
        """Return the versions and aliases of a name, of one user and project if asked for."""
        versions: dict[str, _Version] = {}
        aliases: dict[str, int] = {}
        count, here = 0, True
        for record in self._queue.read():
            if record["kind"] == "run":
                here = asked is None or _may_be_of(record, asked)
            if record["kind"] == "run" or record.get("name") != name:
                continue
            if record["kind"] == "artifact" and here:
                versions[f"v{count}"] = _Version(record["number"], record["sha256"], record["file"])
                aliases |= dict.fromkeys(("latest", *record["aliases"]), record["number"])
                count += 1
            elif record["kind"] == "alias":
                aliases[record["alias"]] = record["of"]
            elif record["kind"] == "delete":
                versions = {
                    label: entry
                    for label, entry in versions.items()
                    if entry.number != record["of"]
                }
                aliases = {
                    alias: number for alias, number in aliases.items() if number != record["of"]
                }
        labels = {entry.number: label for label, entry in versions.items()}
        return versions, {
            alias: labels[number] for alias, number in aliases.items() if number in labels
        }


def _may_be_of(run: Mapping[str, Any], asked: Reference) -> bool:
    """Return whether a run's user and project do not contradict those of a reference."""
    place = run.get("options", {}).get("wandb", {})
    entity, project = place.get("entity") or None, place.get("project") or None
    if project == WandbSettings.project:
        project = None  # the default, not chosen by the user
    pairs = ((entity, asked.entity), (project, asked.project))
    return all(known is None or wanted is None or known == wanted for known, wanted in pairs)
