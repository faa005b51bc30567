"""Delivers the records of a run to one tracker, and notes what the tracker has confirmed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from navrl.credentials import redact
from navrl.errors import TrackingError
from navrl.io.container.priority import give_way
from navrl.tracking.backends import Backend, RunInfo, open_backend
from navrl.tracking.backends.interface import SLOWEST, named_file
from navrl.tracking.client_processes import client_processes
from navrl.tracking.delivery_log import DeliveryLog
from navrl.tracking.queue import Dropped, RecordQueue, Undeliverable

# A tenth of a core beside a busy training. With 19, W&B's client does not load in time.
NICENESS = 10
ROWS = ("metrics", "image", "video")
STORED = ("artifact", "alias", "delete")
_LONGEST_REASON = 300  # characters

# Limits a block to the deadline and some seconds more; takes what is done, and those seconds.
Limit = Callable[[str, float], contextlib.AbstractContextManager[None]]


class Delivery:
    """Delivers what a tracker lacks.

    Rows and models are delivered separately: a model that fails does not hold up the metrics.
    """

    def __init__(self, queue: RecordQueue, deliveries: DeliveryLog, limit: Limit) -> None:
        self._queue, self._deliveries, self._limit = queue, deliveries, limit
        self._backend: Backend | None = None
        self._sent: dict[int, None] = {}  # rows that the tracker took but has not confirmed
        self._pending: list[dict[str, Any]] = []
        self._seen = 0  # records already sorted into pending or done
        self._last = 0  # last row that the tracker reported at the start

    def missing(self) -> list[dict[str, Any]]:
        """Return the records still to be sent, without those sent and not yet confirmed."""
        records = self._queue.read()
        fresh, self._seen = records[self._seen :], len(records)
        missing = self._deliveries.missing([*self._pending, *fresh])
        self._pending = [record for record in missing if record["number"] not in self._sent]
        return self._pending

    def round(self) -> bool:
        """Deliver what is queued; return whether nothing failed."""
        missing = self.missing()
        if missing:
            self._queue.sync()
        rows = [record for record in missing if record["kind"] not in STORED]
        models = [record for record in missing if record["kind"] in STORED]
        delivered = [self._deliver(rows), self._deliver(models)]  # both, whether or not one fails
        return all(delivered)

    def finish(self) -> bool:
        """End the run at the tracker; return whether it confirmed everything."""
        if self._backend is None:
            return True
        try:
            with self._limit("finish", 0.0):
                self._backend.finish()
        except Exception as error:  # a tracker's client may raise anything
            self._deliveries.fail(f"finish: {_reason(error)}")
            return False
        finally:
            self._backend = None
            sent, self._sent = [*self._sent], {}
            self._pending, self._seen = [], 0
        for first, last in _ranges(sent):
            self._deliveries.deliver(first, last)
        self._drop()
        return True

    def _deliver(self, records: list[dict[str, Any]]) -> bool:
        """Deliver records in order until one fails; return whether none did."""
        for record in records:
            number = record["number"]
            what = f"record {number} ({record['kind']})"
            try:
                with self._limit(what, self._size(record) / SLOWEST):
                    label = self._send(record)
            except Dropped:  # every tracker that the run had at that time has received it
                self._deliveries.deliver(number, number)
            except Undeliverable as error:
                self._deliveries.refuse(number, _reason(error))
            except Exception as error:  # a tracker's client may raise anything
                self._deliveries.fail(f"{what}: {_reason(error)}")
                return False
            else:
                if label is not None:
                    self._deliveries.deliver(number, number, label)
                if record["kind"] == "artifact":
                    self._drop()
        return True

    def _drop(self) -> None:
        """Remove files that are no longer needed: a long run queues many models."""
        with contextlib.suppress(OSError):
            self._queue.drop()

    def _size(self, record: dict[str, Any]) -> int:
        """Return the size of a record's file in bytes, 0 if it has none."""
        if "sha256" not in record:
            return 0
        try:
            return (self._queue.files / record["sha256"]).stat().st_size
        except OSError:
            return 0

    def _send(self, record: dict[str, Any]) -> str | None:
        """Send a record; return the tracker's label, or None if it has yet to confirm it."""
        kind, number = record["kind"], record["number"]
        if kind in ("run", "end"):
            return ""
        backend = self._open()
        if kind in STORED and not backend.keeps_models:
            return ""
        if kind in ROWS:
            if number <= self._last:
                return ""
            self._send_row(backend, record)
            if not backend.confirms:
                self._sent[number] = None
                return None
        elif kind == "summary":
            backend.summary(_finite(record["values"]))
        elif kind == "artifact":
            file = self._queue.file(record["sha256"])
            metadata = {**record["metadata"], "file": record["file"]}
            aliases = record["aliases"]
            return backend.upload(file, record["name"], aliases=aliases, metadata=metadata)
        elif kind == "alias":
            backend.set_alias(record["name"], record["alias"], self._version(record["of"]))
        elif kind == "delete":
            backend.delete(record["name"], self._version(record["of"]))
        return ""

    def _send_row(self, backend: Backend, record: dict[str, Any]) -> None:
        place = {"number": record["number"], "moment": record["time"]}
        if record["kind"] == "metrics":
            if values := _finite(record["values"]):
                backend.log(record["step"], values, **place)
            return
        send = backend.image if record["kind"] == "image" else backend.video
        with named_file(self._queue.file(record["sha256"]), record["file"]) as file:
            send(record["step"], record["name"], file, **place)

    def _version(self, number: int) -> str:
        """Return the tracker's label for the model of a record."""
        if number in self._deliveries.refused:
            reason = self._deliveries.refused[number]
            raise Undeliverable(f"the model of record {number} was refused: {reason}")
        if not (label := self._deliveries.done.get(number)):
            raise Undeliverable(f"{self._deliveries.tracker} has no model of record {number}")
        return label

    def _open(self) -> Backend:
        if self._backend is None:
            session = self._queue.session()
            if session is None:
                raise TrackingError(f"{self._queue.run}: the queue has no record of a session")
            options = session["options"].get(self._deliveries.tracker, {})
            backend = open_backend(self._deliveries.tracker, folder=self._queue.run, **options)
            run = RunInfo(session["id"], session["name"], self._queue.run, session["config"])
            self._last = backend.start(run)
            self._backend = backend
            for process in client_processes(os.getpid()):
                give_way(process, NICENESS)
        return self._backend


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges without gaps: [1, 2, 5] -> [(1, 2), (5, 5)]."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without nulls: the queue has null for what is not finite."""
    return {name: value for name, value in values.items() if value is not None}


def _reason(error: BaseException) -> str:
    """Return an error on one line, shortened, without passwords."""
    text = redact(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
