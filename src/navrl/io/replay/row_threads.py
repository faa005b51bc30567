"""Threads that share the rows of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent import futures
from itertools import pairwise
from typing import Any

from navrl.io.container.thread_pool import TaskThreads

__all__ = ["RowThreads"]

WORTH_A_THREAD = 1 << 20  # bytes of a batch for each further thread


class RowThreads:
    """Threads that share the rows of a batch; started when there is enough to do."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads: TaskThreads | None = None
        self._process = 0

    def split(self, work: Callable[[int, int], Any], rows: int, size: int) -> None:
        """Call `work` on ranges of the rows, which take `size` bytes in all."""
        parts = min(self.count, rows, size // WORTH_A_THREAD + 1)
        if parts < 2:
            work(0, rows)
            return
        if self._threads is None or self._process != os.getpid():  # threads do not survive a fork
            self._process = os.getpid()
            self._threads = TaskThreads(self.count - 1, "navrl-replay")
        first, *ranges = pairwise([rows * part // parts for part in range(parts + 1)])
        waits = [self._threads.submit(work, *others) for others in ranges]
        try:
            work(*first)
        finally:  # the caller is about to release its lock, so no thread may still be reading
            futures.wait(waits)
        for done in waits:
            done.result()

    def __del__(self) -> None:
        if self._threads is not None:
            self._threads.close()
