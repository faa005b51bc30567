"""Starts, restarts and stops delivery workers: one process for each tracker of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from navrl.tracking.client_processes import kill_client_processes
from navrl.tracking.line_file import open_private
from navrl.tracking.queue import RecordQueue

RESTART_PAUSE = (1.0, 60.0)  # s before the first restart of a worker, and at most
CHECK = 0.25  # s between two looks at the workers
DEATH = 1.0  # s that a killed process has to be gone
_OUTPUT_LIMIT = 1 << 20  # bytes of a worker's output above which the next one starts a new file


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pause: float = RESTART_PAUSE[0]
    restart_at: float | None = None  # by time.monotonic; None while it runs


class WorkerProcesses:
    """One delivery worker for each tracker, restarted when it dies, until `stop`.

    A worker ends itself when a call exceeds its deadline, and when this process dies. So a dead
    worker is all that there is to look for here.

    Args:
        run: the folder of the run; its queue has the record that begins the session.
        trackers: one worker each.
        environment: variables beside those of this process. Secrets belong here: other users can
            see the arguments of a process.

    Raises:
        OSError: a process cannot be started.
    """

    def __init__(
        self, run: Path, trackers: Iterable[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._queue, self._environment = RecordQueue(run), dict(environment or {})
        self._workers: dict[str, _Worker] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="navrl-delivery", daemon=True)
        try:
            for tracker in trackers:
                self._workers[tracker] = _Worker(self._start(tracker))
        except OSError:
            self._end(time.monotonic())
            raise
        self._thread.start()

    def stop(self, until: float) -> None:
        """Wait for the workers until a moment of `time.monotonic`, then kill them."""
        self._stopping.set()
        self._thread.join(DEATH)
        self._end(until)

    def _end(self, until: float) -> None:
        for worker in self._workers.values():
            stop_worker(worker.process, until)

    def _start(self, tracker: str) -> subprocess.Popen[bytes]:
        options = ("--parent", str(os.getpid()))
        return start_worker(self._queue, tracker, *options, environment=self._environment)

    def _watch(self) -> None:
        """Restart dead workers, with growing pauses."""
        while not self._stopping.wait(CHECK):
            for tracker, worker in self._workers.items():
                if worker.process.poll() is None:
                    continue
                now = time.monotonic()
                if worker.restart_at is None:
                    worker.restart_at = now + worker.pause
                    worker.pause = min(2 * worker.pause, RESTART_PAUSE[1])
                elif now >= worker.restart_at:
                    worker.restart_at = None
                    with contextlib.suppress(OSError):  # tried again after the next pause
                        worker.process = self._start(tracker)


def start_worker(
    queue: RecordQueue, tracker: str, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a worker in a session of its own; what it prints goes to `TRACKER.output`."""
    queue.make_folder()
    output = queue.folder / f"{tracker}.output"
    with contextlib.suppress(FileNotFoundError):
        if output.stat().st_size > _OUTPUT_LIMIT:
            output.unlink()
    module = "navrl.tracking.delivery_worker"
    command = [sys.executable, "-m", module, str(queue.run.resolve()), tracker, *options]
    # WANDB_SERVICE names the client process of a script's own W&B run, which ends with the script.
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    with open(output, "ab", opener=open_private) as file:
        # A session of its own: Ctrl+C is for the training, which stops its workers itself.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=inherited | dict(environment or {}),
        )


def stop_worker(process: subprocess.Popen[bytes], until: float) -> None:
    """Wait for a worker until a moment of `time.monotonic`, then kill it and what it started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, until - time.monotonic()))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DEATH)
    kill_client_processes(process.pid)
