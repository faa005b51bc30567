"""Watching a run: `PerformanceMonitor` says where the time goes, `MetricsLog` keeps every number in
a file of lines.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat

from navrl.arguments import whole_number
from navrl.errors import ConfigError, ContainerError, nearest_name

__all__ = ["MetricsLog", "PerformanceMonitor", "plain_value"]

HEADING = "=== Performance Summary ==="
# measurements of each name that statistics can look back on; totals and counts forget nothing
KEPT = 10_000
HELD = 10_000  # records that a MetricsLog keeps in memory while the disk takes none


class PerformanceMonitor:
    """Named durations and their statistics; any thread may measure at any time.

    >>> monitor = PerformanceMonitor()
    >>> with monitor.timer("data_collection"):
    ...     pass
    >>> monitor.get_stats()["data_collection"]["count"]
    1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[str, _Measured] = {}
        self._running: dict[
            tuple[int, str], float
        ] = {}  # by thread: two threads may time the same name

    def timer(self, name: str) -> _Timer:
        """Return a context manager that measures its block, also when the block raises."""
        return _Timer(self, name)

    def start_timer(self, name: str) -> None:
        """Start the clock `name` of this thread; one that runs already starts anew."""
        self._running[threading.get_ident(), name] = time.perf_counter()

    def end_timer(self, name: str) -> float:
        """Stop the clock `name` of this thread, record what it shows, and return it in seconds.

        Raises:
            ConfigError: no such clock runs in this thread.
        """
        end = time.perf_counter()
        start = self._running.pop((threading.get_ident(), name), None)
        if start is None:
            running = [
                known for thread, known in list(self._running) if thread == threading.get_ident()
            ]
            found = f"running are {', '.join(sorted(running))}" if running else "none is running"
            raise ConfigError(
                f"end_timer({name!r}): not started in this thread, "
                f"{found}.{nearest_name(name, running)} Call start_timer first"
            )
        self._add(name, end - start)
        return end - start

    def record(self, name: str, seconds: float) -> None:
        """Add a duration that was measured elsewhere.

        Raises:
            ConfigError: the duration is negative or not finite.
        """
        if not isinstance(seconds, SupportsFloat) or not 0.0 <= float(seconds) < math.inf:
            raise ConfigError(
                f"record({name!r}, {seconds!r}): expected seconds, finite and not negative"
            )
        self._add(name, float(seconds))

    def get_stats(self, window: int | None = 100) -> dict[str, dict[str, float]]:
        """Return seconds by name: mean, std, min, max, p50 and p99 of the last `window`; total and
        count of all.

        Of None, or of more than 10,000, the last 10,000 are looked at.
        """
        if window is not None:
            window = whole_number("window", window, 1)
        with self._lock:
            copies = {
                name: (list(one.recent), one.total, one.count)
                for name, one in self._measured.items()
            }
        return {
            name: {
                **_statistics(recent[-window:] if window else recent),
                "total": total,
                "count": count,
            }
            for name, (recent, total, count) in copies.items()
        }

    def report(self, window: int | None = 100) -> dict[str, float]:
        """Return what `get_stats` does in one level, for loggers: `{"training_mean": ..., ...}`."""
        stats = self.get_stats(window)
        return {f"{name}_{key}": one[key] for name, one in stats.items() for key in one}

    def get_summary(self, window: int | None = 100) -> str:
        """Return a table under a heading, the name that took most time first.

        `share` is that of the sum of all names.
        """
        stats = self.get_stats(window)
        whole = sum(one["total"] for one in stats.values())
        rows = [["", "count", "total", "share", "mean", "std", "p50", "p99", "max"]]
        for name, one in sorted(stats.items(), key=lambda item: -item[1]["total"]):
            share = f"{100 * one['total'] / whole:.1f} %" if whole else "0.0 %"
            times = [_duration(one[key]) for key in ("mean", "std", "p50", "p99", "max")]
            rows.append([name, f"{one['count']:,}", _duration(one["total"]), share, *times])
        return f"{HEADING}\n{_aligned(rows) if stats else 'nothing measured yet'}"

    def reset(self) -> None:
        """Forget everything, running clocks too."""
        with self._lock:
            self._measured.clear()
            self._running.clear()

    def _add(self, name: str, seconds: float) -> None:
        with self._lock:
            measured = self._measured.get(name)
            if measured is None:
                measured = self._measured[name] = _Measured()
            measured.recent.append(seconds)
            measured.total += seconds
            measured.count += 1


class _Measured:
    __slots__ = ("count", "recent", "total")

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=KEPT)
        self.total = 0.0
        self.count = 0


class _Timer:
    __slots__ = ("_monitor", "_name", "_start")

    def __init__(self, monitor: PerformanceMonitor, name: str) -> None:
        self._monitor = monitor
        self._name = name
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._monitor._add(self._name, time.perf_counter() - self._start)


def _statistics(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
    return {
        "mean": mean,
        "std": math.sqrt(variance),
        "min": ordered[0],
        "max": ordered[-1],
        "p50": _quantile(ordered, 0.5),
        "p99": _quantile(ordered, 0.99),
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, between two of them by a straight line, as NumPy does."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _duration(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            decimals = 0 if seconds >= 100 * scale else 1 if seconds >= 10 * scale else 2
            return f"{seconds / scale:,.{decimals}f} {unit}"
    return f"{seconds * 1e6:.2f} µs" if seconds else "0 s"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [
            first.ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells))
    return "\n".join(lines)


class MetricsLog:
    """A file of JSON lines, one record each: `{"kind": "train", "iteration": 7, ...}`; only ever
    appended to.

    A record is written with one call to the system, so a killed process loses none that `write`
    has returned from. Opening a log repairs its file: a torn last line (a full disk, a power cut)
    is dropped; if another line is damaged, the file is kept as `metrics.damaged-1.jsonl`, and the
    log continues with the good lines, with a warning.

    Args:
        path: the file; created if it is missing.
        on_error: when the disk takes no record, `raise` OSError, or `hold` up to 10,000 records in
            memory and write them as soon as the disk takes them again.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, on_error: Literal["raise", "hold"] = "raise"
    ) -> None:
        self.path = Path(path)
        self.failure = ""  # why the last attempt to write failed; empty if it did not
        self.dropped = 0  # held records that were given up, the oldest first
        self._holds = on_error == "hold"
        self._held: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._descriptor, self._size = self._open()  # the size ends with the last whole line

    @property
    def held(self) -> int:
        """Records in memory that the disk has not taken yet."""
        return len(self._held)

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        """Append a record. Numbers that are not finite become null; tensors and arrays of one
        element become numbers.

        Raises:
            ConfigError: a value is nothing that JSON can hold, or the log is closed; nothing was
                written.
            OSError: the disk did not take the record, and `on_error` is `raise`; nothing was
                written.
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
        """Try to write the held records now; return whether none is left."""
        with self._lock, suppress(OSError):
            self._check_open()
            self._write_held()
        return not self._held

    def _write_held(self) -> None:
        """Write the records that the disk has not taken yet; a failed attempt leaves no part of a
        line.
        """
        try:
            if self.failure:
                os.ftruncate(self._descriptor, self._size)  # in case the failed attempt could not
            while self._held:
                line = self._held[0]
                while line:  # the system may take a part only
                    line = line[os.write(self._descriptor, line) :]
                self._size += len(self._held.popleft())
            self.failure = ""
        except OSError as error:
            self.failure = error.strerror or str(error)
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise

    def rewind(self, iteration: int) -> None:
        """Drop the records of later iterations, so that a run that goes on from there leaves the
        file of one never stopped.

        Raises:
            ConfigError: the file cannot be written; it is as it was.
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
        """Put everything on the disk and close the file; again does nothing."""
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
        """Return the records of a file, all or those of one kind; it may be growing meanwhile.

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _records(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines with their records, without a last line that was torn.

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
    """Return the size of a file without a torn last line; one with damaged lines is first replaced
    by its good lines.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    whole = [_record(line) is not None for line in lines]
    good = list(compress(lines, whole))
    if not all(whole[:-1]):
        aside = keep_aside(path)
        _replace(path, good)
        told = (
            f"{whole[:-1].count(False)} damaged lines, the first is line {whole.index(False) + 1}"
        )
        told += (
            f"; the file is kept as {aside.name}, and the log continues with its "
            f"{len(good)} good lines"
        )
        warnings.warn(f"{path}: {told}", RuntimeWarning, stacklevel=4)
    return sum(map(len, good))


def keep_aside(path: Path) -> Path:
    """Keep a damaged file under a name of its own, and return that: `metrics.damaged-1.jsonl`."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")):
        number += 1
    try:
        os.link(path, aside)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, aside)
    return aside


def _replace(path: Path, lines: Sequence[bytes]) -> None:
    """Write a file of these lines in the place of another: whole or not at all."""
    from navrl.io.container.atomic_files import AtomicFile  # here: timers alone need no torch

    with AtomicFile(path) as file:
        file.write([b"".join(lines)])
        file.commit()


def _unwritable(path: Path, error: OSError) -> ConfigError:
    told = f"{path} cannot be written: {error.strerror or error}"
    return ConfigError(f"{told}; free space, or name a file in a folder that can be written")


def plain_value(value: Any, place: str) -> Any:
    """Return a value as JSON holds it: what is not finite becomes null, one element of torch or
    NumPy a number.

    Raises:
        ConfigError: JSON cannot hold it; the message names its place.
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
