"""Machines on loopback: torchrun agents with one rank each, started, lost and waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from training_runs import ONE_THREAD, TINY, checkpoints

PATIENCE = 300.0  # s, on a machine that has more to do
LOOK = 0.3  # s between two looks: each opens every checkpoint, and takes the core from the machines
ITERATIONS = 128  # long enough to lose something on the way
LONG = ("max_frame_num=32768", "eval_interval=0", "save_interval=4")
SETTINGS = [word for word in TINY if not word.startswith("processes=")]


class Machine:
    """A torchrun agent with one rank, and what it prints.

    The first one serves the rendezvous, which no agent outlives. The machine with the lowest
    address gets rank 0.
    """

    def __init__(
        self,
        port: int,
        folder: Path,
        output: Path,
        *,
        serves: bool,
        nodes: str,
        words: Sequence[str],
        address: str,
    ) -> None:
        self.output = output
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", "job"]
        rendezvous += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", address]
        # last_call_timeout: s that fewer machines than the most wait for another one
        rendezvous += ["--rdzv-conf", f"is_host={str(serves).lower()},last_call_timeout=1"]
        options = ["--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", "3"]
        typed = [*SETTINGS, *LONG, f"run_folder={folder}", *words]
        environment = {
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # see docs/training.md
        }
        command = [sys.executable, "-m", "torch.distributed.run", *options, *rendezvous]
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [*command, "-m", "navrl", "train", *typed],
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
def machines(folder: Path, nodes: str, *words: str) -> Iterator[Callable[..., Machine]]:
    """Yield a function that starts a machine, at an address of loopback; all are killed at the end.

    Args:
        folder: of the run.
        nodes: how many machines train together, as torchrun's `--nnodes` takes it.
        words: settings of the training.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started: list[Machine] = []

    def start(address: str = "127.0.0.1") -> Machine:
        output = folder.with_name(f"{folder.name}-{len(started)}.txt")
        how = {"serves": not started, "nodes": nodes, "words": words, "address": address}
        started.append(Machine(port, folder, output, **how))
        return started[-1]

    try:
        yield start
    finally:
        for machine in started:
            machine.process.kill()
            machine.process.wait()


def wait_for(happened: Callable[[], object], *watched: Machine) -> None:
    """Return when something has happened; fail with what the machines printed if it does not."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "\n".join(one.output.read_text() for one in watched)
        time.sleep(LOOK)


def saved(folder: Path) -> int:
    """Return the iteration of the newest checkpoint; -1 without one."""
    names = [path.stem for path in checkpoints(folder)] if folder.exists() else []
    return max((int(name.rpartition("_")[2]) for name in names), default=-1)
