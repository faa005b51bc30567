"""MetricsLog: the metrics of a run as JSON lines in a file that survives crashes and full disks."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from navrl.errors import ConfigError, ContainerError
from navrl.io.container.atomic_files import AtomicFile

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MetricsLog", "keep_aside", "plain_value"]

HELD = 10_000  # most records in memory while the disk takes none


class MetricsLog:
    """An append-only file of JSON lines, one record each: `{"kind": "train", "iteration": 7, ...}`.

    A record is written with one system call, so a killed process loses none that `write` has
    returned from. Opening a log repairs its file: a torn last line (full disk, power cut) is
    dropped; if another line is damaged, the file is kept as `metrics.damaged-1.jsonl` and the log
    continues with the good lines, with a warning.

    Args:
        path: the file; created if it is missing.
        on_error: if a write fails, `raise` OSError, or `hold` up to 10,000 records in memory until
            writes succeed again.

    >>> from navrl.metrics_log import MetricsLog
    >>> with MetricsLog("metrics.jsonl") as log:
    ...     log.write("train", 1, loss=0.5)
    >>> MetricsLog.read("metrics.jsonl", "train")[0]["loss"]
    0.5
    """

    def __init__(
        self, path: str | os.PathLike[str], *, on_error: Literal["raise", "hold"] = "raise"
    ) -> None:
        self.path = Path(path)
        self.failure = ""  # why the last write failed; empty if it succeeded
        self.dropped = 0  # held records that were discarded, the oldest first
        self._holds = on_error == "hold"
        self._held: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._descriptor, self._size = self._open()  # the size up to the last whole line

    @property
    def held(self) -> int:
        """Records in memory that are not on disk yet."""
        return len(self._held)

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        """Append a record; numbers that are not finite become null, one-element tensors numbers.

        Raises:
            ConfigError: JSON cannot hold a value, or the log is closed; nothing was written.
            OSError: the write failed and `on_error` is `raise`; nothing was written.
        """
        record = {
            "kind": kind,
            "iteration": int(iteration),
            **{key: plain_value(value, key) for key, value in values.items()},
        }
        line = json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            self._check_open()
            self._held.append(line)
            try:
                self._write_held()
            except OSError:
                if not self._holds:
                    self._held.pop()
                    raise
                if len(self._held) > HELD:
                    self._held.popleft()
                    self.dropped += 1

    def flush(self) -> bool:
        """Try to write the held records; return whether none is left."""
        with self._lock, suppress(OSError):
            self._check_open()
            self._write_held()
        return not self._held

    def _write_held(self) -> None:
        """Write the held records; a failed write leaves no partial line."""
        try:
            if self.failure:
                os.ftruncate(self._descriptor, self._size)  # if the failed write could not do it
            while self._held:
                line = self._held[0]
                while line:  # a write may be short
                    line = line[os.write(self._descriptor, line) :]
                self._size += len(self._held.popleft())
            self.failure = ""
        except OSError as error:
            self.failure = error.strerror or str(error)
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise

    def rewind(self, iteration: int) -> None:
        """Drop the records of later iterations, so that a resumed run repeats them.

        Raises:
            ConfigError: the file cannot be written; it is unchanged.
        """
        with self._lock:
            self._check_open()
            lines = list(_records(self.path))
            kept = [line for line, record in lines if record["iteration"] <= iteration]
            if len(kept) == len(lines):
                return
            try:
                _replace(self.path, kept)
            except OSError as error:
                raise _unwritable(self.path, error) from error
            os.close(self._descriptor)
            self._descriptor, self._size = self._open()

    def close(self) -> None:
        """Flush to disk and close the file; a second call does nothing."""
        with self._lock:
            if self._descriptor < 0:
                return
            try:
                self._write_held()
                os.fsync(self._descriptor)
            except OSError as error:
                if not self._holds:
                    raise
                self.failure = error.strerror or str(error)
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    @staticmethod
    def read(path: str | os.PathLike[str], kind: str | None = None) -> list[dict[str, Any]]:
        """Return the records of a file, all or those of one kind, also while it is written.

        Raises:
            FileNotFoundError: there is no such file.
            ContainerError: a line other than the last is no record; the message has its number.
        """
        return [
            record for _, record in _records(Path(path)) if kind is None or record["kind"] == kind
        ]

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise ConfigError(f"{self.path}: this log is closed; open another MetricsLog")

    def _open(self) -> tuple[int, int]:
        try:
            if self.path.exists() and not self.path.is_file():
                raise ConfigError(
                    f"{self.path} is not a regular file; move it away, or name another file"
                )
            size = _repair(self.path)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, 0o666)
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return descriptor, size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _records(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines with their records, without a torn last line.

    Raises:
        ContainerError: another line is damaged.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is not None:
            yield line, record
        elif number < len(lines):
            raise ContainerError(
                f"{path}, line {number}: found {line[:40]!r}, expected a record such as "
                '{"kind": "train", "iteration": 7}; remove the line, or resume the run, which '
                "does so"
            )


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, or None if the line is torn or damaged."""
    try:
        record = json.loads(line)
        whole = isinstance(record["kind"], str) and type(record["iteration"]) is int
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if whole and line.endswith(b"\n") else None


def _repair(path: Path) -> int:
    """Return the size of a file without a torn last line; other damaged lines are removed first."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    whole = [_record(line) is not None for line in lines]
    good = list(compress(lines, whole))
    if not all(whole[:-1]):
        aside = keep_aside(path)
        _replace(path, good)
        warnings.warn(
            f"{path}: {whole[:-1].count(False)} damaged lines, the first is line "
            f"{whole.index(False) + 1}; the file is kept as {aside.name}, and the log continues "
            f"with its {len(good)} good lines",
            RuntimeWarning,
            stacklevel=4,
        )
    return sum(map(len, good))


def keep_aside(path: Path) -> Path:
    """Keep a damaged file under a new name, such as `metrics.damaged-1.jsonl`, and return it.

    >>> from pathlib import Path
    >>> from navrl.metrics_log import keep_aside
    >>> written = Path("metrics.jsonl").write_text("not JSON")
    >>> keep_aside(Path("metrics.jsonl")).name
    'metrics.damaged-1.jsonl'
    """
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")):
        number += 1
    try:
        os.link(path, aside)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, aside)
    return aside


def _replace(path: Path, lines: Sequence[bytes]) -> None:
    """Replace a file by one of these lines, atomically."""
    with AtomicFile(path) as file:
        file.write([b"".join(lines)])
        file.commit()


def _unwritable(path: Path, error: OSError) -> ConfigError:
    reason = f"{path} cannot be written: {error.strerror or error}"
    return ConfigError(f"{reason}; free space, or name a file in a writable folder")


def plain_value(value: Any, place: str) -> Any:
    """Return a value for JSON: what is not finite becomes null, a one-element tensor a number.

    Raises:
        ConfigError: JSON cannot hold it; the message names its place.

    >>> from navrl.metrics_log import plain_value
    >>> plain_value({"loss": float("nan"), "step": 3}, "metrics")
    {'loss': None, 'step': 3}
    """
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner, f"{place}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner, f"{place}[{i}]") for i, inner in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "size", None) != 0:
        try:
            value = value.item()  # of torch or NumPy
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{place!r} has many elements; expected one number: take its mean, or tolist()"
            ) from error
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ConfigError(
        f"{place!r} is a {type(value).__name__}; expected a number, text, or lists and mappings "
        "of them"
    )
