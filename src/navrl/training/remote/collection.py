"""The learner's side of remote collection: who collects what, what is dropped, how long to wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields

from navrl.conf.collect_settings import CollectSettings
from navrl.errors import CollectorError, ContainerError, NavrlError
from navrl.rl.collect import Rollout
from navrl.training.remote.stamps import BATCH, Stamp, unseal
from navrl.training.remote.workers import Arrived, Event, Finished, Lost, Workers

__all__ = ["Counts", "Received", "RemoteCollection"]

POLL = 0.05  # seconds between looks at workers that are not to be started yet
ERRORS_ALLOWED = 3  # that a worker's code may raise in a row
NEWS_KEPT = 100  # sentences kept until they are read
LONGEST_PAUSE = 60.0  # seconds before a worker that was lost again and again is tried again


@dataclass
class Counts:
    """What has come from the workers so far."""

    arrived: int = 0  # batches, whatever became of them
    used: int = 0  # batches that were learned from
    stale: int = 0  # dropped: collected with weights that were too old
    damaged: int = 0  # dropped: the checksum does not match, or it is no batch of this training
    lost: int = 0  # a worker died or raised an error, or could not be reached
    restarted: int = 0  # workers
    short: int = 0  # iterations that learned from fewer batches, at their deadline
    bytes_in: int = 0  # batches
    bytes_out: int = 0  # weights

    @property
    def batch_bytes(self) -> float:
        """Mean size of a batch."""
        return self.bytes_in / max(self.arrived, 1)

    def since(self, before: Counts) -> dict[str, int]:
        """Return what was counted after another count."""
        names = [part.name for part in fields(Counts)]
        return {name: getattr(self, name) - getattr(before, name) for name in names}


@dataclass(frozen=True)
class Received:
    """A batch that was verified."""

    stamp: Stamp
    batch: Rollout


@dataclass
class _Place:
    """What is known of one worker."""

    started: float | None = None  # when it began the batch that it collects
    waiting: int = 0  # finished batches that were neither used nor dropped
    not_before: float = 0.0  # when it may be started
    losses: int = 0  # in a row
    errors: int = 0  # in a row, that its code raised
    delivers: bool = False  # has finished a batch since it was last lost
    given_up: bool = False


class RemoteCollection:
    """Keeps workers busy in a thread, and returns batches that are fresh enough.

    A worker starts its next batch, with the newest weights, as soon as it has finished one, unless
    more than `ahead` of its batches wait for the learner.

    Args:
        workers: see `Workers`. They are closed with the collection.
        settings: keys `collect.*`.
        run: see `Stamp.run`; batches of others are refused.
        read: returns the batch in a message's contents, or raises a NavrlError.
    """

    def __init__(
        self,
        workers: Workers,
        settings: CollectSettings,
        run: int,
        read: Callable[[memoryview], Rollout],
    ) -> None:
        self._workers, self._settings, self._run, self._read = workers, settings, run, read
        self.counts = Counts()
        self._places = [_Place() for _ in range(workers.count)]
        self._inbox: deque[Received] = deque()
        self._news: deque[str] = deque(maxlen=NEWS_KEPT)
        self._changed = threading.Condition()  # guards all of the above
        self._version, self._weights_bytes = -1, 0
        self._last_problem = ""
        self._failure: BaseException | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ the learner

    @property
    def delivering(self) -> int:
        """Workers that have finished a batch since they were last lost."""
        with self._changed:
            return sum(place.delivers for place in self._places)

    def publish(self, version: int, weights: bytes) -> None:
        """Have batches collected with new weights; a message that `seal` made."""
        self._workers.publish(weights)
        with self._changed:
            self._version, self._weights_bytes = version, len(weights)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="navrl-remote", daemon=True)
            self._thread.start()

    def take(self, count: int) -> list[Received]:
        """Return so many batches; at the deadline those that are there, at least one.

        Batches collected with weights more than `max_staleness` versions old are dropped and
        counted.

        Raises:
            CollectorError: none has arrived before the deadline, or no worker is left.
        """
        first = self.counts.used == 0
        patience = self._settings.first_deadline if first else self._settings.deadline
        end, taken = time.monotonic() + patience, list[Received]()
        with self._changed:
            while True:
                self._fill(taken, count)
                left = end - time.monotonic()
                if len(taken) == count or left <= 0:
                    break
                self._check()
                self._changed.wait(left)
            self.counts.used += len(taken)
            self.counts.short += 0 < len(taken) < count
        if not taken:
            raise CollectorError(self._no_batch(patience, first))
        return taken

    def news(self) -> list[str]:
        """Return sentences about workers that came, went or were given up, once each."""
        with self._changed:
            told = [*self._news]
            self._news.clear()
        return told

    def close(self) -> None:
        """End the thread and the workers; a second call does nothing."""
        with self._changed:
            self._closing = True
        if self._thread is not None:
            self._thread.join()
        self._workers.close()

    def _fill(self, taken: list[Received], count: int) -> None:
        oldest = self._version - self._settings.max_staleness
        while self._inbox and len(taken) < count:
            one = self._inbox.popleft()
            self._places[one.stamp.worker].waiting -= 1
            if one.stamp.version < oldest:
                self.counts.stale += 1
            else:
                taken.append(one)

    def _check(self) -> None:
        if self._failure is not None:
            raise CollectorError(
                f"remote collection has failed: {self._failure}"
            ) from self._failure
        if all(place.given_up for place in self._places):
            raise CollectorError(
                f"every one of the {len(self._places)} workers raised {ERRORS_ALLOWED} errors in a "
                f"row; the last one: {self._last_problem}"
            )

    def _no_batch(self, patience: float, first: bool) -> str:
        key = "first_deadline" if first else "deadline"
        counted = f"{self.counts.lost} lost, {self.counts.stale} too old so far"
        problem = f"; the last problem: {self._last_problem}" if self._last_problem else ""
        return (
            f"no batch of {len(self._places)} workers arrived within {patience:g} s "
            f"(collect.{key}): {counted}{problem}. Look at the cluster with `ray status`; "
            "resume=auto continues from the last checkpoint"
        )

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            while not self._closing:
                self._start_idle()
                for event in self._workers.wait(POLL):
                    self._handle(event)
                self._restart_hung()
        except BaseException as error:  # reaches the learner at its next request
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _start_idle(self) -> None:
        now = time.monotonic()
        for worker, place in enumerate(self._places):
            with self._changed:
                idle = place.started is None and not place.given_up
                due = idle and place.waiting <= self._settings.ahead and now >= place.not_before
                if due:
                    place.started = now
                    self.counts.bytes_out += self._weights_bytes
            if due:
                self._workers.start(worker)

    def _handle(self, event: Event) -> None:
        place = self._places[event.worker]
        received = self._verified(event) if isinstance(event, Arrived) else None
        with self._changed:
            if isinstance(event, Finished):
                self._finished(event.worker, place)
            elif isinstance(event, Lost):
                self._lost(event, place)
            elif received is None:
                place.waiting -= 1
            else:
                self._inbox.append(received)
            self._changed.notify_all()

    def _finished(self, worker: int, place: _Place) -> None:
        if not place.delivers and place.losses:
            self._news.append(f"worker {worker} is back")
        place.started, place.delivers, place.losses, place.errors = None, True, 0, 0
        place.waiting += 1

    def _verified(self, event: Arrived) -> Received | None:
        """Return a batch; None, counted, if it is damaged or of another training."""
        with self._changed:
            self.counts.arrived += 1
            self.counts.bytes_in += len(event.message)
        try:
            stamp, contents = unseal(BATCH, event.message)
            if (stamp.run, stamp.worker) != (self._run, event.worker):
                raise ContainerError(
                    f"a batch of worker {stamp.worker} in the training {stamp.run:x}; expected "
                    f"worker {event.worker} in {self._run:x}"
                )
            return Received(stamp, self._read(contents))
        except NavrlError as error:
            with self._changed:
                self.counts.damaged += 1
                self._tell(f"a batch of worker {event.worker} was dropped: {error}")
        return None

    def _lost(self, event: Lost, place: _Place) -> None:
        self.counts.lost += 1
        if event.finished:
            place.waiting -= 1
            self._tell(f"a batch of worker {event.worker} was lost on its way: {event.reason}")
            return
        place.started, place.delivers = None, False
        place.losses += 1
        place.errors += event.raised
        # the process is started anew in any case; one that dies at once is tried less often
        place.not_before = time.monotonic() + min(2.0 ** (place.losses - 1) - 1, LONGEST_PAUSE)
        place.given_up = place.errors >= ERRORS_ALLOWED
        if event.raised:
            self._tell(f"worker {event.worker} raised an error: {event.reason}")
            self._restart(event.worker, given_up=place.given_up)
        else:
            self._tell(f"worker {event.worker} was lost: {event.reason}")

    def _restart(self, worker: int, *, given_up: bool) -> None:
        if given_up:
            self._news.append(f"worker {worker} is given up after {ERRORS_ALLOWED} errors in a row")
            return
        self.counts.restarted += 1
        self._workers.restart(worker)

    def _restart_hung(self) -> None:
        limit = self._settings.worker_timeout
        for worker, place in enumerate(self._places):
            # a worker that never delivered may wait for its machine to join
            if place.started is None or not place.delivers:
                continue
            if time.monotonic() - place.started > limit:
                with self._changed:
                    self._lost(Lost(worker, f"no batch within {limit:g} s"), place)
                    self._restart(worker, given_up=False)
                    self._changed.notify_all()

    def _tell(self, problem: str) -> None:
        self._last_problem = problem
        self._news.append(problem)
