"""Real `navrl train` processes for tests: started cheaply, watched, killed, and compared to the
bit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.metrics_log import MetricsLog

TINY = (
    "preset=smoke",
    "env.num_envs=32",
    "env.num_worlds=2",
    "env.num_obstacles=10",
    "env_dyn.num_obstacles=8",
    "algo.training_frame_num=8",
    "algo.num_minibatches=2",
    "max_frame_num=4096",
    "save_interval=2",
    "eval_interval=6",
    "flight.episodes=8",
    "flight.interim_episodes=8",
    "flight.worlds=2",
    "flight.recorded=0",
    "flight.animation=false",
    "env.max_episode_length=96",
    "keep_last_n=4",
    "processes=1",
)
ITERATIONS = 16
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
PATIENCE = float(os.environ.get("NAVRL_PATIENCE", "300"))  # s, on a machine that has more to do


class Server:
    """Starts `navrl` processes without the seconds that imports and compiled kernels take: see
    warm_server.py.
    """

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("warm_server.py")), *TINY]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, **pipes, text=True, env=os.environ | ONE_THREAD)
        assert json.loads(self.process.stdout.readline()) == {"ready": True}

    def ask(self, **request: object) -> dict:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def start(self, folder: Path, *overrides: str, **how: object) -> Run:
        how = {"output": str(folder.with_name(f"{folder.name}.txt"))} | how
        answer = self.ask(arguments=["train", *TINY, f"run_folder={folder}", *overrides], **how)
        return Run(self, answer["pid"], folder, Path(str(how["output"])))

    def train(self, folder: Path, *overrides: str, code: int = 0) -> str:
        return self.start(folder, *overrides).finish(code)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class Run:
    """A process that trains in a folder."""

    def __init__(self, server: Server, pid: int, folder: Path, output: Path) -> None:
        self.server, self.pid, self.folder, self.output = server, pid, folder, output
        self.code: int | None = None

    def ended(self) -> bool:
        if self.code is None:
            self.code = self.server.ask(poll=self.pid)["code"]
        return self.code is not None

    def send(self, number: int) -> None:
        assert not self.ended(), self.output.read_text()
        os.kill(self.pid, number)

    def has_taken(self, number: int) -> bool:
        """Return whether a signal that was sent has arrived: two that wait become one."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        waiting = int(status.partition("ShdPnd:")[2].split()[0], 16)
        return not waiting >> (number - 1) & 1

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        if not self.ended():
            self.send(signal.SIGKILL)
            self.wait()

    def wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while not self.ended():
            if time.monotonic() > end:
                self.kill()
                pytest.fail(f"it did not end within {PATIENCE} s:\n{self.output.read_text()}")
            time.sleep(0.01)

    def finish(self, code: int = 0) -> str:
        """Wait until it ends, as it should, and return what it printed."""
        self.wait()
        told = self.output.read_text()
        assert self.code == code, told
        return told

    def wait_for(self, iterations: int) -> None:
        """Return when so many iterations are in the metrics and a checkpoint is there, or the
        process has ended.
        """
        self.wait_until(
            lambda: logged(self.folder) >= iterations and bool(checkpoints(self.folder))
        )

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Return when something has happened, or the process has ended."""
        end = time.monotonic() + PATIENCE
        while not self.ended() and not happened():
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.005)

    def wait_for_words(self, words: str) -> None:
        """Return when the process has printed these words."""
        self.wait_until(lambda: words in self.output.read_text())
        assert words in self.output.read_text()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process in the block, so that it meets a change of its files in one piece."""
        self.send(signal.SIGSTOP)
        # the signal is sent at once, but a thread stops only when it leaves its system call
        self.wait_until(self._stands_still)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _stands_still(self) -> bool:
        """Return whether every thread of the process is stopped."""
        try:
            told = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:
            return False  # a thread has just ended
        return {each.rpartition(")")[2].split()[0] for each in told} == {"T"}


def logged(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return (
        sum(b'"train"' in line for line in path.read_bytes().splitlines()) if path.exists() else 0
    )


def steps(folder: Path) -> list[int]:
    """Return the iterations of the checkpoints of a run."""
    return [int(path.stem.rpartition("_")[2]) for path in checkpoints(folder)]


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first, without the parts of other ranks."""
    return sorted((folder / "checkpoints").glob("checkpoint_?????????.pt"))


def same(first: object, second: object) -> bool:
    """Return whether two states are equal to the bit; NaN equals itself."""
    if isinstance(first, torch.Tensor):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and torch.equal(
            *(tensor.reshape(-1).view(torch.uint8) for tensor in (first, second))
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(
            same(a, b) for a, b in zip(first, second, strict=True)
        )
    return type(first) is type(second) and (
        first == second or (first != first and second != second)
    )


def ending(folder: Path) -> dict:
    state = load_checkpoint(folder / "checkpoints" / f"checkpoint_{ITERATIONS:09d}.pt")
    state["config"].pop("run_folder")
    return state


def learning(folder: Path) -> list[dict]:
    return [
        {k: v for k, v in record.items() if k != "time"}
        for record in MetricsLog.read(folder / "metrics.jsonl", "train")
    ]


def evaluated(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "evaluations").iterdir())


def conditions(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())["conditions"]


def assert_ends_alike(folder: Path, whole: Path) -> None:
    assert same(ending(folder), ending(whole))
    assert learning(folder) == learning(whole)
    assert same(*(load_checkpoint(run / "model.pt") for run in (folder, whole)))
    assert conditions(folder) == conditions(whole)
