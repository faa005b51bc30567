"""Starts the ranks of `processes=N` on this machine with torch's elastic agent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from navrl.errors import NavrlError, add_note
from navrl.training.distributed.launched import STORE
from navrl.training.distributed.team import TeamError
from navrl.training.signals import STOPS, Stopped, StopRequest

__all__ = ["MAX_RESTARTS", "launch"]

MAX_RESTARTS = 3  # of all ranks, after one of them was killed
_FORWARDED = (*STOPS, signal.SIGHUP)
_LOOK = 0.1  # s between two looks for signals
_GRACE = 5.0  # s in which a rank that raised an exception, rather than being killed, says so
_NO_TCP_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # which would listen on every interface


@dataclass(frozen=True)
class _Order:
    """What every rank gets."""

    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    store: str
    over: Any  # multiprocessing.Event: set when ranks must not be started again
    processes: Any  # multiprocessing.Array: the process of each rank, 0 before it runs


@dataclass(frozen=True)
class _Result:
    """What a rank returned, or what it raised."""

    value: Any = None
    error: BaseException | None = None


def launch(
    size: int, target: Callable[..., Any], arguments: Sequence[Any], stop: StopRequest
) -> Any:
    """Run `target(*arguments)` in `size` new processes; return what it returned in rank 0.

    Signals are handled by rank 0; a signal to this process alone is passed on to it. If a process
    is killed, all are started again, `MAX_RESTARTS` times. An exception ends all of them and is
    raised here. The processes die with this one, however it ends.

    Raises:
        TeamError: processes were killed too often.
    """
    context = multiprocessing.get_context("spawn")
    over, processes = context.Event(), context.Array("i", size)
    with tempfile.TemporaryDirectory(prefix="navrl-team-") as folder:  # mode 0700
        store = str(Path(folder) / "ranks")
        order = _Order(target, tuple(arguments), store, over, processes)
        agent = _Agent(size, order, folder)
        with stop.deferring():
            agent.start()
            try:
                _wait(agent, order, stop)
            except BaseException:
                over.set()
                _signal(order, signal.SIGKILL, range(size))
                raise
            finally:
                agent.join()
    return _outcome(agent)


def _wait(agent: threading.Thread, order: _Order, stop: StopRequest) -> None:
    """Return when all ranks have ended; pass signals to rank 0 meanwhile."""
    passed: set[int] = set()
    while agent.is_alive():
        agent.join(_LOOK)
        for number in {stop.signal, signal.SIGHUP if stop.hung_up else None} - {None, *passed}:
            if number in STOPS:
                order.over.set()
            if number is not None and _signal(order, number, [0]):
                passed.add(number)


def _signal(order: _Order, number: int, ranks: Sequence[int]) -> bool:
    """Send a signal to ranks; return whether all of them run."""
    processes = [order.processes[rank] for rank in ranks]
    for process in filter(None, processes):
        with suppress(ProcessLookupError):
            os.kill(process, number)
    return all(processes)


class _Agent(threading.Thread):
    """Runs the elastic agent, beside the main thread, which handles signals."""

    def __init__(self, size: int, order: _Order, folder: str) -> None:
        super().__init__(name="navrl-agent", daemon=True)
        self.order = order
        self.results: dict[int, _Result] = {}
        self.error: BaseException | None = None
        self._config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=size,
            run_id="navrl",
            rdzv_backend="c10d",
            rdzv_endpoint=str(Path(folder) / "agent"),
            rdzv_configs={"store_type": "file"},
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            max_restarts=MAX_RESTARTS,
            local_addr="localhost",
        )

    def run(self) -> None:
        # Inherited by the ranks: signals wait until a rank can handle them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        try:
            with _quiet(), _environment(_NO_TCP_STORE, "1"):
                self.results = elastic_launch(self._config, _rank)(self.order)
        except BaseException as error:
            self.error = error


def _rank(order: _Order) -> _Result:
    """Run as one rank; leave the process at once if another has died."""
    rank = int(os.environ["RANK"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # ends it until it trains
    if order.over.is_set():  # a signal came before this process was there
        return _Result(error=Stopped())
    order.processes[rank] = os.getpid()
    os.environ[STORE] = order.store
    try:
        return _Result(order.target(*order.arguments))
    except TeamError as error:
        if not order.over.wait(_GRACE):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the agent starts all ranks again
        return _Result(error=error)
    except BaseException as error:
        order.over.set()
        return _Result(error=_sendable(error, rank))
    finally:  # from here on it only waits for the other ranks
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _sendable(error: BaseException, rank: int) -> BaseException:
    """Return an exception that can be sent to another process, with its traceback as a note."""
    try:
        sent = pickle.loads(pickle.dumps(error))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    if isinstance(error, Exception) and not isinstance(error, NavrlError):
        add_note(sent, f"in training process {rank}:\n{''.join(traceback.format_exception(error))}")
    return sent


def _outcome(agent: _Agent) -> Any:
    """Return what rank 0 returned, or raise what went wrong first."""
    if isinstance(agent.error, ChildFailedError):
        rank, failure = agent.error.get_first_failure()
        how = (
            "killed by " + failure.signal_name()
            if failure.exitcode < 0
            else (f"ended with {failure.exitcode}")
        )
        raise TeamError(
            f"training process {rank} was {how}, after {MAX_RESTARTS} restarts; resume=auto goes "
            "on from the last checkpoint"
        ) from agent.error
    if agent.error is not None:
        raise agent.error
    errors = [result.error for result in agent.results.values() if result.error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, TeamError)):
        raise error
    return agent.results[0].value


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging what navrl reports itself."""
    prefixes = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
    names = [name for name in logging.root.manager.loggerDict if name.startswith(prefixes)]
    loggers = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in loggers.items():
            logger.setLevel(level)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
