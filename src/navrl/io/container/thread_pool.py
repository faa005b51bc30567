"""A few threads that carry out tasks in the order given; the result of a task is a future."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from navrl.io.container.priority import lower_priority

__all__ = ["TaskThreads", "spare_cores", "usable_cores"]


def usable_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spare_cores() -> int:
    """Return how many cores are left to other threads than the calling one; at least 1."""
    return max(1, usable_cores() - 1)


class TaskThreads:
    """Threads that carry out tasks, first come first served.

    Unlike the executors of `concurrent.futures` they still take tasks while the interpreter is
    leaving, when a saver that nobody closed writes what is pending.

    Args:
        count: how many threads.
        name: of the threads, with a number behind it.
        niceness: how far they give way to others.
        resting: tells whether who has tasks had better carry them out itself for now; tasks that
            are given are carried out.
    """

    def __init__(
        self,
        count: int,
        name: str,
        *,
        niceness: int = 0,
        resting: Callable[[], bool] = lambda: False,
    ) -> None:
        self.resting = resting
        self._tasks: queue.SimpleQueue[
            tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None
        ] = queue.SimpleQueue()
        self._niceness = niceness
        self.count = count
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a thread call the function; the future holds what it returns or raises."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, arguments))
        return future

    def help(self) -> bool:
        """Carry out one task that no thread has begun with, in the calling thread; return whether
        there was one.
        """
        try:
            task = self._tasks.get_nowait()
        except queue.Empty:
            return False
        if task is None:  # the end, for one of the threads
            self._tasks.put(None)
            return False
        with contextlib.suppress(Exception):  # the future tells; Ctrl+C is for the caller
            _carry_out(*task)
        del task  # which the error of a failed one would hold
        return True

    def close(self) -> None:
        """Let the threads end after the tasks that were given."""
        for _ in self._threads:
            self._tasks.put(None)

    def join(self) -> None:
        """Return when the threads have ended, after `close`: the interpreter must not leave while
        one is on its way out.
        """
        join_all(self._threads)

    def _work(self) -> None:
        lower_priority(self._niceness)
        while (task := self._tasks.get()) is not None:
            with contextlib.suppress(BaseException):  # the future tells
                _carry_out(*task)
            del task  # or a whole state would live until the next task comes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self.join()


def _carry_out(
    future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Do a task and have its future tell; what it raises is raised here too."""
    try:
        result = function(*arguments)
    except BaseException as error:
        future.set_exception(error)
        raise
    else:
        future.set_result(result)
    finally:
        del (
            future,
            function,
            arguments,
        )  # else a failed task, its error and a whole state would hold each other


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Return when the threads have ended, but for the one that calls."""
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
