"""One trial: a training in a process of its own, followed through its metrics.

A trial whose sweep was killed is taken up again: a training that still runs is followed, one that
died with it is resumed from its newest checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from navrl.errors import SweepError
from navrl.metrics_log import MetricsLog
from navrl.registry.metric_names import metric_value
from navrl.training.run_folder import is_finished, read_record

__all__ = ["ShouldContinue", "TrialRun", "evaluations", "held"]

POLL = 0.2  # seconds between looks at the metrics of a training
RESUMES = 3  # attempts to resume a training that ends by itself before its time

# Called with the iteration and value of a new evaluation.
ShouldContinue = Callable[[int, float], bool]


class TrialRun:
    """The training of one trial in its folder."""

    def __init__(self, folder: Path, overrides: Sequence[str], metric: str) -> None:
        self.folder, self.overrides, self.metric = folder, list(overrides), metric
        self._told = -1  # iteration of the last evaluation that was reported

    @property
    def finished(self) -> bool:
        """Whether the training has come to its end."""
        path = self.folder / "run.json"
        return path.is_file() and is_finished(self.folder, read_record(path))

    def run(self, should_continue: ShouldContinue) -> float | None:
        """Train to the end and return the last evaluation; None if it was pruned.

        Raises:
            SweepError: the training fails again and again; the message has its last lines.
        """
        self._told = -1
        for _ in range(RESUMES + 1):
            while is_locked(self.folder):  # a training that outlived its sweep
                if not self._continues(should_continue):
                    stop(self._holder())
                    return None
                time.sleep(POLL)
            if not self.finished and not self._train(should_continue):
                return None
            if self.finished:
                self._continues(should_continue)
                return self._last()
        raise SweepError(f"{self.folder}: the training failed {RESUMES + 1} times: {self._log()}")

    def _train(self, should_continue: ShouldContinue) -> bool:
        """Start or resume the training; return False if it was pruned."""
        place = f"run_folder={self.folder}"
        resumed = (self.folder / "run.json").is_file()
        settings = ["resume=auto", place] if resumed else [*self.overrides, place]
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "navrl.cli", "train", *settings, "headless=true"]
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            while process.poll() is None:
                if not self._continues(should_continue):
                    stop(process.pid)
                    process.wait()
                    return False
                time.sleep(POLL)
        except BaseException:  # Ctrl+C: the training saves, the sweep goes on with it next time
            stop(process.pid)
            process.wait()
            raise
        return True

    @property
    def log_path(self) -> Path:
        """What the training printed."""
        return self.folder.with_suffix(".log")

    def _log(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "it printed nothing"

    def _holder(self) -> int:
        """Return the process that trains in the folder, 0 if it is not known."""
        words = (self.folder / "training.lock").read_text().split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    def _continues(self, should_continue: ShouldContinue) -> bool:
        """Report new evaluations; return whether the trial continues."""
        for iteration, value in evaluations(self.folder, self.metric):
            if iteration > self._told:
                self._told = iteration
                if not should_continue(iteration, value):
                    return False
        return True

    def _last(self) -> float:
        values = [value for _, value in evaluations(self.folder, self.metric)]
        if not values:
            raise SweepError(
                f"{self.folder}: no evaluation has the metric {self.metric!r}; "
                f"{(self.folder / 'metrics.jsonl')} has those that there are"
            )
        return values[-1]


def evaluations(folder: Path, metric: str) -> Iterator[tuple[int, float]]:
    """Yield iteration and value of each evaluation that a training has logged so far."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return
    for record in MetricsLog.read(path, "eval"):
        value = metric_value(record, metric)
        if value is not None:
            yield int(record["iteration"]), value


def stop(process: int) -> None:
    """Ask a training to save and end."""
    if process:
        try:
            os.kill(process, signal.SIGTERM)
        except ProcessLookupError:
            return


def is_locked(folder: Path) -> bool:
    """Return whether a living process trains in a folder."""
    path = folder / "training.lock"
    if not path.is_file():
        return False
    with held(path) as free:
        return not free


@contextmanager
def held(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of a file for the block; yields False if another process has it.

    The kernel releases it when a process dies, so a lock that is free has no living owner.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
