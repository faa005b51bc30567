"""The processes of a training as one of them sees them: collectives, without pickle."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from navrl.errors import NavrlError
from navrl.training.distributed.messages import decode, encode

__all__ = ["TIMEOUT", "Team", "TeamError", "connected"]

# of a collective: ranks may wait for one that compiles kernels
TIMEOUT = timedelta(minutes=30)
_INTERFACE = "GLOO_SOCKET_IFNAME"
# bytes of a broadcast that are sent with its size: orders fit, and take one collective
_HEADER, _FIRST = 8, 1024


class TeamError(NavrlError, RuntimeError):
    """A process of the team has died, so training cannot continue. The last checkpoint is whole."""


class Team:
    """The processes that train together, as one of them; a team of one has no process group."""

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None) -> None:
        self.rank, self.size = rank, size
        self.store = store  # small messages between background threads; None in a team of one

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides, prints and registers."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all ranks, in place; every rank gets the same bits."""
        if self.size > 1:
            with _explained():
                dist.all_reduce(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, and an empty list elsewhere.

        Values are tensors, arrays, plain values, and dicts, lists and tuples of them. No pickle is
        sent or read.
        """
        if not self.leads:
            self._send(encode(value), 0)
            return []
        return [value, *(decode(self._receive(rank)) for rank in range(1, self.size))]

    def scatter(self, values: Sequence[Any]) -> Any:
        """Return the value that rank 0 has for this rank; see `gather` for what it may hold.

        Args:
            values: one for each rank; only those of rank 0 count.
        """
        if not self.leads:
            return decode(self._receive(0))
        for rank in range(1, self.size):
            self._send(encode(values[rank]), rank)
        return values[0]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank; see `gather` for what it may hold."""
        if self.size == 1:
            return value
        first = torch.zeros(_FIRST, dtype=torch.uint8)
        message = encode(value) if self.leads else first
        if self.leads:
            first[:_HEADER] = torch.tensor([len(message)]).view(torch.uint8)
            first[_HEADER : _HEADER + len(message)] = message[: _FIRST - _HEADER]
        with _explained():
            dist.broadcast(first, 0)
            size, held = int(first[:_HEADER].view(torch.int64)), _FIRST - _HEADER
            if not self.leads:
                message = torch.empty(size, dtype=torch.uint8)
                message[:held] = first[_HEADER : _HEADER + size]
            if size > held:
                dist.broadcast(message[held:], 0)
        return value if self.leads else decode(message)

    def _send(self, message: Tensor, rank: int) -> None:
        with _explained():
            dist.send(torch.tensor([len(message)]), rank)
            dist.send(message, rank)

    def _receive(self, rank: int) -> Tensor:
        size = torch.zeros(1, dtype=torch.int64)
        with _explained():
            dist.recv(size, rank)
            message = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(message, rank)
        return message


@contextmanager
def connected(rank: int, size: int, store: Any, *, one_machine: bool) -> Iterator[Team]:
    """Yield the team once every rank is connected to every other; each rank has one thread.

    Tensors on the CPU go over gloo, those on a GPU over NCCL.

    Args:
        rank: of this process.
        size: of the team.
        store: a `torch.distributed.Store` that only these ranks use.
        one_machine: listen on the loopback interface alone, whatever the host's name or
            GLOO_SOCKET_IFNAME say.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    threads, interface = torch.get_num_threads(), os.environ.get(_INTERFACE)
    try:
        torch.set_num_threads(1)
        if one_machine:
            os.environ[_INTERFACE] = _loopback()
        with _explained():
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT
            )
        yield Team(rank, size, store)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        torch.set_num_threads(threads)
        if interface is None:
            os.environ.pop(_INTERFACE, None)
        else:
            os.environ[_INTERFACE] = interface


def _loopback() -> str:
    """Return the name of the loopback interface: `lo` on Linux, `lo0` on macOS."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.rstrip("0123456789") == "lo"), "lo")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo names the connection, not the cause
        reason = str(error).splitlines()[0][:120]
        raise TeamError(
            f"a training process has died ({reason}); resume=auto continues from the last "
            "checkpoint"
        ) from error
