"""A process that delivers the records of one run to one tracker.

Run as `python -m navrl.tracking.delivery_worker RUN TRACKER`.

It may be killed at any moment, and kills itself when the tracker does not answer in time; what it
has not noted as delivered, the next one delivers. It loads neither torch nor the simulator.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

from navrl.credentials import redact
from navrl.io.container.priority import give_way
from navrl.tracking.backends import Backend, RunInfo, open_backend
from navrl.tracking.backends.interface import SLOWEST, named_file
from navrl.tracking.queue import DeliveryLog, Dropped, LineFile, RecordQueue, Undeliverable

DELIVERED, LEFT, BUSY, OVERDUE = 0, 1, 3, 75  # exit codes
POLL = 0.1  # s between looks at the queue
# a tenth of a core beside a busy training; with 19 W&B's client is not loaded in time
NICENESS = 10
BACK_OFF = (0.5, 30.0)  # s after the first failure, and at most
ATTEMPTS = 3  # of a worker that no training waits for
ROWS = ("metrics", "image", "video")
STORED = ("artifact", "alias", "delete")


# what is done, and seconds beyond the deadline
Limit = Callable[[str, float], contextlib.AbstractContextManager[None]]


class DeliveryWorker:
    """Carries what a tracker lacks, in two lanes: a model that cannot be delivered does not hold
    the metrics up.
    """

    def __init__(self, queue: RecordQueue, deliveries: DeliveryLog, limit: Limit) -> None:
        self._queue, self._deliveries, self._limit = queue, deliveries, limit
        self._backend: Backend | None = None
        self._sent: dict[int, None] = {}  # rows that the tracker took and has not confirmed
        self._pending: list[dict[str, Any]] = []
        self._seen = 0  # records that were looked at: a long run has many, and most are done with
        self._last = 0  # row that it certainly has

    def missing(self) -> list[dict[str, Any]]:
        """Return what is still to be delivered, besides what the tracker only has to confirm."""
        records = self._queue.read()
        fresh, self._seen = records[self._seen :], len(records)
        missing = self._deliveries.missing([*self._pending, *fresh])
        self._pending = [record for record in missing if record["number"] not in self._sent]
        return self._pending

    def round(self) -> bool:
        """Deliver what there is; return whether nothing failed."""
        missing = self.missing()
        if missing:
            self._queue.sync()
        lanes = (
            [record for record in missing if (record["kind"] in STORED) is stored]
            for stored in (False, True)
        )
        # the second lane runs whatever the first one does
        whole = [self._lane(lane) for lane in lanes]
        return all(whole)

    def finish(self) -> bool:
        """End the run at the tracker; return whether it confirmed everything."""
        if self._backend is None:
            return True
        try:
            with self._limit("finish", 0.0):
                self._backend.finish()
        except Exception as error:  # whatever a tracker can think of
            self._deliveries.fail(f"finish: {_short(error)}")
            return False
        finally:
            self._backend = None
            sent, self._sent = [*self._sent], {}
            self._pending, self._seen = [], 0
        for first, last in _ranges(sent):
            self._deliveries.deliver(first, last)
        self._drop()
        return True

    def _lane(self, records: list[dict[str, Any]]) -> bool:
        for record in records:
            what = f"record {record['number']} ({record['kind']})"
            try:
                with self._limit(what, self._size(record) / SLOWEST):
                    label = self._carry(record)
            except Dropped:  # of a tracker that the run had not got yet then
                self._deliveries.deliver(record["number"], record["number"])
            except Undeliverable as error:
                self._deliveries.refuse(record["number"], _short(error))
            except Exception as error:  # whatever a tracker can think of
                self._deliveries.fail(f"{what}: {_short(error)}")
                return False
            else:
                if label is not None:
                    self._deliveries.deliver(record["number"], record["number"], label)
                if record["kind"] == "artifact":
                    self._drop()
        return True

    def _drop(self) -> None:
        """Make room: a long run has many models."""
        with contextlib.suppress(OSError):
            self._queue.drop()

    def _size(self, record: dict[str, Any]) -> int:
        """Return the size of a record's file."""
        try:
            return (
                (self._queue.files / record["sha256"]).stat().st_size if "sha256" in record else 0
            )
        except OSError:
            return 0

    def _carry(self, record: dict[str, Any]) -> str | None:
        """Deliver a record and return what the tracker calls it, or None where it has yet to
        confirm it.
        """
        kind, number = record["kind"], record["number"]
        if kind in ("run", "end"):
            return ""
        backend = self._open()
        if kind in STORED and not backend.keeps_models:
            return ""
        if kind in ROWS:
            if number <= self._last:
                return ""
            self._row(backend, record)
            if not backend.confirms:
                self._sent[number] = None
                return None
        elif kind == "summary":
            backend.summary(_known(record["values"]))
        elif kind == "artifact":
            file = self._queue.file(record["sha256"])
            metadata = {**record["metadata"], "file": record["file"]}
            return backend.upload(
                file, record["name"], aliases=record["aliases"], metadata=metadata
            )
        elif kind == "alias":
            backend.set_alias(record["name"], record["alias"], self._version(record["of"]))
        elif kind == "delete":
            backend.delete(record["name"], self._version(record["of"]))
        return ""

    def _row(self, backend: Backend, record: dict[str, Any]) -> None:
        place = {"number": record["number"], "moment": record["time"]}
        if record["kind"] == "metrics":
            if values := _known(record["values"]):
                backend.log(record["step"], values, **place)
            return
        take = backend.image if record["kind"] == "image" else backend.video
        with named_file(self._queue.file(record["sha256"]), record["file"]) as file:
            take(record["step"], record["name"], file, **place)

    def _version(self, number: int) -> str:
        """Return what the tracker calls the model of a record."""
        if number in self._deliveries.refused:
            raise Undeliverable(
                f"the model of record {number} was refused: {self._deliveries.refused[number]}"
            )
        if not (label := self._deliveries.done.get(number)):
            raise Undeliverable(f"{self._deliveries.tracker} has no model of record {number}")
        return label

    def _open(self) -> Backend:
        if self._backend is None:
            info = next(
                record for record in reversed(self._queue.records) if record["kind"] == "run"
            )
            options = info["options"].get(self._deliveries.tracker, {})
            backend = open_backend(self._deliveries.tracker, folder=self._queue.run, **options)
            run = RunInfo(
                id=info["id"], name=info["name"], folder=self._queue.run, config=info["config"]
            )
            self._last = backend.start(run)
            self._backend = backend
            for service in _services(os.getpid()):
                give_way(service, NICENESS)
        return self._backend


class Watch:
    """Ends the process, with all that it has started, when a call takes too long or the patience is
    over.
    """

    def __init__(self, deliveries: Path, deadline: float, stop: Callable[[], None]) -> None:
        self._deliveries, self._deadline, self._stop = deliveries, deadline, stop
        # when it is over, what it is, the seconds it was given
        self._call: tuple[float, str, float] | None = None
        self.end: float | None = None  # when the patience is over
        threading.Thread(target=self._look, name="navrl-watch", daemon=True).start()

    @contextlib.contextmanager
    def limit(self, what: str, more: float) -> Iterator[None]:
        """Give the block the deadline and some seconds more, and no longer."""
        seconds = self._deadline + more
        self._call = (time.monotonic() + seconds, what, seconds)
        try:
            yield
        finally:
            self._call = None

    def _look(self) -> None:
        while True:
            time.sleep(0.05)
            now, call, end = time.monotonic(), self._call, self.end
            if call is not None and now > call[0]:
                self._fail(f"{call[1]}: no answer in {call[2]:.3g} s")
            elif end is not None and now > end:
                self._fail(f"{call[1] if call else 'waiting'}: the patience was over")

    def _fail(self, reason: str) -> None:
        lines = LineFile(self._deliveries)
        with contextlib.suppress(OSError), lines.locked():
            lines.append({"failed": reason})
        self._stop()


def end_services(worker: int) -> None:
    """Kill the process that W&B's client has started for a worker that is dead, or is this very
    process.

    It would outlive the worker, for hours if no server answers.
    """
    if not worker or (worker != os.getpid() and is_alive(worker)):
        return
    for service in _services(worker):
        with contextlib.suppress(OSError):
            os.kill(service, signal.SIGKILL)


def _services(worker: int) -> list[int]:
    """Return the processes that W&B's client has started for a worker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        words = _words(int(entry.name))
        if (
            words
            and words[0].endswith(b"/wandb-core")
            and (b"--pid", str(worker).encode()) in pairwise(words)
        ):
            found.append(int(entry.name))
    return found


def is_alive(process: int) -> bool:
    """Tell whether a process lives; a dead one that nobody has buried has no words left."""
    return bool(process and _words(process))


def _words(process: int) -> list[bytes]:
    """Return the command of a process, or nothing where there is none."""
    try:
        content = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return []
    return content.split(b"\0") if content else []


def _stop_all() -> None:
    """Kill this process and what it has started."""
    end_services(os.getpid())
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(OVERDUE)


def deliver(
    run: Path, tracker: str, *, parent: int | None = None, deadline: float | None = None
) -> int:
    """Carry records until there are no more: with a parent, until its run has ended; return the
    exit code.
    """
    queue = RecordQueue(run)
    with DeliveryLog(queue, tracker) as deliveries:
        if not deliveries.lock():
            return BUSY
        deliveries.read()
        end_services(deliveries.before)
        while not (infos := [record for record in queue.read() if record["kind"] == "run"]):
            if parent is None or os.getppid() != parent:
                return DELIVERED
            time.sleep(POLL)
        watch = Watch(queue.folder / f"{tracker}.log", deadline or infos[-1]["deadline"], _stop_all)
        worker = DeliveryWorker(queue, deliveries, watch.limit)
        return _serve(worker, queue, watch, parent) if parent else _empty(worker)


def _serve(worker: DeliveryWorker, queue: RecordQueue, watch: Watch, parent: int) -> int:
    """Live with a training: deliver as records come, finish when it has ended, or has died."""
    pause, resting = BACK_OFF[0], 0.0
    while True:
        ended = os.getppid() != parent or has_ended(queue)
        if ended and watch.end is None:
            watch.end = time.monotonic() + next(
                r["patience"] for r in reversed(queue.records) if r["kind"] == "run"
            )
            resting = 0.0
        if time.monotonic() >= resting:
            whole = worker.round()
            if whole and ended and not worker.missing():
                return DELIVERED if worker.finish() else LEFT
            if not whole:
                resting, pause = time.monotonic() + pause, min(2 * pause, BACK_OFF[1])
            else:
                pause = BACK_OFF[0]
        time.sleep(POLL)


def _empty(worker: DeliveryWorker) -> int:
    """Deliver all there is, with a few attempts."""
    for attempt in range(ATTEMPTS):
        whole = worker.round()
        if worker.finish() and whole:
            return DELIVERED
        if attempt < ATTEMPTS - 1:
            time.sleep(BACK_OFF[0] * 2**attempt)
    return LEFT


def has_ended(queue: RecordQueue) -> bool:
    """Tell whether the last session of a run has come to its end."""
    queue.read()
    return queue.ended


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Return growing numbers as ranges without gaps: [1, 2, 5] -> [(1, 2), (5, 5)]."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without those that were not finite, which are null in the queue: no tracker
    can draw them.
    """
    return {name: value for name, value in values.items() if value is not None}


def _short(error: BaseException) -> str:
    told = redact(" ".join(str(error).split())) or type(error).__name__
    return told if len(told) <= 300 else f"{told[:300]}..."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a process."""
    parser = argparse.ArgumentParser(
        prog="python -m navrl.tracking.delivery_worker", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("tracker")
    parser.add_argument("--parent", type=int, help="the process of the training, to end with")
    parser.add_argument("--deadline", type=float, help="seconds that the tracker has to answer")
    parsed = parser.parse_args(arguments)
    give_way(os.getpid(), NICENESS)  # training comes first
    return deliver(parsed.run, parsed.tracker, parent=parsed.parent, deadline=parsed.deadline)


if __name__ == "__main__":
    sys.exit(main())
