"""Statistics of saves: counts, bytes, and the stall of the training thread."""

from __future__ import annotations

from collections import deque

import numpy as np

from navrl.io.container.container_writer import Written

__all__ = ["SaveStatistics"]


class SaveStatistics:
    """Counts saves and bytes, and keeps the stalls of the training thread."""

    def __init__(self) -> None:
        self.failed = 0
        self._saves = 0
        self._raw_bytes = 0
        self._stored_bytes = 0
        self._write_seconds = 0.0
        self._stalls: deque[float] = deque(maxlen=10_000)

    def stalled(self, seconds: float) -> None:
        """Add the time that a call to save took."""
        self._stalls.append(seconds)

    def waited(self, seconds: float) -> None:
        """Add the time that a step waited for a copy to the stall of the last save."""
        if self._stalls:
            self._stalls[-1] += seconds

    def wrote(self, written: Written, seconds: float) -> None:
        """Count a file that is on the disk."""
        self._saves += 1
        self._raw_bytes += written.raw_bytes
        self._stored_bytes += written.stored_bytes
        self._write_seconds += seconds

    def summary(self) -> dict[str, float]:
        """Return all of it; stalls in milliseconds."""
        stalls = 1e3 * np.array(self._stalls or [0.0])
        ratio = self._raw_bytes / self._stored_bytes if self._stored_bytes else 1.0
        return {
            "total_saved": self._saves,
            "failed": self.failed,
            "raw_bytes": self._raw_bytes,
            "stored_bytes": self._stored_bytes,
            "compression_ratio": ratio,
            "stall_ms_p50": float(np.percentile(stalls, 50)),
            "stall_ms_p99": float(np.percentile(stalls, 99)),
            "stall_ms_max": float(stalls.max()),
            "write_seconds": self._write_seconds,
        }
