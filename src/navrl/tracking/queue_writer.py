"""A thread that writes records to the queue, so that training never waits long for a disk.

The caller waits until its record is safe from a kill, which takes a fraction of a millisecond, and
for `WAIT` at most. While the disk takes nothing, records are held in memory, up to a limit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from navrl.tracking.queue import RecordQueue

WAIT = 0.02  # s that a caller waits for the disk at most
HELD = 10_000  # records held in memory while the disk takes none
# of them with an open file or a whole model: a process may open a thousand files, and training
# needs some
HELD_FILES = 64
RETRY = 0.5  # s after a write has failed

Work = Callable[[RecordQueue], object]


class _Task(NamedTuple):
    """A write, and what it holds until it is done."""

    work: Work
    tried: threading.Event
    has_file: bool
    descriptor: int  # -1: none


class QueueWriter:
    """Writes to a queue in the order of `submit`; the disk may fail and come back.

    `warn(topic, message)` is called when something goes wrong; it should warn once for each topic.
    """

    def __init__(self, queue: RecordQueue, warn: Callable[[str, str], None]) -> None:
        self._queue, self._warn = queue, warn
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = 0  # records that are not on the disk yet
        self._files = 0  # of them with a file or a model
        self._thread = threading.Thread(target=self._run, name="navrl-tracking", daemon=True)
        self._thread.start()

    def submit(
        self, work: Work, seconds: float = WAIT, *, has_file: bool = False, descriptor: int = -1
    ) -> None:
        """Have `work(queue)` called by the thread, and wait `seconds` for it at most.

        A thread that is behind already is not waited for. `descriptor` is closed afterwards.
        """
        task = _Task(work, threading.Event(), has_file, descriptor)
        with self._changed:
            behind = self._waiting > 0
            full = self._waiting >= HELD or (has_file and self._files >= HELD_FILES)
            self._waiting += 1
            self._files += has_file
        if full:
            self._finish(task)
            self._warn(
                "full", f"{self._queue.run} cannot be written; records for the trackers are dropped"
            )
            return
        self._tasks.put(task)
        if not behind:
            task.tried.wait(seconds)

    def flush(self, seconds: float) -> bool:
        """Wait until every record is in the queue, `seconds` at most; return whether all are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def close(self, until: float) -> int:
        """End the session in the queue; return how many records could not be written.

        Waits for the disk until a moment of `time.monotonic`.
        """
        self._tasks.put(None)
        self._thread.join(max(0.0, until - time.monotonic()))
        with self._changed:
            return self._waiting

    def _finish(self, task: _Task) -> None:
        if task.descriptor >= 0:
            os.close(task.descriptor)
        with self._changed:
            self._waiting -= 1
            self._files -= task.has_file
            self._changed.notify_all()

    def _run(self) -> None:
        held: deque[_Task] = deque()
        while True:
            task = None
            with contextlib.suppress(Empty):
                if (task := self._tasks.get(timeout=RETRY if held else None)) is None:
                    break
                held.append(task)
            self._write(held)
            if task is not None:
                task.tried.set()
        with self._changed:
            self._waiting += 1
        end = _Task(lambda queue: queue.append("end"), threading.Event(), False, -1)
        self._write(deque([*held, end]))
        with contextlib.suppress(OSError):
            self._queue.sync()
        self._queue.close()

    def _write(self, held: deque[_Task]) -> None:
        """Write what is held, in order, until the disk fails."""
        while held:
            try:
                held[0].work(self._queue)
            except OSError as error:
                folder = self._queue.folder
                self._warn(
                    "disk", f"{folder} cannot be written: {error.strerror}; records wait in memory"
                )
                return
            except Exception as error:  # a record that cannot be written must not end a training
                self._warn("record", f"a record could not be queued for the trackers: {error}")
            self._finish(held.popleft())
