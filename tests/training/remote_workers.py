"""Workers for tests of remote collection, without Ray: scripted ones, and real ones in this process."""

from __future__ import annotations

import queue
import threading

from navrl.training.remote.stamps import BATCH, Stamp, seal
from navrl.training.remote.worker import Worker, worker_settings
from navrl.training.remote.workers import Arrived, Finished, Lost, Workers

RUN = 7


class ScriptedWorkers(Workers):
    """Does what a test says, when it says it."""

    def __init__(self, count):
        self.count = count
        self.events, self.started, self.restarted = queue.Queue(), queue.Queue(), []
        self.closed = False
        self._waits, self._waiting = 0, threading.Condition()

    def publish(self, weights):
        self.weights = weights

    def start(self, worker):
        self.started.put((worker, self.weights))

    def wait(self, seconds):
        with self._waiting:
            self._waits += 1
            self._waiting.notify_all()
        try:
            return [self.events.get(timeout=seconds)]
        except queue.Empty:
            return []

    def restart(self, worker):
        self.restarted.append(worker)

    def close(self):
        self.closed = True

    def deliver(self, worker, version, contents=b"batch", *, run=RUN):
        """Let a worker that was started finish a batch, which arrives."""
        message = seal(BATCH, Stamp(run, version, worker), contents)
        self.events.put(Finished(worker))
        self.events.put(Arrived(worker, message))

    def settle(self):
        """Return when all events so far were handled, and whoever may start was started."""
        with self._waiting:
            self._waiting.wait_for(self.events.empty, 30)
            seen = self._waits
            assert self._waiting.wait_for(lambda: self._waits >= seen + 2, 30)

    def next_start(self):
        return self.started.get(timeout=30)


class WorkersHere(Workers):
    """Real workers that collect one after the other, in the thread that waits for them."""

    def __init__(self, config, run, stream, make=Worker):
        self.count = config.collect.workers
        settings = worker_settings(config)
        self.workers = [make(settings, worker, run, stream) for worker in range(self.count)]
        self.due = []

    def publish(self, weights):
        self.weights = weights

    def start(self, worker):
        self.due.append((worker, self.weights))

    def wait(self, seconds):
        if not self.due:
            return []
        worker, weights = self.due.pop(0)
        try:
            return [Finished(worker), Arrived(worker, self.workers[worker].collect(weights))]
        except OSError as error:
            return [Lost(worker, str(error), raised=True)]

    def restart(self, worker):
        return

    def close(self):
        return
