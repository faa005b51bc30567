"""The folder of a run: settings, record, metrics, checkpoints, evaluations."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import socket
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.conf.user_file import typed_value
from navrl.credentials import redact
from navrl.errors import ConfigError
from navrl.io.container.atomic_files import AtomicFile, remove_stale_files
from navrl.machine import machine
from navrl.metrics_log import keep_aside, plain_value

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "RunFolder",
    "as_json",
    "default_name",
    "is_finished",
    "make_folder",
    "read_record",
    "reserve_folder",
    "resume_command",
    "sequence_of",
    "write_text",
]

LARGEST_RECORD = 16 << 20  # bytes of a run.json that are read
LOCK = "training.lock"  # a file in the folder
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


def default_name(parent: str | os.PathLike[str] = "runs") -> Path:
    """Return an unused folder for a new run: `runs/2026-11-16_01-02-03`, else with `-2`, ..."""
    name = Path(parent) / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    number = 1
    path = name
    while path.exists():
        number += 1
        path = name.with_name(f"{name.name}-{number}")
    return path


def reserve_folder(parent: str | os.PathLike[str] = "runs") -> Path:
    """Create an empty folder for a new run under a name that no other process has taken."""
    while True:
        path = default_name(parent)
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # taken meanwhile
            continue
        except OSError as error:
            raise ConfigError(
                f"run_folder {path} cannot be created: {error.strerror}; name another folder"
            ) from error
        return path


def as_json(values: Mapping[str, Any]) -> str:
    """Return indented JSON; numbers that are not finite become null."""
    return (
        json.dumps(plain_value(values, "values"), indent=2, ensure_ascii=False, allow_nan=False)
        + "\n"
    )


def resume_command(path: Path) -> str:
    """Return the command that resumes the run in a folder, to be pasted into a shell."""
    text = str(path)
    plain = text != "null" and not re.search(r"""[][{}(),'"\\$]""", text)
    value = text if plain else typed_value(text)
    return shlex.join(["navrl", "train", "resume=auto", f"run_folder={value}"])


def make_folder(path: Path, option: str) -> None:
    """Make a folder for results; called before the work, so that a bad path fails early."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be created: {error.strerror}; name another folder"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; one that holds an address is readable by its owner only."""
    with AtomicFile(path, mode=0o600 if "://" in text else 0o666) as file:
        file.write([text.encode()])
        file.commit()


def read_record(path: Path) -> dict[str, Any]:
    """Return the contents of a `run.json`.

    Raises:
        OSError: it cannot be read, or is not a regular file.
        ValueError: it is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such regular file", str(path))
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LARGEST_RECORD))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"found {type(found).__name__}, expected an object")
    return found


def is_finished(run: Path, record: Mapping[str, Any]) -> bool:
    """Return whether a run is finished; older versions left only an evaluation as a mark."""
    return "finished" in record or (
        "sequence" not in record and (run / "evaluation.json").is_file()
    )


def sequence_of(record: Mapping[str, Any]) -> int:
    """Return the number that orders runs by their last start or resume; 0 for older versions."""
    number = record.get("sequence")
    return number if type(number) is int and 0 < number < 1 << 53 else 0


def next_sequence(run: Path) -> int:
    """Return a number above those of all runs in the same parent; clocks may be set back."""
    highest = 0
    for path in run.absolute().parent.glob("*/run.json"):
        with suppress(OSError, ValueError):
            highest = max(highest, sequence_of(read_record(path)))
    return highest + 1


class RunFolder:
    """The folder of one run; `create` and `open(lock=True)` hold its lock until `close`.

    The kernel releases the lock when the process ends, however it ends.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = -1
        self._was_there, self._was_used = True, True  # before `create`

    @property
    def config_path(self) -> Path:
        """All settings, as YAML."""
        return self.path / "config.yaml"

    @property
    def record_path(self) -> Path:
        """The record: command, versions, commit, machine, times."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """The metrics of every iteration, for a `MetricsLog`."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder for a `CheckpointDirectory`."""
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        """The folder of the evaluations."""
        return self.path / "evaluations"

    @property
    def model_path(self) -> Path:
        """The best model of the run."""
        return self.path / "model.pt"

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config_yaml: str,
        command: str | Sequence[str],
        origin: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Create the folder of a new run and lock it. `origin()` returns `origin` later.

        Raises:
            ConfigError: the folder holds a run already, another process trains in it, or it cannot
                be written.
        """
        folder = cls(path)
        with _explained(folder.path):
            folder._was_there = folder.path.exists()
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._was_used = any(folder.path.iterdir())
            folder._take_lock()
            try:
                if folder.holds_run():
                    raise ConfigError(
                        f"{folder.path} holds a run already; name another folder with "
                        "run_folder=..., or resume that run with resume=auto"
                    )
                folder._fill(config_yaml, command, origin)
            except BaseException:
                folder.close()
                raise
        return folder

    def _fill(
        self, config_yaml: str, command: str | Sequence[str], origin: Mapping[str, Any] | None
    ) -> None:
        """Write what every run has."""
        self.checkpoints.mkdir(exist_ok=True)
        self.evaluations.mkdir(exist_ok=True)
        write_text(self.config_path, config_yaml)
        record = {"sequence": next_sequence(self.path), **_circumstances(command), "resumed": []}
        record |= {"origin": dict(origin)} if origin else {}
        self._write_record(record)  # last: it makes the folder a run

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, lock: bool = False) -> RunFolder:
        """Return the folder of an existing run; `lock` it to train in it.

        Raises:
            ConfigError: there is no run, or `lock` is set and another process trains in it.
        """
        folder = cls(path)
        if not folder.holds_run():
            found = "holds no run (no run.json)" if folder.path.is_dir() else "does not exist"
            raise ConfigError(
                f"{folder.path} {found}; expected the folder of a run, as `navrl train` makes it"
            )
        with _explained(folder.path):
            if lock:
                folder._take_lock()
                remove_stale_files(folder.path)  # no other process writes here now
                remove_stale_files(folder.evaluations)
        return folder

    def holds_run(self) -> bool:
        """Return whether the folder holds a run; one whose creation was interrupted does not."""
        return self.record_path.is_file() or self.metrics.is_file()

    def record(self) -> dict[str, Any]:
        """Return the contents of `run.json`."""
        try:
            return read_record(self.record_path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.record_path} cannot be read: {error}; name the folder of a run")

    def origin(self) -> dict[str, Any]:
        """Return the entry of `run.json` on the file that the run started from; empty if none."""
        origin = self.record().get("origin")
        return origin if isinstance(origin, dict) else {}

    def record_resume(self, command: str | Sequence[str], iteration: int) -> None:
        """Add a resume to `run.json`: from which iteration, when, where, with which versions.

        The run becomes the newest of its parent folder, and counts as unfinished. A damaged
        `run.json` is kept as `run.damaged-1.json`, with a warning, and a new one is written.
        """
        circumstances = _circumstances(command)
        record = self._read_or_keep_aside() or {"sequence": 0, **circumstances}
        record.pop("finished", None)
        record["sequence"] = next_sequence(self.path)
        earlier = record.get("resumed")
        record["resumed"] = [
            *(earlier if isinstance(earlier, list) else []),
            {"iteration": iteration, **circumstances},
        ]
        self._write_record(record)

    def _read_or_keep_aside(self) -> dict[str, Any]:
        """Return the contents of `run.json`; empty after a damaged one was renamed."""
        try:
            return read_record(self.record_path)
        except ValueError as error:
            with _explained(self.path):
                aside = keep_aside(self.record_path)
            reason = f"damaged ({error}); it is kept as {aside.name}, and a new one is written"
            warnings.warn(f"{self.record_path}: {reason}", RuntimeWarning, stacklevel=3)
            return {}
        except OSError as error:
            raise self._unreadable(error) from error

    def record_finish(self, iteration: int) -> None:
        """Mark the run as finished in `run.json`, after its final evaluation."""
        finished = {
            "iteration": iteration,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        self._write_record({**self.record(), "finished": finished})

    def is_finished(self) -> bool:
        """Return whether the run is marked as finished; a damaged `run.json` is not."""
        try:
            return is_finished(self.path, read_record(self.record_path))
        except ValueError:
            return False
        except OSError as error:
            raise self._unreadable(error) from error

    def save_evaluation(self, name: str, rows: Mapping[str, Any]) -> Path:
        """Write an evaluation to `evaluations/NAME.json` and return its path."""
        path = self.evaluations / f"{name}.json"
        with _explained(path):
            write_text(path, as_json(rows))
        return path

    def discard_unused(self) -> None:
        """Remove what `create` wrote to a new or empty folder if nothing else has come there since,
        so that the next attempt finds the folder free.
        """
        files = [self.record_path, self.config_path, self.path / LOCK]
        folders = [self.checkpoints, self.evaluations]
        with suppress(OSError):
            unused = not any(each for folder in folders for each in folder.iterdir())
            if self._was_used or not unused or {*self.path.iterdir()} - {*files, *folders}:
                return
            for file in files:
                file.unlink(missing_ok=True)
            for folder in folders if self._was_there else [*folders, self.path]:
                folder.rmdir()

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write_record(self, record: Mapping[str, Any]) -> None:
        with _explained(self.record_path):
            write_text(self.record_path, as_json(record))

    def _take_lock(self) -> None:
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                holder = (
                    os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                    or "another process"
                )
                os.close(descriptor)
                if not isinstance(error, BlockingIOError):
                    raise
                raise ConfigError(
                    f"{self.path}: {holder} trains in this folder; wait until it ends, stop it "
                    "with kill -INT (it saves first), or name another folder with run_folder=..."
                ) from None
            warnings.warn(
                f"{self.path} is on a file system without locks: make sure that only one training "
                "writes there",
                stacklevel=4,
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._lock = descriptor


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a ConfigError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else path
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error} ({place}); name another "
            "folder with run_folder=..."
        ) from error


def _circumstances(command: str | Sequence[str]) -> dict[str, Any]:
    """Return what is needed to repeat a run: command, host, versions, commit, machine."""
    here = machine()
    return {
        "command": redact(command)
        if isinstance(command, str)
        else shlex.join(map(redact, command)),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "process": os.getpid(),
        "host": socket.gethostname(),
        "versions": {"python": here["python"], **here["versions"]},
        "git": _git(),
        "machine": {key: here[key] for key in ("processor", "cores", "memory_gib", "system")},
    }


def _git() -> dict[str, Any] | None:
    """Return the commit of the working directory and whether it is dirty; None outside git."""

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        return {
            "commit": ask("rev-parse", "HEAD"),
            "dirty": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    return None
