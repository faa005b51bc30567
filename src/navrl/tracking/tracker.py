"""`Tracking`: takes the metrics, pictures and models of a training, and never waits for a tracker.

Records go to the durable queue in the run's folder. Worker processes deliver them from there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.credentials import URI, check_secret, has_secret, redact, redacted
from navrl.errors import TrackingError, missing_extra
from navrl.metrics_log import plain_value
from navrl.registry.model_names import check_alias, check_name
from navrl.tracking.backends.interface import legal_file_name
from navrl.tracking.queue import RecordQueue
from navrl.tracking.queue_writer import QueueWriter, Work
from navrl.tracking.tracker_settings import TrackingSettings
from navrl.tracking.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from typing_extensions import Self

FIRST_WAIT = 1.0  # s that the start of a run waits for the disk at most
KEEP_NO_MODELS = {"tensorboard"}

_open: list[Tracking] = []  # not closed yet, oldest first


def current_tracking() -> Tracking | None:
    """Return the tracking that was opened last and is not closed yet, or None."""
    return _open[-1] if _open else None


class Tracking:
    """Takes what a run logs, for any number of trackers. A failing tracker causes one warning.

    >>> with Tracking(TrackingSettings(), {"seed": 0}, Path("runs/a")) as tracking:
    ...     tracking.log(1, {"train/kl": 0.1})

    Raises:
        ConfigError: the settings name an unknown tracker.
        MissingExtraError: they name one that is not installed.
    """

    def __init__(
        self, settings: TrackingSettings, config: Mapping[str, Any], folder: str | os.PathLike[str]
    ) -> None:
        check_trackers(settings)
        self.folder = Path(folder)
        self._settings = settings
        self._trackers = _wanted(settings)
        self._live = _live(settings)
        self._logged: dict[str, int] = {}  # metric -> its last step in an earlier session
        self._warned: set[str] = set()
        self._writer: QueueWriter | None = None
        self._workers: WorkerProcesses | None = None
        if not self._trackers:
            return
        queue = RecordQueue(self.folder)
        begin = self._begin(queue, config)
        self._writer = QueueWriter(queue, self._warn)
        self._writer.submit(begin, FIRST_WAIT)
        # after the session's record, or workers take the end of the last session for that of this
        self._workers = self._start_workers()
        _open.append(self)

    @property
    def wandb_mode(self) -> str:
        """`online`, `offline` or `disabled`."""
        return self._settings.wandb.mode

    @property
    def keeps_models(self) -> bool:
        """Whether a tracker of this run keeps models; True if there is no tracker."""
        return not self._trackers or not set(self._trackers) <= KEEP_NO_MODELS

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the metrics of a step; steps that a resumed run has logged before are left out."""
        if self._writer is None:
            return
        fresh = {
            key: plain_value(value, key)
            for key, value in values.items()
            if step > self._logged.get(key, -1)
        }
        if fresh:
            self._writer.submit(lambda queue: queue.append("metrics", step=int(step), values=fresh))

    def image(self, step: int, name: str, path: str | os.PathLike[str]) -> None:
        """Log a picture by its file, which may be removed as soon as this returns."""
        self._media("image", step, name, Path(path))

    def video(self, step: int, name: str, path: str | os.PathLike[str]) -> None:
        """Log a video by its file, which may be removed as soon as this returns."""
        self._media("video", step, name, Path(path))

    def artifact(
        self,
        file: str | os.PathLike[str],
        name: str,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Upload a model by its file, which may be removed as soon as this returns.

        Raises:
            RegistryError: the name or an alias is illegal.
        """
        path = Path(file)
        record = _artifact_record(name, path.name, aliases, metadata)
        self._with_file(path, "artifact", record)

    def written_artifact(
        self,
        write: Callable[[Path], object],
        file_name: str,
        name: str,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Upload a model that is not written yet: a thread calls `write(path)` some time later.

        Raises:
            RegistryError: the name or an alias is illegal.
        """
        record = _artifact_record(name, file_name, aliases, metadata)

        def work(queue: RecordQueue) -> None:
            with tempfile.TemporaryDirectory(prefix=".written-", dir=queue.folder) as folder:
                path = Path(folder) / record["file"]
                write(path)
                with open(path, "rb") as file, queue.keeping():
                    queue.append("artifact", **record, sha256=queue.keep(file.fileno()))

        if self._writer is not None:
            self._writer.submit(work, has_file=True)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set the summary of the run; later values replace earlier ones."""
        plain = plain_value(values, "summary")
        if self._writer is not None:
            self._writer.submit(lambda queue: queue.append("summary", values=plain))

    def flush(self, seconds: float = 10.0) -> bool:
        """Wait until everything is in the queue, `seconds` at most; return whether it is."""
        return self._writer is None or self._writer.flush(seconds)

    def close(self) -> None:
        """Give the trackers `patience` seconds; what is left waits for `navrl sync`."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        _open.remove(self)
        until = time.monotonic() + self._settings.patience
        lost = writer.close(until)
        if self._workers is not None:
            self._workers.stop(until)
        if lost:
            self._warn(
                "lost",
                f"{lost} records could not be written to {self.folder} and are lost to the "
                "trackers",
            )
        self._warn_undelivered()

    def _begin(self, queue: RecordQueue, config: Mapping[str, Any]) -> Work:
        """Return the work that begins a session; a resumed run keeps its id."""
        settings, wandb = self._settings, self._settings.wandb
        records = queue.read()
        for record in records:
            for key in _metrics_of(record):
                self._logged[key] = max(record["step"], self._logged.get(key, -1))
        earlier = queue.session()
        identity = wandb.run_id or (earlier["id"] if earlier else secrets.token_hex(4))
        options = {
            "wandb": {"project": wandb.project, "entity": wandb.entity},
            "trackio": {"project": wandb.project},
            "mlflow": {"project": wandb.project, "uri": redact(settings.mlflow.uri)},
        }
        plain = redacted(plain_value(config, "config"))
        name = wandb.name or self.folder.resolve().name
        return lambda queue: queue.tidy().append(
            "run",
            id=identity,
            name=name,
            trackers=[*self._trackers],
            options=options,
            config=plain,
            patience=settings.patience,
            deadline=settings.deadline,
        )

    def _start_workers(self) -> WorkerProcesses | None:
        if not self._live:
            return None
        uri = self._settings.mlflow.uri
        environment = {URI: uri} if has_secret(uri) else {}
        try:
            if "mlflow" in self._live:
                check_secret(uri)
        except TrackingError as error:
            self._warn(
                "secret",
                f"mlflow.uri {error}, or give mlflow.uri=... again; until then records wait in "
                "the queue",
            )
        try:
            return WorkerProcesses(self.folder, self._live, environment)
        except OSError as error:
            trackers = ", ".join(self._live)
            self._warn(
                "workers",
                f"nothing will be delivered to {trackers} during this run: {error}; "
                f"`navrl sync {self.folder}` delivers it later",
            )
            return None

    def _media(self, kind: str, step: int, name: str, path: Path) -> None:
        for part in name.split("/"):
            check_name(part, kind)
        record = {"step": int(step), "name": name, "file": legal_file_name(path.name)}
        if step > self._logged.get(name, -1):
            self._with_file(path, kind, record)

    def _with_file(self, path: Path, kind: str, record: Mapping[str, Any]) -> None:
        """Open the file now, so that removing it does no harm; the thread keeps it later."""
        if self._writer is None:
            return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._warn("file", f"{path} cannot be queued for the trackers: {error.strerror}")
            return
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self._warn("file", f"{path} cannot be queued for the trackers: not a regular file")
            return

        def work(queue: RecordQueue) -> None:
            with queue.keeping():
                queue.append(kind, **record, sha256=queue.keep(descriptor))

        self._writer.submit(work, has_file=True, descriptor=descriptor)

    def _warn_undelivered(self) -> None:
        """Warn about records that a tracker has not received."""
        queue = RecordQueue(self.folder)
        with contextlib.suppress(OSError):
            for tracker in self._live:
                deliveries = queue.deliveries(tracker).read()
                if left := len(deliveries.missing(queue.read())):
                    reason = f" ({deliveries.failure})" if deliveries.failure else ""
                    self._warn(
                        tracker,
                        f"{left} records have not reached {tracker}{reason}; `navrl sync "
                        f"{self.folder}` delivers them",
                    )

    def _warn(self, topic: str, message: str) -> None:
        """Warn once for each topic."""
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_trackers(settings: TrackingSettings) -> None:
    """Raise what a `Tracking` with these settings would raise, before there is a folder.

    Raises:
        ConfigError: the settings name an unknown tracker.
        MissingExtraError: they name one that is not installed.
    """
    settings.check()
    for name in _live(settings):
        if importlib.util.find_spec(name) is None:
            what = f"the tracker {name} is not installed; leave it out, or install it"
            raise missing_extra(what, name)


def _wanted(settings: TrackingSettings) -> tuple[str, ...]:
    """Return the trackers of a run; `wandb.mode` alone asks for W&B too."""
    extra = ("wandb",) if settings.wandb.mode != "disabled" else ()
    return tuple(dict.fromkeys((*settings.trackers, *extra)))


def _live(settings: TrackingSettings) -> list[str]:
    """Return the trackers that are delivered to during the run."""
    return [
        name for name in _wanted(settings) if name != "wandb" or settings.wandb.mode == "online"
    ]


def _metrics_of(record: Mapping[str, Any]) -> Collection[str]:
    """Return the names of what a record shows at its step."""
    if record["kind"] == "metrics":
        names: Collection[str] = record["values"]
        return names
    return (record["name"],) if record["kind"] in ("image", "video") else ()


def _artifact_record(
    name: str, file_name: str, aliases: Collection[str], metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "name": check_name(name),
        "file": legal_file_name(file_name),
        "aliases": [check_alias(alias) for alias in dict.fromkeys(aliases)],
        "metadata": plain_value(metadata or {}, "metadata"),
    }
