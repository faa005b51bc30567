"""Two machines on loopback: two torchrun agents train together, lose a rank and a whole machine, and
end like a training that lost nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from training_runs import ONE_THREAD, TINY, checkpoints, learning, same

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")]

PATIENCE = 300.0  # s, on a machine that has more to do
ITERATIONS = 128  # long enough to lose something on the way
LONG = ("max_frame_num=32768", "eval_interval=0", "save_interval=4")
SETTINGS = [word for word in TINY if not word.startswith("processes=")]


class Machine:
    """A torchrun agent with one rank, and what it prints.

    The first one serves the rendezvous, which no agent outlives.
    """

    def __init__(self, port: int, folder: Path, output: Path, serves: bool) -> None:
        self.output = output
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", "job"]
        rendezvous += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
        rendezvous += ["--rdzv-conf", f"is_host={str(serves).lower()}"]
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"]
        words = [*SETTINGS, *LONG, f"run_folder={folder}"]
        environment = {
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # see docs/training.md
        }
        command = [sys.executable, "-m", "torch.distributed.run", *options, *rendezvous]
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [*command, "-m", "navrl", "train", *words],
                stdout=file,
                stderr=file,
                env=os.environ | ONE_THREAD | environment,
            )

    def rank(self) -> int:
        """Return the process of its rank; 0 if none runs."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        ranks = [int(child) for child in children.split()]
        return ranks[-1] if ranks else 0


@contextmanager
def machines(folder: Path) -> Iterator[Callable[[], Machine]]:
    """Yield a function that starts a machine; all are killed at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started: list[Machine] = []

    def start() -> Machine:
        output = folder.with_name(f"{folder.name}-{len(started)}.txt")
        started.append(Machine(port, folder, output, serves=not started))
        return started[-1]

    try:
        yield start
    finally:
        for machine in started:
            machine.process.kill()
            machine.process.wait()


def wait_for(happened: Callable[[], object], *watched: Machine) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "\n".join(one.output.read_text() for one in watched)
        time.sleep(0.05)


def saved(folder: Path) -> int:
    names = [path.stem for path in checkpoints(folder)] if folder.exists() else []
    return max((int(name.rpartition("_")[2]) for name in names), default=-1)


def test_two_machines_lose_a_rank_and_a_machine_and_end_like_two_processes_that_lost_none(
    server, tmp_path
):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    server.train(whole, "processes=2", *LONG)
    with machines(folder) as start:
        first, second = start(), start()
        wait_for(lambda: saved(folder) >= 8, first, second)
        os.kill(second.rank(), signal.SIGKILL)
        wait_for(lambda: saved(folder) >= 24, first, second)
        second.process.kill()
        third = start()
        for machine in (first, third):
            assert machine.process.wait(PATIENCE) == 0, machine.output.read_text()
    assert [record["iteration"] for record in learning(folder)] == [*range(1, ITERATIONS + 1)]
    assert same(*(final_state(run) for run in (folder, whole)))


def final_state(run: Path) -> dict[str, object]:
    state = load_checkpoint(checkpoints(run)[-1])
    state["config"].pop("run_folder")
    return state
