"""MLflow: a server, or a store of SQLite and files in the run's folder."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# the delivery worker retries, within its own deadline
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from navrl.credentials import sign_in
from navrl.registry.model_names import check_alias, check_name
from navrl.tracking.backends.interface import (
    Backend,
    RunInfo,
    all_aliases,
    described,
    named_file,
    verified,
)

RUN_TAG, DIGEST_TAG, METADATA_TAG = "navrl.run", "navrl.sha256", "navrl.metadata"
STORE = "mlflow.db"
_PARAMETERS_AT_ONCE = 100  # MLflow's limit
_LONGEST_PARAMETER = 500
_LONGEST_NAME = 200
_LONGEST_DESCRIPTION = 5000
# replaces characters that MLflow refuses; "_" replaces others
_READABLE = {"+": "and", "%": "percent"}


class MlflowBackend(Backend):
    """Runs in an experiment, models in MLflow's registry.

    A metric carries its record's time, so it is never stored twice.
    """

    def __init__(
        self, uri: str = "", project: str = "NavRL", folder: str | os.PathLike[str] = "."
    ) -> None:
        self._artifacts: str | None = None
        if not uri:
            root = (Path(folder) / "mlflow").resolve()
            root.mkdir(parents=True, exist_ok=True)
            _make_store(root / STORE)
            uri, self._artifacts = _uri_of(root / STORE), (root / "artifacts").as_uri()
        self._uri, self._project = sign_in(uri), project
        self._client = MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)
        self._run = ""

    def start(self, run: RunInfo) -> int:
        """Begin the run, or resume the one whose tag has its id."""
        experiment = self._experiment()
        found = self._client.search_runs(
            [experiment], f"tags.`{RUN_TAG}` = '{run.id}'", max_results=1
        )
        known: Mapping[str, str] = {}
        if found:
            self._run, known = found[0].info.run_id, found[0].data.params
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(
                experiment, tags={RUN_TAG: run.id}, run_name=run.name
            ).info.run_id
        # MLflow refuses to change a parameter; a worker that died may have left some out
        parameters = [Param(key, value) for key, value in _flat(run.config) if key not in known]
        for first in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(
                self._run, params=parameters[first : first + _PARAMETERS_AT_ONCE]
            )
        return 0

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Log the numbers among the metrics of a step."""
        numbers = {
            _metric(key): float(value)
            for key, value in values.items()
            if isinstance(value, int | float)
        }
        metrics = [Metric(key, value, round(1000 * moment), step) for key, value in numbers.items()]
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a picture."""
        self._client.log_artifact(self._run, str(file), f"media/{name}/{step:09d}")

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a video."""
        self.image(step, name, file, number=number, moment=moment)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set the summary of the run, as tags."""
        for key, value in values.items():
            self._client.set_tag(self._run, f"summary.{_metric(key)}", value)

    def finish(self) -> None:
        """End the run."""
        if self._run:
            self._client.set_terminated(self._run)
            self._run = ""

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Keep a file with the run and register it as a version."""
        check_name(name)
        labels = all_aliases(aliases)
        known = described(file, metadata)
        version = next(
            (v for v in self._all(name) if v.tags.get(DIGEST_TAG) == known["sha256"]), None
        )
        version = version or self._register(file, name, known)
        for alias in labels:
            self._client.set_registered_model_alias(name, to_mlflow(alias), version.version)
        return f"v{version.version}"

    def _register(self, file: Path, name: str, known: Mapping[str, Any]) -> Any:
        run = self._client.get_run(self._run or self._run_of_models())
        place = f"models/{name}/{known['sha256']}"
        with named_file(file, known["file"]) as named:
            self._client.log_artifact(run.info.run_id, str(named), place)
            if known.get("kind") == "model":
                described_model = named.with_name("MLmodel")
                _flavour(place, known, run.info.run_id).save(str(described_model))
                self._client.log_artifact(run.info.run_id, str(described_model), place)
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        shown_metadata = {key: value for key, value in known.items() if key != "description"}
        tags = {DIGEST_TAG: known["sha256"], METADATA_TAG: json.dumps(shown_metadata)}
        source = f"{run.info.artifact_uri}/{place}"
        text = str(known.get("description", ""))[:_LONGEST_DESCRIPTION]
        return self._client.create_model_version(
            name, source, run.info.run_id, tags, description=text or None, await_creation_for=0
        )

    def download(self, reference: str, folder: Path) -> Path:
        """Fetch `name:alias` or `name:v3`, verified."""
        parsed, label = self._resolve(reference)
        name = parsed.name
        version = self._client.get_model_version(name, label[1:])
        known = json.loads(version.tags[METADATA_TAG])
        target = Path(folder) / name / label
        target.mkdir(parents=True, exist_ok=True)
        uri = f"{version.source}/{check_name(known['file'], 'file')}"
        file = Path(
            download_artifacts(artifact_uri=uri, dst_path=str(target), tracking_uri=self._uri)
        )
        return verified(file, known["sha256"], reference)

    def versions(self, name: str) -> list[str]:
        """Return the versions, oldest first."""
        return [
            f"v{number}" for number in sorted(int(version.version) for version in self._all(name))
        ]

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias."""
        if not self._all(name):
            return {}
        model = self._client.get_registered_model(name)
        return {from_mlflow(alias): f"v{version}" for alias, version in model.aliases.items()}

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias."""
        _, label = self._resolve(f"{check_name(name)}:{version}")
        self._client.set_registered_model_alias(name, to_mlflow(check_alias(alias)), label[1:])

    def delete(self, name: str, version: str) -> None:
        """Remove a version, its aliases, and its files, which MLflow would leave behind."""
        _, label = self._resolve(f"{check_name(name)}:{version}")
        source = self._client.get_model_version(name, label[1:]).source
        for alias, pointed in self.aliases(name).items():
            if pointed == label:
                self._client.delete_registered_model_alias(name, to_mlflow(alias))
        self._client.delete_model_version(name, label[1:])
        get_artifact_repository(str(source), tracking_uri=self._uri).delete_artifacts()

    def _all(self, name: str) -> list[Any]:
        return [*self._client.search_model_versions(f"name='{check_name(name)}'")]

    def _experiment(self) -> str:
        known = self._client.get_experiment_by_name(self._project)
        return str(
            known.experiment_id
            if known
            else self._client.create_experiment(self._project, self._artifacts)
        )

    def _run_of_models(self) -> str:
        """Return the run that holds the files of models uploaded outside of a training."""
        experiment = self._experiment()
        found = self._client.search_runs(
            [experiment], f"tags.`{RUN_TAG}` = 'models'", max_results=1
        )
        run = (
            found[0]
            if found
            else self._client.create_run(experiment, tags={RUN_TAG: "models"}, run_name="models")
        )
        return str(run.info.run_id)


def _uri_of(store: Path) -> str:
    return f"sqlite:///{store}"


def _make_store(store: Path) -> None:
    """Make the database of a store, which appears whole or not at all.

    MLflow makes its tables one after the other, for seconds. A process that is killed meanwhile
    leaves a database that no later one can complete. Another that wants the store waits.
    """
    folder = os.open(store.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        if store.exists():
            return
        for left in store.parent.glob(f".{store.name}.*"):  # of processes that were killed
            left.unlink(missing_ok=True)
        scratch = store.with_name(f".{store.name}.{secrets.token_hex(4)}")
        MlflowClient(tracking_uri=_uri_of(scratch)).search_experiments(max_results=1)
        scratch.replace(store)
    finally:
        os.close(folder)


def to_mlflow(alias: str) -> str:
    """Return an alias in a form that MLflow accepts.

    `latest`, `v1` and names with a dot are escaped and begin with `x-`.
    """
    plain = re.fullmatch(r"[\w-]+", alias, re.ASCII) and not re.fullmatch(
        r"(?i)latest|v\d+|x-.*", alias
    )
    if plain:
        return alias
    return "x-" + re.sub(r"[^A-Za-z0-9_]", lambda found: f"-{ord(found[0]):02x}", alias)


def from_mlflow(alias: str) -> str:
    """Undo `to_mlflow`."""
    if not alias.startswith("x-"):
        return alias
    return re.sub(r"-([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), alias[2:])


def _flavour(place: str, known: Mapping[str, Any], run: str) -> Model:
    """Return the MLmodel file that lets `mlflow.pyfunc.load_model` load a model file."""
    model = Model(artifact_path=place, run_id=run, metadata={"sha256": known["sha256"]})
    loader = "navrl.adapters.mlflow_model"
    return model.add_flavor(
        "python_function",
        loader_module=loader,
        data=known["file"],
        python_version=platform.python_version(),
    )


def _metric(key: str) -> str:
    """Return a metric's name in a form that MLflow accepts: `a + b` becomes `a and b`.

    A refused name would block everything behind it in the queue.
    """
    legal = re.sub(r"[^\w\-. :/]", lambda found: _READABLE.get(found[0], "_"), key)
    parts = (part.strip(".") for part in legal[:_LONGEST_NAME].split("/"))
    return "/".join(part for part in parts if part) or "_"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)[:_LONGEST_PARAMETER]
