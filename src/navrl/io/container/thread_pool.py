"""A thread pool that still accepts tasks while the interpreter exits."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from navrl.io.container.priority import lower_priority
from navrl.machine import usable_cores

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TaskThreads", "spare_cores"]


def spare_cores() -> int:
    """Return how many cores are left besides the calling thread's; at least 1."""
    return max(1, usable_cores() - 1)


class TaskThreads:
    """Threads that run tasks first in, first out.

    Unlike the executors of `concurrent.futures` they accept tasks while the interpreter exits,
    when a saver that was never closed writes what is pending.

    Args:
        count: how many threads.
        name: of the threads, followed by a number.
        niceness: added to the niceness of the threads.
        resting: returns True while the submitter should run tasks inline; tasks that are submitted
            anyway are run.
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
        """Run the function in a thread; the future holds its result or exception."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, arguments))
        return future

    def help(self) -> bool:
        """Run one waiting task in the calling thread; return False if there is none."""
        try:
            task = self._tasks.get_nowait()
        except queue.Empty:
            return False
        if task is None:  # ends one of the threads
            self._tasks.put(None)
            return False
        with contextlib.suppress(Exception):  # the future holds it; Ctrl+C is for the caller
            _run_task(*task)
        del task  # or the exception of a failed task would keep it alive
        return True

    def close(self) -> None:
        """Let the threads end after the tasks that were submitted."""
        for _ in self._threads:
            self._tasks.put(None)

    def join(self) -> None:
        """Wait for the threads to end, after `close`.

        The interpreter must not exit while one is still ending.
        """
        join_all(self._threads)

    def _work(self) -> None:
        lower_priority(self._niceness)
        while (task := self._tasks.get()) is not None:
            with contextlib.suppress(BaseException):  # the future holds it
                _run_task(*task)
            del task  # or a whole state would stay alive until the next task comes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self.join()


def _run_task(
    future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Run a task and set its future; what it raises is raised here too."""
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
        )  # breaks the cycle of a failed task, its exception and the state it refers to


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Wait for the threads to end, except for the calling one."""
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
