"""Teams of processes for one measurement, and what their all-reduces cost."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed import FileStore

from _scaling_link import PROCESSES, LinkedStore, end_with_parent, forwarding
from navrl.errors import BenchmarkError
from navrl.training.distributed.team import Team, connected

Work = Callable[..., Any]  # (team, *arguments), at the top of a module


class TimedTeam(Team):
    """A team that counts its all-reduces, their bytes, and the time that they take."""

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None) -> None:
        super().__init__(rank, size, store)
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.reductions, self.bytes = 0, 0
        self.seconds, self.processor_seconds = 0.0, 0.0  # of the calling thread

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all ranks, in place."""
        start, processor = time.perf_counter(), time.thread_time()
        super().all_reduce(tensor)
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.thread_time() - processor
        self.reductions += 1
        self.bytes += tensor.nbytes


def in_team(size: int, work: Work, *arguments: Any, linked: bool = False) -> list[Any]:
    """Run `work(team, *arguments)` in `size` new processes; return what each rank returned.

    Args:
        size: of the team.
        work: a function that new processes can import.
        arguments: of the function.
        linked: let the ranks talk through a slow link; rank 0 gets one more argument, the pipe that
            sets the link.

    Raises:
        BenchmarkError: a rank has failed; the message has its traceback.
    """
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        pipes: Any = [None] * (size + 1)
        if linked:
            ranks, control = stack.enter_context(forwarding(size))
            pipes = [*ranks, control]
        results, processes = [], []
        for rank in range(size):
            ours, theirs = PROCESSES.Pipe()
            extra = (pipes[size],) if linked and rank == 0 else ()
            given = (*arguments, *extra)
            order = (rank, size, store, pipes[rank], work, given, theirs, {**os.environ})
            processes.append(PROCESSES.Process(target=_rank, args=order, daemon=True))
            results.append(ours)
            stack.callback(_end, processes[-1])
            processes[-1].start()
            theirs.close()
        return _collected(results)


def _collected(results: list[Any]) -> list[Any]:
    """Return the result of every rank, or raise the error of the first that fails."""
    found: dict[int, Any] = {}
    while len(found) < len(results):
        waiting = [one for rank, one in enumerate(results) if rank not in found]
        for pipe in wait(waiting):
            rank = results.index(pipe)
            try:
                failure, found[rank] = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                failure = "its process died"
            if failure:
                raise BenchmarkError(f"rank {rank} of {len(results)} failed: {failure}")
    return [found[rank] for rank in range(len(results))]


def _end(process: Any) -> None:
    process.join(10)
    process.kill()
    process.join()


def _rank(
    rank: int,
    size: int,
    path: Path,
    pipe: Any,
    work: Work,
    arguments: tuple[Any, ...],
    result: Any,
    environment: dict[str, str],
) -> None:
    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)  # of now: the fork server has that of its own start
    try:
        with ExitStack() as stack:
            team = TimedTeam()
            if size > 1:
                store: Any = FileStore(str(path), size)
                store = store if pipe is None else LinkedStore(store, pipe)
                joined = stack.enter_context(connected(rank, size, store, one_machine=True))
                team = TimedTeam(rank, size, joined.store)
            result.send(("", work(team, *arguments)))
    except BaseException:
        result.send((traceback.format_exc(), None))
