"""A contestant in a process of its own, asked for one iteration at a time and asleep in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from _training_peers.task import Task
from navrl.errors import BenchmarkError

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 30.0  # s that a contestant has to end by itself


class ContestantProcess:
    """Starts `python -m _training_peers NAME TASK` when it is first measured.

    Args:
        name: a module of this folder.
        task: what to do.
        python: gives the interpreter, so that its environment is made no earlier than needed.
    """

    def __init__(self, name: str, task: Task, python: Callable[[], str]) -> None:
        self.name, self.task, self._python = name, task, python
        self._process: subprocess.Popen[str] | None = None
        # when it last answered: the clock, and the processor time it had used
        self._left: tuple[float, float] | None = None

    def measure(self) -> dict[str, float]:
        """Run one iteration; return frames a second, of the whole and of both parts, and what
        memory and cores it took.
        """
        process = self._process or self._start()
        used = _processor_seconds(process.pid)
        waited = (
            None
            if self._left is None
            else (used - self._left[1]) / (time.perf_counter() - self._left[0])
        )
        start, busy = time.perf_counter(), _busy_seconds()
        answer = self._ask(process)
        elapsed, everybody = time.perf_counter() - start, _busy_seconds() - busy
        self._left = time.perf_counter(), _processor_seconds(process.pid)
        cores = (self._left[1] - used) / elapsed
        result = {
            "frames_per_second": self.task.frames / answer["total"],
            "collection": self.task.frames / answer["collection"],
            "update": self.task.frames / answer["update"],
            "memory": _peak_memory(process.pid),
            "cores": cores,
            "other_cores": max(0.0, everybody / elapsed - cores),
        }
        return result if waited is None else {**result, "waiting_cores": waited}

    def close(self) -> None:
        """End the contestant and whatever it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        with suppress(ProcessLookupError):
            # its session: itself, and the processes that it has started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._complaints.close()

    def _start(self) -> subprocess.Popen[str]:
        folder, threads = Path(__file__).resolve().parents[1], str(self.task.threads)
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "NUMBA_NUM_THREADS": threads,
            "PYTHONWARNINGS": "ignore",
        }
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [self._python(), "-m", "_training_peers", self.name, self.task.as_json()],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
            cwd=tempfile.gettempdir(),
        )
        return self._process

    def _ask(self, process: subprocess.Popen[str]) -> dict[str, float]:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write("\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            process.wait()
            self._complaints.seek(0)
            words = self._complaints.read().strip().splitlines()[-12:]
            raise BenchmarkError(
                f"the contestant {self.name} ended with status {process.returncode}:\n"
                + "\n".join(words)
            )
        answer: dict[str, float] = json.loads(line)
        return answer


def _session(leader: int) -> Iterator[tuple[Path, list[str]]]:
    """Give the folders in /proc of all processes of a session, with the fields of their `stat`
    after the name.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                yield folder, fields


def _processor_seconds(leader: int) -> float:
    return sum(int(fields[11]) + int(fields[12]) for _, fields in _session(leader)) / TICKS


def _busy_seconds() -> float:
    """Return the processor time that the whole machine has spent on anything."""
    user, nice, system, *_ = Path("/proc/stat").read_text().split()[1:]
    return (int(user) + int(nice) + int(system)) / TICKS


def _peak_memory(leader: int) -> float:
    """Return the sum of the peaks of all processes, in bytes; what they share (PyTorch's code) is
    counted in each.
    """
    total = 0.0
    for folder, _ in _session(leader):
        with suppress(OSError):
            for line in (folder / "status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    total += 1024.0 * float(line.split()[1])
    return total
