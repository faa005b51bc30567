"""Keeps the delivery workers of a run alive.

Run as `python -m navrl.tracking.delivery_processes RUN TRACKER... --parent PID`.

A process of its own, started once: to start a process stops all threads of the one that starts it,
for milliseconds on a good day, and training is not to wait for workers that die and are sent
again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from navrl.io.container.priority import give_way
from navrl.tracking.delivery_worker import NICENESS, end_services, has_ended, is_alive
from navrl.tracking.queue import DeliveryLog, RecordQueue, open_private

RESTART = (1.0, 60.0)  # s after the first death, and at most
DEATH = 1.0  # s that killed processes have to be gone
_OUTPUT_LIMIT = 1 << 20  # bytes of what workers have printed that are kept when another one starts


def start_workers(
    run: Path, trackers: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the process that sends a worker to each tracker, for as long as this process lives and
    the run goes on.

    What is secret goes into `environment`, on top of that of this process: all users see arguments.
    """
    words = (*trackers, "--parent", str(os.getpid()))
    return _start(
        RecordQueue(run),
        "workers",
        "navrl.tracking.delivery_processes",
        *words,
        environment=environment or {},
    )


def start_worker(
    queue: RecordQueue, tracker: str, *options: str, own_session: bool = True
) -> subprocess.Popen[bytes]:
    """Start a process that carries the records of a run to a tracker; what it prints goes to
    `TRACKER.output`.
    """
    return _start(
        queue, tracker, "navrl.tracking.delivery_worker", tracker, *options, own_session=own_session
    )


def end_workers(
    process: subprocess.Popen[bytes], until: float, queue: RecordQueue, trackers: Sequence[str]
) -> None:
    """Wait for a process and those that it has started, until a moment of `time.monotonic`; then
    kill them.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, until - time.monotonic()))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DEATH)
    until = time.monotonic() + DEATH
    for worker in [DeliveryLog(queue, tracker).worker() for tracker in trackers]:
        while (
            is_alive(worker) and time.monotonic() < until
        ):  # it was killed, but not waited for: it is not our child
            time.sleep(0.005)
        if not is_alive(worker):  # else it is none of ours: another process delivers
            end_services(worker)


def _start(
    queue: RecordQueue,
    name: str,
    module: str,
    *words: str,
    own_session: bool = True,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    queue.make_folder()
    output = queue.folder / f"{name}.output"
    with contextlib.suppress(FileNotFoundError):
        if output.stat().st_size > _OUTPUT_LIMIT:
            output.unlink()
    command = [sys.executable, "-m", module, str(queue.run.resolve()), *words]
    # A script that uses W&B itself has a service of W&B's client, which ends with the script:
    # workers have their own.
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    with open(output, "ab", opener=open_private) as file:
        # A session of its own: Ctrl+C is for the training, which ends it in good time.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=own_session,
            env=inherited | dict(environment or {}),
        )


class Workers:
    """One process for each tracker, so that one that hangs does not hold another up."""

    def __init__(self, queue: RecordQueue, trackers: Sequence[str]) -> None:
        self._queue = queue
        self._processes: dict[str, subprocess.Popen[bytes] | None] = dict.fromkeys(trackers)
        self._next = dict.fromkeys(self._processes, 0.0)  # when to start it again
        self._pause = dict.fromkeys(self._processes, RESTART[0])

    def tend(self, ended: bool) -> bool:
        """Start those that do not run, with some rest after a death, but none after the end; return
        whether any runs.
        """
        now = time.monotonic()
        for tracker, process in self._processes.items():
            if process is not None and process.poll() is not None:
                self._processes[tracker] = None
                self._next[tracker] = now + self._pause[tracker]
                self._pause[tracker] = min(2 * self._pause[tracker], RESTART[1])
            elif process is None and now >= self._next[tracker] and not ended:
                options = ("--parent", str(os.getpid()))
                self._processes[tracker] = start_worker(
                    self._queue, tracker, *options, own_session=False
                )
        return any(process is not None for process in self._processes.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a process, until the run has ended or its process is dead; the workers notice both by
    themselves.
    """
    parser = argparse.ArgumentParser(
        prog="python -m navrl.tracking.delivery_processes",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("trackers", nargs="+")
    parser.add_argument("--parent", type=int, required=True)
    parsed = parser.parse_args(arguments)
    give_way(os.getpid(), NICENESS)
    queue = RecordQueue(parsed.run)
    workers = Workers(queue, parsed.trackers)
    ended = False
    while workers.tend(ended) or not ended:
        time.sleep(0.1)
        if os.getppid() != parsed.parent:
            return 1
        ended = has_ended(queue)
    return 0


if __name__ == "__main__":
    sys.exit(main())
