"""Weights & Biases, online. Calls may block for minutes: only workers and commands make them."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import wandb

from navrl.errors import TrackingError
from navrl.registry.model_names import Reference, check_alias, check_name, parse_reference
from navrl.tracking.backends.interface import (
    SLOWEST,
    Backend,
    RunInfo,
    all_aliases,
    described,
    refused_here,
    verified,
)

STEP = "iteration"  # the axis of every chart; W&B's own steps are the numbers of records
KIND = "model"
TIMEOUT = 60  # s for the queries of W&B's public interface


class WandbBackend(Backend):
    """Runs and models in a project of W&B.

    The number of a record is W&B's step, so a row is never stored twice.
    """

    confirms = False  # W&B accepts a row and sends it some time later

    def __init__(
        self, project: str = "NavRL", entity: str = "", folder: str | os.PathLike[str] = "."
    ) -> None:
        self._project, self._entity, self._folder = project, entity, Path(folder)
        self._run: Any = None
        self._sent = 0  # number of the last row
        self._public: Any = None
        _keep_files_in(self._folder / "wandb")

    def start(self, run: RunInfo) -> int:
        """Begin or resume the run; return the last row that W&B has."""
        settings = wandb.Settings(
            init_timeout=TIMEOUT,
            console="off",
            silent=True,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        self._run = wandb.init(
            project=self._project,
            entity=self._entity or None,
            id=run.id,
            name=run.name,
            config=dict(run.config),
            dir=str(run.folder),
            resume="allow",
            mode="online",
            settings=settings,
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return max(0, int(self._run.starting_step) - 1)

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Log the metrics of a step."""
        self._run.log({STEP: step, **values}, step=number, commit=True)
        self._sent = number

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a picture."""
        with refused_here(file):
            picture = wandb.Image(str(file))
        self.log(step, {name: picture}, number=number, moment=moment)

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a video."""
        with refused_here(file):
            video = wandb.Video(str(file))
        self.log(step, {name: video}, number=number, moment=moment)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set the summary of the run."""
        self._run.summary.update(dict(values))

    def finish(self) -> None:
        """Wait until everything is sent, and ask the server whether it has arrived."""
        run, self._run = self._run, None
        if run is None:
            return
        run.finish()
        if self._sent:
            arrived = self._api().run(f"{run.entity}/{run.project}/{run.id}").lastHistoryStep
            if arrived < self._sent:
                raise TrackingError(f"W&B has the rows up to {arrived} of {self._sent}")

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Keep a file as a version of an artifact and wait until W&B has it."""
        check_name(name)
        known = described(file, metadata)
        artifact = wandb.Artifact(
            name, KIND, description=known.pop("description", None), metadata=known
        )
        artifact.add_file(str(file), name=known["file"], policy="immutable", skip_cache=True)
        labels = all_aliases(aliases)
        seconds = TIMEOUT + math.ceil(file.stat().st_size / SLOWEST)
        if self._run is not None:
            self._run.log_artifact(artifact, aliases=labels)
        else:
            self._log_in_own_run(artifact, labels, seconds)
        artifact.wait(seconds)
        return str(artifact.version)

    def _log_in_own_run(self, artifact: Any, labels: list[str], seconds: int) -> None:
        """Upload an artifact in a run that is there only for it."""
        settings = wandb.Settings(init_timeout=TIMEOUT, console="off", silent=True)
        run = wandb.init(
            project=self._project,
            entity=self._entity or None,
            job_type="upload",
            dir=str(self._folder),
            mode="online",
            settings=settings,
        )
        run.log_artifact(artifact, aliases=labels)
        artifact.wait(seconds)
        run.finish()

    def download(self, reference: str, folder: Path) -> Path:
        """Fetch `[entity/project/]name:label`, verified."""
        parsed, artifact = self._find(reference)
        known = artifact.metadata
        files = [check_name(entry.path, "file") for entry in artifact.manifest.entries.values()]
        if len(files) != 1:
            raise TrackingError(
                f"{reference}: has {len(files)} files; expected one, as uploaded by navrl"
            )
        root = Path(
            artifact.download(
                root=str(Path(folder) / parsed.name / str(artifact.version)), skip_cache=True
            )
        )
        return verified(root / files[0], str(known.get("sha256", "")), reference)

    def version_of(self, reference: str) -> str:
        """Return the version that a reference points at now."""
        return str(self._find(reference)[1].version)

    def versions(self, name: str) -> list[str]:
        """Return the versions, oldest first."""
        return sorted(
            (str(artifact.version) for artifact in self._all(name)),
            key=lambda version: int(version[1:]),
        )

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias."""
        found = {
            alias: str(artifact.version)
            for artifact in self._all(name)
            for alias in artifact.aliases
        }
        return {alias: version for alias, version in found.items() if alias != version}

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias."""
        check_alias(alias)
        artifact = self._api().artifact(f"{self._path(name)}:{version}")
        artifact.aliases = [*artifact.aliases, alias]
        artifact.save()

    def delete(self, name: str, version: str) -> None:
        """Remove a version with its aliases."""
        self._api().artifact(f"{self._path(name)}:{version}").delete(delete_aliases=True)

    def _find(self, reference: str) -> tuple[Reference, Any]:
        parsed = parse_reference(reference)
        path = self._path(parsed.name, parsed.project, parsed.entity)
        try:
            return parsed, self._api().artifact(f"{path}:{parsed.label or 'latest'}")
        except (wandb.errors.CommError, ValueError) as error:
            if "not found" not in str(error):
                raise
            raise TrackingError(f"{reference}: W&B has no such model: {error}") from error

    def _all(self, name: str) -> list[Any]:
        api = self._api()
        if not api.artifact_collection_exists(self._path(name), KIND):
            return []
        return list(api.artifacts(KIND, self._path(name)))

    def _api(self) -> Any:
        if self._public is None:
            self._public = wandb.Api(timeout=TIMEOUT)
        return self._public

    def _path(self, name: str, project: str | None = None, entity: str | None = None) -> str:
        parts = (
            entity or self._entity or self._api().default_entity,
            project or self._project,
            check_name(name),
        )
        return "/".join(parts)


def _keep_files_in(folder: Path) -> None:
    """Have W&B stage uploads in the run's folder, not in the home folder.

    Variables that the user has set are left alone.
    """
    for variable, name in (
        ("WANDB_DATA_DIR", "data"),
        ("WANDB_CACHE_DIR", "cache"),
        ("WANDB_ARTIFACT_DIR", "artifacts"),
    ):
        os.environ.setdefault(variable, str((folder / name).resolve()))
    os.environ.setdefault("WANDB_SILENT", "true")
