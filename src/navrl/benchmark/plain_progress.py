"""Progress of a benchmark as plain lines, for output that is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType

__all__ = ["PlainProgress"]

INTERVAL = 60.0  # seconds between lines about a case that still runs


class PlainProgress:
    """Writes a line when a case has ended, and one a minute while it runs.

        with PlainProgress(print) as progress:
            run(suite, progress=progress.update)

    Args:
        write: called with every line, also from another thread.
        clock: seconds that only grow.
    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write, clock
        self._running: tuple[str, float] | None = None  # what runs, and since when
        self._ended = Event()
        self._thread = Thread(target=self._watch, name="benchmark-progress", daemon=True)

    def update(self, case: str) -> None:
        """Say how long the last case took; from now on `case` runs."""
        self._end("took")
        self._running = case, self._clock()

    def remind(self) -> None:
        """Say what runs, and for how long."""
        if self._running is not None:
            case, start = self._running
            self._write(f"{case}: running for {(self._clock() - start) / 60:.0f} min")

    def _end(self, how: str) -> None:
        if self._running is not None:
            case, start = self._running
            self._write(f"{case} {how} {self._clock() - start:.1f} s")
        self._running = None

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.remind()

    def __enter__(self) -> PlainProgress:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._end("took" if kind is None else "failed after")
