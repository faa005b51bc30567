"""The process that delivers the records of one run to one tracker.

Run as `python -m navrl.tracking.delivery_worker RUN TRACKER [--parent PID] [--deadline SECONDS]`.
It may be killed at any moment: the next worker delivers what this one has not noted as delivered.
It loads neither torch nor the simulator.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from navrl.io.container.priority import give_way
from navrl.tracking.client_processes import kill_client_processes
from navrl.tracking.delivery import NICENESS, Delivery
from navrl.tracking.line_file import LineFile
from navrl.tracking.queue import RecordQueue

DELIVERED, INCOMPLETE, BUSY, OVERDUE = 0, 1, 3, 75  # exit codes
POLL = 0.1  # s between two reads of the queue
BACK_OFF = (0.5, 30.0)  # s after the first failure, and at most
ATTEMPTS = 3  # of a worker without a training


class Watchdog:
    """Ends the process when a call exceeds its deadline, or when the run's patience is over.

    Clients of trackers may hang in calls that nothing can interrupt; W&B's `finish` waits for
    minutes.
    """

    def __init__(self, log: Path, deadline: float, end: Callable[[], object]) -> None:
        self._log, self._deadline, self._end = log, deadline, end
        self._call: tuple[float, str, float] | None = None  # due time, what, seconds allowed
        self.patience_ends: float | None = None  # by time.monotonic
        threading.Thread(target=self._watch, name="navrl-watchdog", daemon=True).start()

    @contextlib.contextmanager
    def limit(self, what: str, more: float) -> Iterator[None]:
        """Allow the block the deadline and `more` seconds."""
        seconds = self._deadline + more
        self._call = (time.monotonic() + seconds, what, seconds)
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        while True:
            time.sleep(0.05)
            now, call, ends = time.monotonic(), self._call, self.patience_ends
            if call is not None and now > call[0]:
                self._give_up(f"{call[1]}: no answer in {call[2]:.3g} s")
            elif ends is not None and now > ends:
                self._give_up(f"{call[1] if call else 'delivery'}: tracker_patience was over")

    def _give_up(self, reason: str) -> None:
        lines = LineFile(self._log)
        with contextlib.suppress(OSError), lines.locked():
            lines.append({"failed": reason})
        self._end()


def end_process() -> NoReturn:
    """Kill this process and every process that it started."""
    kill_client_processes(os.getpid())
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(OVERDUE)


def deliver(
    run: Path, tracker: str, *, parent: int | None = None, deadline: float | None = None
) -> int:
    """Deliver a run's records and return the exit code.

    With a `parent`, deliver as records come, until that process has ended the run or died; without
    one, deliver what is queued.
    """
    queue = RecordQueue(run)
    queue.make_folder()
    with queue.deliveries(tracker) as deliveries:
        if not deliveries.lock():
            return BUSY
        deliveries.read()
        kill_client_processes(deliveries.previous_worker)
        queue.read()
        while (session := queue.session()) is None:
            if parent is None or os.getppid() != parent:
                return DELIVERED
            time.sleep(POLL)
            queue.read()
        watchdog = Watchdog(deliveries.path, deadline or session["deadline"], end_process)
        delivery = Delivery(queue, deliveries, watchdog.limit)
        if parent is None:
            return _deliver_queued(delivery)
        return _deliver_during(parent, delivery, queue, watchdog, session["patience"])


def _deliver_during(
    parent: int, delivery: Delivery, queue: RecordQueue, watchdog: Watchdog, patience: float
) -> int:
    """Deliver records as they come; finish when the training has ended or died."""
    pause, next_round = BACK_OFF[0], 0.0
    while True:
        queue.read()
        ended = queue.ended or os.getppid() != parent
        if ended and watchdog.patience_ends is None:
            watchdog.patience_ends = time.monotonic() + patience
            next_round = 0.0
        if time.monotonic() >= next_round:
            succeeded = delivery.round()
            if succeeded and ended and not delivery.missing():
                return DELIVERED if delivery.finish() else INCOMPLETE
            if succeeded:
                pause = BACK_OFF[0]
            else:
                next_round, pause = time.monotonic() + pause, min(2 * pause, BACK_OFF[1])
        time.sleep(POLL)


def _deliver_queued(delivery: Delivery) -> int:
    """Deliver what is queued, with a few attempts."""
    for attempt in range(ATTEMPTS):
        succeeded = delivery.round()
        if delivery.finish() and succeeded:
            return DELIVERED
        if attempt < ATTEMPTS - 1:
            time.sleep(BACK_OFF[0] * 2**attempt)
    return INCOMPLETE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a process and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m navrl.tracking.delivery_worker", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("tracker")
    parser.add_argument("--parent", type=int, help="process id of the training")
    parser.add_argument("--deadline", type=float, help="seconds that a call may take")
    parsed = parser.parse_args(arguments)
    give_way(os.getpid(), NICENESS)  # training comes first
    return deliver(parsed.run, parsed.tracker, parent=parsed.parent, deadline=parsed.deadline)


if __name__ == "__main__":
    sys.exit(main())
