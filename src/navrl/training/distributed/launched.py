"""The place of this process among those that torchrun or `processes=N` started."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    rendezvous,
)

from navrl.errors import ConfigError
from navrl.training.distributed.roll_call import agree_on_name
from navrl.training.distributed.team import TIMEOUT, Team, TeamError, connected

__all__ = ["STORE", "Place", "join", "leave_as_asked", "place_of_this_process"]

STORE = "NAVRL_TEAM_STORE"  # a file through which the ranks of `processes=N` find each other
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NOTICE = 10.0  # s in which torchrun's agent stops a rank if it means to
_LOOK = 0.05  # s between two looks for its signal
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Place:
    """The place of a process among those that train together."""

    rank: int
    size: int
    local_rank: int
    machines: int
    restarts: int  # of the processes on this machine
    store: str  # path of a file; empty: the store is at MASTER_ADDR

    @property
    def by_torchrun(self) -> bool:
        """Whether torchrun, or another launcher than `processes=N`, started the process."""
        return not self.store


def place_of_this_process() -> Place | None:
    """Return what the launcher says in the environment; None without a launcher.

    Raises:
        ConfigError: a variable is not a number.
    """
    if not all(os.environ.get(name) for name in _NEEDED):
        return None
    return Place(
        rank=_number("RANK"),
        size=_number("WORLD_SIZE"),
        local_rank=_number("LOCAL_RANK", "0"),
        machines=_number("GROUP_WORLD_SIZE", "2"),  # unknown: take it for several
        restarts=_number("TORCHELASTIC_RESTART_COUNT", "0"),
        store=os.environ.get(STORE, ""),
    )


def _number(name: str, default: str = "") -> int:
    text = os.environ.get(name, default)
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}; expected a number, as torchrun sets it")
    return int(text)


@contextmanager
def join(place: Place) -> Iterator[Team]:
    """Yield the team once all its processes are connected; one of a single process needs no group.

    The process dies with its launcher. Ranks other than 0 ignore Ctrl+C and SIGTERM: rank 0 saves,
    then tells them to stop; see `leave_as_asked`.
    """
    _die_with_parent()
    if torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    if place.size == 1:
        yield Team()
        return
    with ExitStack() as stack:
        with _dies_of_sigterm():
            team = stack.enter_context(
                connected(place.rank, place.size, _store(place), one_machine=place.machines == 1)
            )
        if place.rank and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, _remember)
        yield team


_received: list[int] = []  # signals that a rank other than 0 was sent


def _remember(number: int, frame: FrameType | None) -> None:
    _received.append(number)


def leave_as_asked(place: Place) -> None:
    """Return if the launcher ends this rank, which rank 0 told to stop because of a signal.

    torchrun's agents act one by one. When a machine joins, each stops its own ranks and starts them
    again; a rank that returned before its agent noticed would pass for finished, and the training
    would be closed to the new machine. When the machine of rank 0 leaves, the other agents notice
    nothing: only the failure of a rank makes them go on without it.

    Raises:
        TeamError: this machine is to go on.
    """
    if not place.by_torchrun or place.machines == 1:
        return
    end = time.monotonic() + _NOTICE
    while not _received:
        if time.monotonic() > end:
            raise TeamError(
                "the machine of rank 0 was told to stop; the training is saved and continues with "
                "the machines that are left"
            )
        time.sleep(_LOOK)


def _store(place: Place) -> Any:
    """Return a store that the ranks of this start have to themselves."""
    if place.store:
        return PrefixStore(f"start {place.restarts}", FileStore(place.store, -1))
    try:
        store, *_ = next(rendezvous("env://", timeout=TIMEOUT))
        name = agree_on_name(store, place.rank, place.size, TIMEOUT)
    except (RuntimeError, TimeoutError) as error:  # of torch: no store, or ranks did not join
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TeamError(
            f"the other training processes were not found through {where}: "
            f"{str(error).splitlines()[0][:120]}; check that every machine can reach that address"
        ) from error
    return PrefixStore(name, store)


@contextmanager
def _dies_of_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process at once: no Python code runs while it waits for the others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its launcher is gone, so that it frees the run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    launcher = multiprocessing.parent_process()  # None: torchrun's ranks, started by a command
    if launcher is not None and os.getppid() != launcher.pid:  # it was gone before
        os._exit(1)
