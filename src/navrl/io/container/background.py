"""Files written in the background: in order, a bounded number at once, and no failure is silent.

A call takes a snapshot and hands it to the writer thread. A snapshot that is not complete yet goes
through the copy thread first, so that training never waits for the disk.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from navrl.arguments import whole_number
from navrl.errors import CheckpointError, ConfigError
from navrl.io.container.atomic_files import make_folder, remove_stale_files
from navrl.io.container.container_writer import Written
from navrl.io.container.job import Failures, Job, Load, absolute
from navrl.io.container.priority import lower_priority
from navrl.io.container.save_statistics import SaveStatistics
from navrl.io.container.snapshot import ArenaPool, Snapshot
from navrl.io.container.thread_pool import TaskThreads, join_all, spare_cores
from navrl.machine import usable_cores

__all__ = ["BackgroundWriter", "OnDone"]

logger = logging.getLogger("navrl.io")

# Encoding yields to training where both want the same core. Copying does not: training may be
# waiting for it. 19, the maximum, delays files by seconds on a busy machine.
_NICENESS = 10

# Of what a snapshot knows at once: about a third of a state with Adam's moments. Copying and
# encoding less takes a moment, which is worth neither a second thread nor a lower priority.
_SMALL_BYTES = 2 << 20

OnDone = Callable[[Path, bool, CheckpointError | None], None]


def _check_options(workers: int | None, on_error: str, when_full: str) -> None:
    if workers is not None and workers < 1:
        raise ConfigError(
            f"workers is {workers}, expected at least 1, or None for what suits the machine"
        )
    if on_error not in ("raise", "warn"):
        raise ConfigError(f"on_error is {on_error!r}, expected 'raise' or 'warn'")
    if when_full not in ("wait", "raise"):
        raise ConfigError(f"when_full is {when_full!r}, expected 'wait' or 'raise'")


class BackgroundWriter:
    """Writes files in the background, in the order of `submit`.

    Args:
        owner: the class that the user knows; errors name it.
        write: writes the file of a job, with the help of some threads.
        max_queue_size: files that may be on their way at once.
        workers: encoder threads beside the writer; None is one for each core but one.
        on_error: `raise` a failed save at the next call and at the end, or `warn`.
        on_done: called in the background after each save; errors are then neither raised nor
            warned about.
        when_full: `wait` for room in the queue, or `raise`.
        verbose: print a line for each file.
    """

    def __init__(
        self,
        owner: str,
        write: Callable[[Job, TaskThreads], Written],
        *,
        max_queue_size: int,
        workers: int | None,
        on_error: Literal["raise", "warn"] = "raise",
        on_done: OnDone | None = None,
        when_full: Literal["wait", "raise"] = "wait",
        verbose: bool = False,
    ) -> None:
        _check_options(workers, on_error, when_full)
        self._max_queue_size = whole_number("max_queue_size", max_queue_size, 1)
        self._owner, self._write_file = owner, write
        self._waits = when_full == "wait"
        self._on_done, self._verbose = on_done, verbose
        self._process = os.getpid()
        self._prepared: set[Path] = set()  # folders
        self._told_full = False
        self.pool = ArenaPool()  # of memory for snapshots
        self._changed = threading.Condition()  # guards what follows
        self._load = load = Load(workers is None and usable_cores() <= 2)
        self._uncopied: list[Job] = []  # those of the pending that a step has to wait for
        self._at_copy = 0  # jobs that the copy thread has yet to hand to the writer
        self._failures = Failures(raises=on_error == "raise")
        self._dead = False
        self.closed = False
        self.statistics = SaveStatistics()
        self._encoders = TaskThreads(
            workers or spare_cores(),
            "navrl-encode",
            niceness=_NICENESS,
            resting=load.leaves_cores_to_training,
        )
        self._to_copy: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = self._started_threads()
        atexit.register(self._finish_at_exit)

    def _started_threads(self) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
            for name, loop in (("navrl-copy", self._copy_all), ("navrl-write", self._write_all))
        ]
        for thread in threads:
            thread.start()
        return threads

    # In the calling thread.

    def submit(
        self,
        path: str | os.PathLike[str],
        take_snapshot: Callable[[ArenaPool], Snapshot],
        document: dict[str, Any],
        codec: str,
        after: Callable[[Written], None] | None = None,
        before: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Take a snapshot, once there is room for it, and have it written.

        Raises:
            CheckpointError: an earlier save failed, the queue is full, or the writer is closed; no
                snapshot was taken.
        """
        start = time.perf_counter()
        self._check_open()
        self._failures.report()
        if len(self._load.pending) >= self._max_queue_size:
            self._wait_for_room()
        self._enqueue(Job(absolute(path), take_snapshot(self.pool), document, codec, after, before))
        self.statistics.stalled(time.perf_counter() - start)

    def _enqueue(self, job: Job) -> None:
        """Hand a job to the background threads, unless they ended while the snapshot was taken."""
        with self._changed:
            self._check_open()
            pending, uncopied = self._load.pending, self._uncopied
            # An idle writer copies a small state itself, which saves a hand-over. A job stays
            # behind one that is being copied, or the later file would be written first.
            if job.snapshot.complete:
                to_write = not self._at_copy
            else:
                to_write = not pending and job.snapshot.size < _SMALL_BYTES
                uncopied.append(job)
            try:
                pending.append(job)
                self._at_copy += not to_write
                (self._to_write if to_write else self._to_copy).put(job)
            except BaseException:
                for jobs in (pending, uncopied):
                    if job in jobs:
                        jobs.remove(job)
                job.failure = CheckpointError("interrupted on its way to the background")
                raise

    def barrier(self) -> None:
        """Return when every snapshot taken so far is complete."""
        if not self._uncopied or self.is_forked():
            return
        start = time.perf_counter()
        for job in self._uncopied.copy():
            self._finish(job)
        self.statistics.waited(time.perf_counter() - start)

    def _finish(self, job: Job) -> None:
        """Complete a snapshot, or wait for the thread that does."""
        if not job.claim():
            with self._changed:
                self._changed.wait_for(lambda: job not in self._uncopied)
            return
        try:
            if not job.snapshot.complete:
                job.snapshot.finish()
        except Exception as error:
            job.failure = error  # which the writer reports
        except BaseException:  # Ctrl+C, in the training thread
            job.failure = CheckpointError("interrupted while it was copied")
            raise
        finally:
            with self._changed:
                if job in self._uncopied:
                    self._uncopied.remove(job)
                self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything submitted so far is on the disk.

        Raises:
            CheckpointError: a save failed, or some are still on their way after `timeout` seconds.
        """
        self._check_process()
        self._check_may_wait()
        pending = self._load.pending
        with self._changed, self._waits_for_files():
            self._changed.wait_for(lambda: not pending, timeout)
            late = [str(job.path) for job in pending]
        if late:
            raise CheckpointError(
                f"{', '.join(late)}: not on the disk after {timeout} s; wait longer, or call again"
            )
        self._failures.report()

    def shutdown(self, timeout: float | None = None) -> None:
        """Write everything that is pending, stop the threads, and raise what failed.

        Does nothing in a forked process: what is pending is written by its parent.
        """
        if self.closed or self.is_forked():
            return
        try:
            self.flush(timeout)
        finally:
            closed = self._close_if_done()
        if not closed:  # another thread has saved meanwhile
            self.shutdown(timeout)

    @property
    def errors(self) -> tuple[CheckpointError, ...]:
        """The failed saves that no call has raised yet."""
        self._check_process()
        return tuple(self._failures.errors)

    @property
    def queue_size(self) -> int:
        """How many files are on their way to the disk."""
        self._check_process()
        return len(self._load.pending)

    def get_stats(self) -> dict[str, float]:
        """Return counts, bytes, times, and the length of the queue."""
        self._check_process()
        with self._changed:
            return {
                **self.statistics.summary(),
                "queue_size": len(self._load.pending),
                "max_queue_size": self._max_queue_size,
            }

    def is_forked(self) -> bool:
        """Return whether this is a fork of the process that the threads run in."""
        return os.getpid() != self._process

    def _check_process(self) -> None:
        if self.is_forked():
            raise CheckpointError(
                f"this {self._owner} belongs to process {self._process}; this process, "
                f"{os.getpid()}, is a fork of it and has none of its threads; create a new one in "
                "this process"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self.closed:
            raise CheckpointError(f"this {self._owner} is shut down; create a new one to save more")
        if self._dead:
            self._failures.report()
            raise CheckpointError(
                f"a background thread of this {self._owner} has died; create a new one"
            )

    def _check_may_wait(self) -> None:
        if threading.current_thread() in self._threads:
            raise CheckpointError(
                "on_done waits for a save, and that save waits for on_done; call flush, "
                "shutdown, or save_async with a full queue from another thread"
            )

    def _wait_for_room(self) -> None:
        self._check_may_wait()
        pending, limit = self._load.pending, self._max_queue_size
        with self._changed:
            if len(pending) >= limit and not self._waits:
                raise CheckpointError(
                    f"{len(pending)} saves are on their way and max_queue_size is {limit}: this "
                    "state was not saved; save less often, or use when_full='wait'"
                )
            self._tell_full()
            with self._waits_for_files():
                self._changed.wait_for(lambda: len(pending) < limit)
        self._check_open()

    def _tell_full(self) -> None:
        """Warn, once, that a call waits for the disk."""
        if not self._told_full:
            self._told_full = True
            warnings.warn(
                f"the save queue is full ({len(self._load.pending)} of {self._max_queue_size} "
                "saves pending), checkpoint may be delayed: training waits for the disk. Save "
                "less often, or raise max_queue_size",
                RuntimeWarning,
                stacklevel=5,
            )

    @contextlib.contextmanager
    def _waits_for_files(self) -> Iterator[None]:
        """Let the background use every core inside the block; enter and leave it with the lock."""
        try:
            self._load.waiting += 1
            yield
        finally:
            self._load.waiting -= 1

    def _close_if_done(self) -> bool:
        """Stop the threads if nothing is pending; return whether the writer is closed."""
        with self._changed:
            if self.closed or self._load.pending:
                return self.closed
            self.closed = True
        atexit.unregister(self._finish_at_exit)
        self._to_copy.put(None)
        self._to_write.put(None)  # the copy thread passes its own on, unless it has died
        try:
            join_all(self._threads)
        finally:
            self._encoders.close()
            self._encoders.join()
        return True

    def _finish_at_exit(self) -> None:
        if self.is_forked():
            return
        if self._load.pending:
            logger.warning(
                "%s was not shut down; finishing %d saves", self._owner, len(self._load.pending)
            )
        self.shutdown()

    # In the background threads.

    def _run(self, loop: Callable[[], None]) -> None:
        """Run a loop; on any exception fail the pending jobs and wake their waiters."""
        try:
            loop()
        except BaseException as error:
            with self._changed:
                self._dead = True
                pending = self._load.pending.copy()
                self._uncopied.clear()
                self._changed.notify_all()
            for job in pending:
                self._settle(job, job.failed(error))

    def _copy_all(self) -> None:
        while (job := self._to_copy.get()) is not None:
            self._finish(job)
            with self._changed:
                self._to_write.put(job)
                self._at_copy -= 1
            del job
        self._to_write.put(None)

    def _write_all(self) -> None:
        is_nice = False
        while (job := self._to_write.get()) is not None:
            if not job.snapshot.complete:
                self._finish(job)
            if not is_nice and job.snapshot.size >= _SMALL_BYTES:
                lower_priority(_NICENESS)  # for good: only a privileged thread can raise it again
                is_nice = True
            error = self._attempt(job)
            job.snapshot.release()
            self._settle(job, error)
            del job

    def _attempt(self, job: Job) -> CheckpointError | None:
        """Write a file and call what follows it; return what went wrong."""
        try:
            if job.failure is not None:
                raise job.failure
            written = self._write(job)
            job.written = True
        except Exception as error:
            return job.failed(error)
        try:
            if job.after is not None:
                job.after(written)
        except Exception as error:
            return job.failed(error, "saved, but what was to follow failed")
        return None

    def _write(self, job: Job) -> Written:
        start = time.perf_counter()
        folder = job.path.parent
        if folder not in self._prepared:
            make_folder(folder)
            remove_stale_files(folder)
            self._prepared.add(folder)
        written = self._write_file(job, self._encoders)
        seconds = time.perf_counter() - start
        with self._changed:
            self.statistics.wrote(written, seconds)
        raw, stored = written.raw_bytes / 1e6, written.stored_bytes / 1e6
        logger.debug("%s: %.1f MB as %.1f MB in %.2f s", job.path, raw, stored, seconds)
        self._say(f"saved {job.path}: {raw:.1f} MB as {stored:.1f} MB in {seconds:.2f} s")
        return written

    def _settle(self, job: Job, error: CheckpointError | None) -> None:
        """Count and report how a save ended, once; only then is it no longer pending."""
        with self._changed:
            if job.settled:  # by the other thread
                return
            job.settled = True
            self.statistics.failed += error is not None
            if error is not None and self._on_done is None:
                self._failures.errors.append(error)
        try:
            self._report(job, error)
        finally:
            with self._changed:
                if job in self._load.pending:
                    self._load.pending.remove(job)
                self._changed.notify_all()

    def _report(self, job: Job, error: CheckpointError | None) -> None:
        """Tell `on_done` or the log how a save ended, without the lock, so that it may ask."""
        if error is not None:
            self._say(f"NOT saved: {error}")
        if self._on_done is None:
            if error is not None:
                # as text: a log record must not keep what the error refers to alive
                logger.error("%s", str(error))
            return
        try:
            self._on_done(job.path, job.written, error)
        except Exception:
            outcome = "is saved" if job.written else "was not saved"
            logger.exception("on_done raised an exception; %s %s all the same", job.path, outcome)

    def _say(self, line: str) -> None:
        """Print a line if the user asked for it; a closed terminal is no reason to fail a save."""
        if self._verbose:
            with contextlib.suppress(OSError, ValueError):
                print(f"[checkpoint] {line}", flush=True)
