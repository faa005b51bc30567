"""trackio: its local store of SQLite and hashed files in TRACKIO_DIR, without network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import trackio
from trackio import cas
from trackio.sqlite_storage import SQLiteStorage as Store

from navrl.registry.model_names import check_alias, check_name
from navrl.tracking.backends.interface import (
    Backend,
    RunInfo,
    all_aliases,
    described,
    refused_here,
    verified,
)

KIND = "model"


class TrackioBackend(Backend):
    """Runs and models of a project.

    A row carries the run's id and its record's number, so it is never stored twice. trackio has no
    summary: it shows the last value of each metric.
    """

    def __init__(self, project: str = "NavRL", folder: str | os.PathLike[str] = ".") -> None:
        self._project = project  # trackio has a folder of its own; that of the run is not used
        self._run: RunInfo | None = None

    def start(self, run: RunInfo) -> int:
        """Begin or resume a run."""
        self._run = run
        return 0

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Log the metrics of a step."""
        run = self._begun()
        Store.bulk_log(
            self._project,
            run.name,
            [dict(values)],
            steps=[step],
            timestamps=[datetime.fromtimestamp(moment, timezone.utc).isoformat()],
            config=dict(run.config) or None,
            log_ids=[f"{run.id}-{number}"],
            run_id=run.id,
        )

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a picture."""
        with refused_here(file):
            media = trackio.Image(str(file))
        self._media(media, step, name, number, moment)

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a video."""
        with refused_here(file):
            media = trackio.Video(str(file))
        self._media(media, step, name, number, moment)

    def finish(self) -> None:
        """End the run."""
        self._run = None

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Keep a file as a version of an artifact."""
        labels = all_aliases(aliases)
        known = described(file, metadata)
        artifact = trackio.Artifact(check_name(name), KIND, metadata=known)
        artifact.add_file(str(file), name=known["file"])
        manifest = artifact._build_manifest(self._project)
        run = self._run
        record = Store.commit_artifact_version(
            self._project,
            name,
            KIND,
            None,
            manifest,
            known,
            [],
            run.name if run else None,
            run.id if run else None,
        )
        for alias in labels:
            Store.reassign_alias(self._project, record["artifact_id"], alias, record["version_id"])
        return f"v{record['version']}"

    def download(self, reference: str, folder: Path) -> Path:
        """Copy `name:alias` or `name:v3` out of the store, verified."""
        parsed, label = self._resolve(reference)
        record = Store.get_artifact_manifest(self._project, parsed.name, label)
        [entry] = record["manifest"]
        target = Path(folder) / parsed.name / label / check_name(entry["path"], "file")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cas.blob_path(self._project, entry["digest"]), target)
        return verified(target, (record["metadata"] or {}).get("sha256", ""), reference)

    def versions(self, name: str) -> list[str]:
        """Return the versions, oldest first."""
        return [
            f"v{number}" for number in sorted(version["version"] for version in self._all(name))
        ]

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias."""
        return {
            alias: f"v{version['version']}"
            for version in self._all(name)
            for alias in version["aliases"]
        }

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias."""
        record = self._record(name, version)
        Store.reassign_alias(
            self._project, record["artifact_id"], check_alias(alias), record["version_id"]
        )

    def delete(self, name: str, version: str) -> None:
        """Remove a version, and its file unless another version has the same.

        trackio has no call for this.
        """
        record = self._record(name, version)
        with (
            Store._get_process_lock(self._project),
            Store._get_connection(Store.get_project_db_path(self._project)) as store,
        ):
            for table in ("artifact_aliases", "run_artifact_links"):
                store.execute(
                    f"DELETE FROM {table} WHERE artifact_version_id = ?", (record["version_id"],)
                )
            store.execute("DELETE FROM artifact_versions WHERE id = ?", (record["version_id"],))
            rest = " ".join(
                row["manifest"] for row in store.execute("SELECT manifest FROM artifact_versions")
            )
            store.commit()
        for entry in record["manifest"]:
            if entry["digest"] not in rest:
                cas.blob_path(self._project, entry["digest"]).unlink(missing_ok=True)

    def _media(self, media: Any, step: int, name: str, number: int, moment: float) -> None:
        media._save(self._project, self._begun().name, step)
        self.log(step, {name: media._to_dict()}, number=number, moment=moment)

    def _begun(self) -> RunInfo:
        if self._run is None:
            raise RuntimeError("metrics need a run; call start first")
        return self._run

    def _record(self, name: str, version: str) -> dict[str, Any]:
        _, label = self._resolve(f"{check_name(name)}:{version}")
        record: dict[str, Any] = Store.get_artifact_manifest(self._project, name, label)
        return record

    def _all(self, name: str) -> list[dict[str, Any]]:
        check_name(name)
        return [
            v
            for artifact in Store.list_artifacts(self._project)
            if artifact["name"] == name
            for v in artifact["versions"]
        ]
