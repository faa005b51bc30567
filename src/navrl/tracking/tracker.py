"""What a training uses: `Tracking` takes metrics, pictures and models, and returns at once whatever
the trackers do.

A thread writes what it is given to the queue in the run's folder; worker processes carry it from
there. The caller waits until the record is safe from a kill, which takes a fraction of a
millisecond, and never longer than `WAIT`: a disk that is slower than that is waited for by the
thread alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import stat
import subprocess
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

from navrl.credentials import URI, check_secret, has_secret, redact, redacted
from navrl.errors import TrackingError, missing_extra
from navrl.monitor import plain_value
from navrl.registry.model_names import check_alias, check_name
from navrl.tracking.backends.interface import legal_file_name
from navrl.tracking.delivery_processes import end_workers, start_workers
from navrl.tracking.queue import DeliveryLog, RecordQueue
from navrl.tracking.tracker_settings import TrackingSettings

WAIT = 0.02  # s that a caller waits for the disk at most
FIRST_WAIT = 1.0  # s that the beginning of a run waits for the disk at most
HELD = 10_000  # records that are kept in memory while the disk takes none
# of them with an open file or a whole model: a process may open a thousand files, and training
# needs some
HELD_FILES = 64
RETRY = 0.5  # s after the disk has failed
KEEP_NO_MODELS = {"tensorboard"}
Work = Callable[[RecordQueue], object]


class _Task(NamedTuple):
    """Something to write, and what it holds until then."""

    work: Work
    tried: threading.Event
    heavy: bool
    descriptor: int


_open: list[Tracking] = []  # those that are not closed yet, oldest first


def current_tracking() -> Tracking | None:
    """Return the tracking that was opened last and is not closed yet, if there is one."""
    return _open[-1] if _open else None


class Tracking:
    """Takes what a run wants to show, for any number of trackers. What goes wrong there is one
    warning, never more.

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
        self._before: dict[
            str, int
        ] = {}  # the last step of each metric that an earlier session has logged
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._waiting = 0  # records that are not on the disk yet
        self._heavy = 0  # of them with a file or a model
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None
        if not self._trackers:
            return
        queue = RecordQueue(self.folder)
        begun = self._begin(queue, config)
        self._thread = threading.Thread(
            target=self._write, args=(queue,), name="navrl-tracking", daemon=True
        )
        self._thread.start()
        self._hand_over(begun, FIRST_WAIT)
        # now, or they take the end of an earlier session for that of this one
        self._workers = self._start_workers()
        _open.append(self)

    @property
    def wandb_mode(self) -> str:
        """Online, offline or disabled."""
        return self._settings.wandb.mode

    @property
    def keeps_models(self) -> bool:
        """Whether one of the trackers keeps models; so it is said of none at all, too."""
        return not self._trackers or not set(self._trackers) <= KEEP_NO_MODELS

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Take the metrics of a step. Those that this run has logged before it was resumed are not
        logged again.
        """
        if self._thread is not None:
            fresh = {
                key: plain_value(value, key)
                for key, value in values.items()
                if step > self._before.get(key, -1)
            }
            if fresh:
                self._hand_over(lambda queue: queue.append("metrics", step=int(step), values=fresh))

    def image(self, step: int, name: str, path: str | os.PathLike[str]) -> None:
        """Take a picture, by its file."""
        self._media("image", step, name, Path(path))

    def video(self, step: int, name: str, path: str | os.PathLike[str]) -> None:
        """Take a video, by its file."""
        self._media("video", step, name, Path(path))

    def artifact(
        self,
        file: str | os.PathLike[str],
        name: str,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a model, by its file, which may be removed as soon as this returns.

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
        """Take a model whose file has yet to be written: `write(path)` is called by the thread,
        some time later.

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

        self._hand_over(work, heavy=True)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Take what sums the run up; it replaces what was said before."""
        plain = plain_value(values, "summary")
        self._hand_over(lambda queue: queue.append("summary", values=plain))

    def flush(self, seconds: float = 10.0) -> bool:
        """Wait until everything is in the queue on the disk, but not for long; return whether it
        is.
        """
        until = time.monotonic() + seconds
        while self._waiting and time.monotonic() < until:
            time.sleep(0.005)
        return not self._waiting

    def close(self) -> None:
        """Give the trackers a last while to take what is queued; the rest waits for `navrl
        sync`.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        _open.remove(self)
        until = time.monotonic() + self._settings.patience
        self._tasks.put(None)
        thread.join(until - time.monotonic())
        if self._workers is not None:
            end_workers(self._workers, until, RecordQueue(self.folder), self._live)
        if thread.is_alive() or self._waiting:
            self._warn(
                "lost",
                f"{self._waiting} records could not be written to {self.folder} and are lost to "
                "the trackers",
            )
        self._report()

    def _begin(self, queue: RecordQueue, config: Mapping[str, Any]) -> Work:
        """Return what writes the record that begins a session; the run keeps its identity over many
        of them.
        """
        settings, runs = self._settings, []
        for record in queue.read():
            if record["kind"] == "run":
                runs.append(record)
            shown = {
                "metrics": record.get("values", ()),
                "image": (record.get("name"),),
                "video": (record.get("name"),),
            }
            for key in shown.get(record["kind"], ()):
                self._before[key] = max(record["step"], self._before.get(key, -1))
        wandb = settings.wandb
        identity = wandb.run_id or (runs[-1]["id"] if runs else secrets.token_hex(4))
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

    def _start_workers(self) -> subprocess.Popen[bytes] | None:
        uri = self._settings.mlflow.uri
        environment = {URI: uri} if has_secret(uri) else {}
        try:
            if "mlflow" in self._live:
                check_secret(uri)
        except TrackingError as error:
            self._warn(
                "secret",
                f"mlflow.uri {error}, or type mlflow.uri=... again; until then records wait in "
                "the queue",
            )
        try:
            return start_workers(self.folder, self._live, environment) if self._live else None
        except OSError as error:
            self._warn(
                "workers",
                f"nothing will be delivered to {', '.join(self._live)} during this run: {error}",
            )
            return None

    def _media(self, kind: str, step: int, name: str, path: Path) -> None:
        for part in name.split("/"):
            check_name(part, kind)
        record = {"step": int(step), "name": name, "file": legal_file_name(path.name)}
        if step > self._before.get(name, -1):
            self._with_file(path, kind, record)

    def _with_file(self, path: Path, kind: str, record: Mapping[str, Any]) -> None:
        """Open the file now, so that nobody can take it away, and keep it later."""
        if self._thread is None:
            return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._warn("file", f"{path} cannot be queued for the trackers: {error.strerror}")
            return
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self._warn("file", f"{path} cannot be queued for the trackers: it is no regular file")
            return

        def work(queue: RecordQueue) -> None:
            with queue.keeping():
                queue.append(kind, **record, sha256=queue.keep(descriptor))

        self._hand_over(work, heavy=True, descriptor=descriptor)

    def _hand_over(
        self, work: Work, seconds: float = WAIT, *, heavy: bool = False, descriptor: int = -1
    ) -> None:
        """Give the thread something to write and wait a moment for it, unless it is behind
        already.
        """
        if self._thread is None:
            return
        task = _Task(work, threading.Event(), heavy, descriptor)
        with self._lock:
            behind = self._waiting > 0
            full = self._waiting >= HELD or (heavy and self._heavy >= HELD_FILES)
            self._waiting += 1
            self._heavy += heavy
        if full:
            self._done_with(task)
            self._warn(
                "full",
                f"the disk of {self.folder} takes nothing; records for the trackers are dropped",
            )
            return
        self._tasks.put(task)
        if not behind:
            task.tried.wait(seconds)

    def _done_with(self, task: _Task) -> None:
        if task.descriptor >= 0:
            os.close(task.descriptor)
        with self._lock:
            self._waiting -= 1
            self._heavy -= task.heavy

    def _write(self, queue: RecordQueue) -> None:
        """Write what comes, in order; the disk may fail and come back."""
        held: deque[_Task] = deque()
        task: _Task | None = None
        while True:
            with contextlib.suppress(Empty):
                if (task := self._tasks.get(timeout=RETRY if held else None)) is None:
                    break
                held.append(task)
            self._empty(held, queue)
            if task is not None:
                task.tried.set()
        with self._lock:
            self._waiting += 1
        held.append(_Task(lambda queue: queue.append("end"), threading.Event(), False, -1))
        self._empty(held, queue)
        with contextlib.suppress(OSError):
            queue.sync()
        queue.close()

    def _empty(self, held: deque[_Task], queue: RecordQueue) -> None:
        while held:
            try:
                held[0].work(queue)
            except OSError as error:
                self._warn(
                    "disk",
                    f"{queue.folder} cannot be written: {error.strerror}; records wait in memory",
                )
                return
            except Exception as error:  # of what was to be written: not worth a training
                self._warn("record", f"something could not be queued for the trackers: {error}")
            self._done_with(held.popleft())

    def _report(self) -> None:
        """Say what no tracker has taken yet."""
        queue = RecordQueue(self.folder)
        with contextlib.suppress(OSError):
            for tracker in self._live:
                deliveries = DeliveryLog(queue, tracker).read()
                if left := len(deliveries.missing(queue.read())):
                    reason = f" ({deliveries.failure})" if deliveries.failure else ""
                    told = (
                        f"{left} records have not reached {tracker}{reason}; `navrl sync "
                        f"{self.folder}` delivers them"
                    )
                    self._warn(tracker, told)

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _artifact_record(
    name: str, file_name: str, aliases: Collection[str], metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    labels = [check_alias(alias) for alias in dict.fromkeys(aliases)]
    plain = plain_value(metadata or {}, "metadata")
    return {
        "name": check_name(name),
        "file": legal_file_name(file_name),
        "aliases": labels,
        "metadata": plain,
    }


def _wanted(settings: TrackingSettings) -> tuple[str, ...]:
    """Return the trackers; `wandb.mode` alone asks for W&B too."""
    extra = ("wandb",) if settings.wandb.mode != "disabled" else ()
    return tuple(dict.fromkeys((*settings.trackers, *extra)))


def _live(settings: TrackingSettings) -> list[str]:
    """Return the trackers that are delivered to during a run."""
    return [
        name for name in _wanted(settings) if name != "wandb" or settings.wandb.mode == "online"
    ]


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
