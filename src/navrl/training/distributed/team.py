"""The processes of a training: collectives over gloo, without pickle, on the loopback interface."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import FileStore, ProcessGroupGloo  # type: ignore[attr-defined]

from navrl.errors import NavrlError
from navrl.training.distributed.messages import decode, encode

# of a collective: ranks may wait for one that compiles kernels
TIMEOUT = timedelta(minutes=30)
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


class TeamError(NavrlError, RuntimeError):
    """A process of the team has died, so training cannot go on. The last checkpoint is whole."""


class Team:
    """The processes that train together, as one of them; a team of one has no process group."""

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank, self.size, self._group = rank, size, group

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides, prints and saves."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all ranks, in place; every rank gets the same bits."""
        if self.size > 1:
            with _explained():
                self._group.allreduce([tensor]).wait()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, and an empty list elsewhere.

        Values are tensors, arrays, plain values, and dicts, lists and tuples of them. No pickle is
        sent or read.
        """
        if not self.leads:
            self._send(encode(value))
            return []
        return [value, *(decode(self._receive(rank)) for rank in range(1, self.size))]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank; see `gather` for what it may hold."""
        if self.size == 1:
            return value
        message = encode(value) if self.leads else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(message)])
        with _explained():
            self._group.broadcast(size, 0).wait()
            message = message if self.leads else torch.empty(int(size), dtype=torch.uint8)
            self._group.broadcast(message, 0).wait()
        return value if self.leads else decode(message)

    def _send(self, message: Tensor) -> None:
        with _explained():
            self._group.send([torch.tensor([len(message)])], 0, 0).wait()
            self._group.send([message], 0, 0).wait()

    def _receive(self, rank: int) -> Tensor:
        size = torch.zeros(1, dtype=torch.int64)
        with _explained():
            self._group.recv([size], rank, 0).wait()
            message = torch.empty(int(size), dtype=torch.uint8)
            self._group.recv([message], rank, 0).wait()
        return message


Target = Callable[[Team, Any], None]  # what the other ranks run


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo names the connection, not the cause
        reason = str(error).splitlines()[0][:120]
        raise TeamError(
            f"a training process has died ({reason}); resume=auto goes on from the last checkpoint"
        ) from error


@contextmanager
def assemble(size: int, target: Target, argument: Any) -> Iterator[Team]:
    """Yield rank 0 of a new team while `target(team, argument)` runs in the other ranks.

    Each process has one thread. The other ranks ignore Ctrl+C and die with rank 0, however it
    ends. Processes find each other through a file that only this user can read, and listen only
    on the loopback interface.
    """
    threads = torch.get_num_threads()
    if size == 1:
        yield Team()
        return
    workers: list[Any] = []
    try:
        torch.set_num_threads(1)
        # mode 0700; needed until all processes are connected
        with tempfile.TemporaryDirectory(prefix="navrl-team-") as folder:
            store = Path(folder) / "store"
            workers += _start_workers(size, store, target, argument)
            _await(workers, FileStore(str(store), size))
            group = _connect(0, size, store)
        yield Team(0, size, group)
        for worker in workers:
            worker.join(30)
    finally:
        torch.set_num_threads(threads)
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join(10)


def _start_workers(size: int, store: Path, target: Target, argument: Any) -> list[Any]:
    context = torch.multiprocessing.get_context("spawn")
    arguments = [(rank, size, store, os.getpid(), target, argument) for rank in range(1, size)]
    workers = [context.Process(target=_join, args=words, daemon=True) for words in arguments]
    for worker in workers:
        worker.start()
    return workers


def _connect(rank: int, size: int, store: Path) -> Any:
    """Return the process group once every process is connected to every other.

    By default gloo would listen on the address of the host's name, or of GLOO_SOCKET_IFNAME.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = TIMEOUT
    with _explained():
        group: Any = ProcessGroupGloo(FileStore(str(store), size), rank, size, options)
        group.barrier().wait()
    return group


def _join(rank: int, size: int, store: Path, leader: int, target: Target, argument: Any) -> None:
    """Run as a rank other than 0, which alone handles signals to the process group."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != leader:
        os._exit(1)  # rank 0 died before prctl took effect
    torch.set_num_threads(1)
    FileStore(str(store), size).set(f"here {rank}", "yes")
    try:
        target(Team(rank, size, _connect(rank, size, store)), argument)
    except NavrlError:
        os._exit(1)  # rank 0 is gone, or raises the same error and reports it


def _await(workers: list[Any], store: FileStore) -> None:
    """Return when all workers are connected; raise if one died before."""
    missing = dict(enumerate(workers, 1))
    while missing:
        for rank, worker in list(missing.items()):
            if store.check([f"here {rank}"]):
                del missing[rank]
            elif worker.exitcode is not None:
                raise TeamError(
                    f"training process {rank} ended with {worker.exitcode} before it could "
                    "join; its error is above"
                )
        time.sleep(0.02)
