"""PerformanceMonitor: named durations and their statistics."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import SupportsFloat

from navrl.arguments import whole_number
from navrl.errors import ConfigError, nearest_name

__all__ = ["PerformanceMonitor"]

HEADING = "=== Performance Summary ==="
KEPT = 10_000  # last measurements of each name for statistics; totals and counts cover all


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
        # by thread: two threads may time the same name
        self._running: dict[tuple[int, str], float] = {}

    def timer(self, name: str) -> _Timer:
        """Return a context manager that measures its block, also if the block raises."""
        return _Timer(self, name)

    def start_timer(self, name: str) -> None:
        """Start the timer `name` of this thread, again if it is running."""
        self._running[threading.get_ident(), name] = time.perf_counter()

    def end_timer(self, name: str) -> float:
        """Stop the timer `name` of this thread, record its duration, and return it in seconds.

        Raises:
            ConfigError: no such timer is running in this thread.
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
        """Return seconds by name: mean, std, min, max, p50, p99 of the last `window`; total, count.

        None, and anything above 10,000, means the last 10,000.
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
        """Return the same as `get_stats`, flat, for loggers: `{"training_mean": ..., ...}`."""
        stats = self.get_stats(window)
        return {f"{name}_{key}": one[key] for name, one in stats.items() for key in one}

    def get_summary(self, window: int | None = 100) -> str:
        """Return a table, the longest total first; `share` is of the sum of all totals."""
        stats = self.get_stats(window)
        whole = sum(one["total"] for one in stats.values())
        rows = [["", "count", "total", "share", "mean", "std", "p50", "p99", "max"]]
        for name, one in sorted(stats.items(), key=lambda item: -item[1]["total"]):
            share = f"{100 * one['total'] / whole:.1f} %" if whole else "0.0 %"
            times = [_duration(one[key]) for key in ("mean", "std", "p50", "p99", "max")]
            rows.append([name, f"{one['count']:,}", _duration(one["total"]), share, *times])
        return f"{HEADING}\n{_aligned(rows) if stats else 'nothing measured yet'}"

    def reset(self) -> None:
        """Remove all measurements and running timers."""
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
    """Return a quantile of sorted values, interpolated linearly as NumPy does."""
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
