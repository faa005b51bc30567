"""Processes that train together: each flies its share of the drones; gradients and statistics are summed over all."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from navrl.errors import NavrlError

PATIENCE = timedelta(minutes=30)  # that one process waits for another; the first compilation takes one minute
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


class TeamError(NavrlError, RuntimeError):
    """A process of the team has died; training cannot go on without it. Its last checkpoint is whole."""


class Team:
    """The processes that train together, as one of them sees it; a team of one needs nobody."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def leads(self) -> bool:
        """Whether this process prints, saves and decides."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        """Sum a tensor over the team, in place; every process gets the same bits."""
        if self.size > 1:
            with _explained():
                dist.all_reduce(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Return everybody's value at the leader, and an empty list elsewhere."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.leads else None
        with _explained():
            dist.gather_object(value, values)
        return values or []

    def share(self, value: Any) -> Any:
        """Return the leader's value everywhere."""
        if self.size == 1:
            return value
        box = [value]
        with _explained():
            dist.broadcast_object_list(box)
        return box[0]


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo says which connection, not what it means
        said = str(error).splitlines()[0][:120]
        raise TeamError(f"a training process is gone ({said}); resume=auto goes on from its last checkpoint") from error


@contextmanager
def assemble(size: int, target: Callable[[Team, Any], None], argument: Any) -> Iterator[Team]:
    """Give the leader of a new team while `target(team, argument)` runs in the other processes, each with one thread.

    The others end with the leader, however it ends. They leave Ctrl+C to it.
    """
    threads = torch.get_num_threads()
    if size == 1:
        yield Team()
        return
    store = TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    context = torch.multiprocessing.get_context("spawn")
    arguments = [(rank, size, store.port, os.getpid(), target, argument) for rank in range(1, size)]
    workers = [context.Process(target=_join, args=given, daemon=True) for given in arguments]
    for worker in workers:
        worker.start()
    try:
        torch.set_num_threads(1)
        _await(workers, store)
        dist.init_process_group("gloo", store=store, rank=0, world_size=size, timeout=PATIENCE)
        yield Team(0, size)
        for worker in workers:
            worker.join(30)
    finally:
        torch.set_num_threads(threads)
        if dist.is_initialized():
            dist.destroy_process_group()
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join(10)


def _join(
    rank: int, size: int, port: int, leader: int, target: Callable[[Team, Any], None], argument: Any
) -> None:  # fmt: skip
    """Be one of the others. Signals to the whole group are the leader's to answer."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != leader:
        os._exit(1)  # it died before this process could ask to die with it
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, size, is_master=False, timeout=PATIENCE)
    store.set(f"here {rank}", "yes")
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        target(Team(rank, size), argument)
    except NavrlError:
        os._exit(1)  # the leader is gone, or meets the same mistake and says so
    dist.destroy_process_group()


def _await(workers: list[Any], store: TCPStore) -> None:
    """Return when all workers are there; one that died on its way will never be, so do not wait for it."""
    missing = dict(enumerate(workers, 1))
    while missing:
        for rank, worker in list(missing.items()):
            if store.check([f"here {rank}"]):
                del missing[rank]
            elif worker.exitcode is not None:
                raise TeamError(
                    f"training process {rank} ended with {worker.exitcode} before it could join; its error is above"
                )
        time.sleep(0.02)
