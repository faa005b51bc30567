"""AsyncCheckpointSaver: a save holds the training thread up for a fraction of a millisecond, with
registered optimisers.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from navrl.arguments import as_path, whole_number
from navrl.errors import CheckpointError, ConfigError
from navrl.io.checkpoint.capture import capture_state
from navrl.io.checkpoint.checkpoint_file import checkpoint_document
from navrl.io.checkpoint.file_writer import NICENESS, FileWriter
from navrl.io.checkpoint.job import Job, absolute
from navrl.io.checkpoint.save_statistics import SaveStatistics
from navrl.io.checkpoint.snapshot import ArenaPool, Guarded, Snapshot
from navrl.io.container.codecs import DEFAULT_CODEC, MAX_LEVEL, find_codec
from navrl.io.container.container_writer import Written
from navrl.io.container.priority import lower_priority
from navrl.io.container.thread_pool import join_all, spare_cores, usable_cores

__all__ = ["AsyncCheckpointSaver"]

logger = logging.getLogger("navrl.io")


# Copies of less take a moment, which is over sooner if the writer does not ask for the interpreter
# at the same time.
_WORTH_OVERLAP = 8 << 20

OnDone = Callable[[Path, bool, CheckpointError | None], None]


class AsyncCheckpointSaver:
    """Saves states in the background: every file equals the state at the moment of the call, or
    does not exist.

    Args:
        max_queue_size: saves that may be on their way at once; each holds one copy of the state in
            memory.
        verbose: print a line for every file that is on the disk, and for every save that failed.
        optimizers: the only writers of what is saved, but for buffers. Their parameters and moments
            are copied while training goes on, and their next step waits for the copy. Without them
            the copy is made in the call.
        codec: how compressed files are stored; see `navrl.io.container.codecs.CODECS`.
        level: how hard the codec tries, 0 to 16; None is the codec's own choice.
        delta_chain: store a save as the difference to the one before, and a whole one after this
            many; 0 is never. 1 would be whole files only, at the price of the copy, and is refused.
            Worth it a few steps apart; takes one more copy of the state in memory. See
            `navrl.io.checkpoint.differences`.
        lossy_moments: round the moments of optimisers, and nothing else, to bfloat16; see
            `navrl.io.checkpoint.rounded_moments`.
        workers: threads that compress, beside the one that writes; None is one for each core but
            one. On one or two cores it rests unless there is a hurry (somebody waits for a file, or
            another save is queued): the writer does it all.
        on_error: `raise` a failed save at the next call and at the end, or `warn` and let training
            go on.
        on_done: called in the background thread after each save with its path, whether the file is
            on the disk, and the error if something failed; `flush` returns after it. With it, a
            failed save is neither raised nor warned about. It may call `get_stats`, `errors` and
            `queue_size`; waiting for a file from it (`flush`) raises CheckpointError. An exception
            that it raises is logged and changes nothing about the save.
        when_full: `wait` for a save to end when `max_queue_size` are on their way, or `raise`.
    """

    _file_writer = FileWriter

    def __init__(
        self,
        max_queue_size: int = 3,
        verbose: bool = False,
        *,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        codec: str = DEFAULT_CODEC,
        level: int | None = None,
        delta_chain: int = 0,
        lossy_moments: bool = False,
        workers: int | None = None,
        on_error: Literal["raise", "warn"] = "raise",
        on_done: OnDone | None = None,
        when_full: Literal["wait", "raise"] = "wait",
    ) -> None:
        if delta_chain < 0 or delta_chain == 1:
            raise ConfigError(
                f"delta_chain is {delta_chain}, expected 0 for whole files only, or at least 2"
            )
        if workers is not None and workers < 1:
            raise ConfigError(
                f"workers is {workers}, expected at least 1, or None for what suits the machine"
            )
        if level is not None:
            level = whole_number("level", level, 0, MAX_LEVEL)
        max_queue_size = whole_number("max_queue_size", max_queue_size, 1)
        if on_error not in ("raise", "warn"):
            raise ConfigError(f"on_error is {on_error!r}, expected 'raise' or 'warn'")
        if when_full not in ("wait", "raise"):
            raise ConfigError(f"when_full is {when_full!r}, expected 'wait' or 'raise'")
        self.codec = find_codec(codec).name
        self._waiting = 0  # threads that wait for a file
        self._few_cores = workers is None and usable_cores() <= 2
        self._pending: list[Job] = []  # that are not on the disk yet
        self._files = self._file_writer(
            level=level,
            delta_chain=delta_chain,
            lossy_moments=lossy_moments,
            threads=workers or spare_cores(),
            resting=self._leaves_cores_to_training,
        )
        self._max_queue_size = max_queue_size
        self._verbose = verbose
        self._told_full = False
        self._raises = on_error == "raise"
        self._on_done = on_done
        self._waits = when_full == "wait"
        self._owner = os.getpid()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._hooks: list[Any] = []
        self._pool = ArenaPool()
        self._changed = threading.Condition()  # guards what follows, and the pending jobs
        self._uncopied: list[Job] = []  # those of them that a step has to wait for
        self._errors: list[CheckpointError] = []
        self._dead = False
        self._closed = False
        self._statistics = SaveStatistics()
        self._to_copy: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
            for name, loop in (("navrl-copy", self._copy_all), ("navrl-write", self._write_all))
        ]
        for thread in self._threads:
            thread.start()
        for optimizer in optimizers:
            self.register(optimizer)
        atexit.register(self._finish_at_exit)

    def register(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the saver copy what this optimiser owns in the background; its steps wait for the
        copy.
        """
        self._optimizers.append(optimizer)
        self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.barrier()))

    def save_async(
        self,
        checkpoint: Any,
        path: str | os.PathLike[str],
        compress: bool = True,
        metadata: Mapping[str, Any] | None = None,
        *,
        sequence: int | None = None,
        after: Callable[[Written], None] | None = None,
    ) -> None:
        """Take a snapshot of a state and return; a background thread writes it.

        Args:
            checkpoint: dicts, lists, tensors, arrays, numbers, strings, in any nesting.
            path: the file; its folder is created. An earlier file of that name stays until the new
                one is whole.
            compress: store with the saver's codec; otherwise as the bytes are.
            metadata: JSON values that can be read without reading the file, such as metrics.
            sequence: orders the files of a folder; stored in the index. `CheckpointDirectory` sets
                it.
            after: called in the background thread when the file is on the disk; what it raises
                counts as a failed save.

        Raises:
            CheckpointError: an earlier save failed (this one was not started; call again), or the
                queue is full.
            UnsupportedStateError: the state holds an object that cannot be stored. Should it be in
                the state of a registered optimiser, the save fails as one does whose file cannot be
                written.
        """
        codec = self.codec if compress else "raw"
        path = as_path("path", path)
        self._take(checkpoint, path, lambda: checkpoint_document(metadata, sequence), codec, after)

    def _take(
        self,
        state: Any,
        path: str | os.PathLike[str],
        document: Callable[[], dict[str, Any]],
        codec: str,
        after: Callable[[Written], None] | None,
    ) -> None:
        """Take a snapshot and hand it to the background threads."""
        start = time.perf_counter()
        self._check_open()
        if self._errors:
            self._report_errors()
        if len(self._pending) >= self._max_queue_size:
            self._wait_for_room()
        guarded = Guarded(self._optimizers)
        snapshot = Snapshot(capture_state(state, guarded.dicts), self._pool, guarded)
        self._enqueue(Job(absolute(path), snapshot, document(), codec, after))
        self._statistics.stalled(time.perf_counter() - start)

    def barrier(self) -> None:
        """Return when no snapshot is being copied any more: call it before writing to a saved
        tensor by hand.

        Steps of registered optimisers do so by themselves. Writes that need it: `load_state_dict`
        into the model, clamping or averaging parameters in place, outside of `optimizer.step()`,
        and changing what is in `optimizer.state[parameter]` by hand, such as resetting moments.
        """
        if (
            not self._uncopied or self._is_forked()
        ):  # then the threads, and what they copy, are the parent's
            return
        start = time.perf_counter()
        for job in self._uncopied.copy():
            job.snapshot.copied.wait()
        self._statistics.waited(time.perf_counter() - start)

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything saved so far is on the disk.

        Raises:
            CheckpointError: a save failed, or some are still on their way after `timeout` seconds.
        """
        self._check_process()
        self._check_may_wait()
        with self._changed, self._waits_for_files():
            self._changed.wait_for(lambda: not self._pending, timeout)
            late = [str(job.path) for job in self._pending]
        if late:
            raise CheckpointError(
                f"{', '.join(late)}: not on the disk after {timeout} s; wait longer, or call again"
            )
        self._report_errors()

    def shutdown(self, timeout: float | None = None) -> None:
        """Write everything that is pending, stop the threads, and raise what failed. A second call
        does nothing.

        Nor does a call in a forked process: what is pending is its parent's to write.

        Raises:
            CheckpointError: a save failed, or some are still on their way after `timeout` seconds;
                call again to wait.
        """
        if self._closed or self._is_forked():
            return
        try:
            self.flush(timeout)
        finally:
            closed = self._close_if_done()
        if not closed:  # another thread has saved meanwhile
            self.shutdown(timeout)

    close = shutdown

    @property
    def errors(self) -> tuple[CheckpointError, ...]:
        """The failed saves that no call has raised yet."""
        self._check_process()
        with self._changed:
            return tuple(self._errors)

    @property
    def queue_size(self) -> int:
        """How many saves are on their way to the disk."""
        self._check_process()
        return len(self._pending)

    def get_stats(self) -> dict[str, float]:
        """Return what was saved so far, what is pending, and the stall of the training thread.

        `total_saved` and `failed` count saves, `queue_size` those pending of at most
        `max_queue_size`. `raw_bytes` and `stored_bytes` are sums; `compression_ratio` is raw over
        stored. `stall_ms_p50`, `_p99` and `_max` are times that `save_async` and the step after it
        took, `write_seconds` is the time spent writing files.
        """
        self._check_process()
        with self._changed:
            return {
                **self._statistics.summary(),
                "queue_size": len(self._pending),
                "max_queue_size": self._max_queue_size,
            }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.shutdown()
            return
        try:
            self.shutdown()
        except CheckpointError as failed:
            error.add_note(f"and a checkpoint was not saved: {failed}")

    # In the calling thread.

    def _is_forked(self) -> bool:
        return os.getpid() != self._owner

    def _check_process(self) -> None:
        """Refuse a forked process: it has this object, but neither its threads nor locks that
        anybody would let go.
        """
        if self._is_forked():
            raise CheckpointError(
                f"this AsyncCheckpointSaver belongs to process {self._owner}, and this is a "
                f"fork of it, {os.getpid()}, "
                "which has none of its threads; create a new one in this process"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise CheckpointError(
                "this AsyncCheckpointSaver is shut down; create a new one to save more"
            )
        if self._dead:
            self._report_errors()
            raise CheckpointError(
                "the background thread of this AsyncCheckpointSaver has died; create a new one"
            )

    def _check_may_wait(self) -> None:
        """Refuse a call of `on_done` that would wait for the very save that it is called for."""
        if threading.current_thread() in self._threads:
            raise CheckpointError(
                "on_done waits for a save, and that save waits for on_done; call flush, "
                "shutdown, or save_async "
                "with a full queue from another thread"
            )

    def _wait_for_room(self) -> None:
        """Wait until another save may be on its way, or raise; there may be room by now."""
        self._check_may_wait()
        with self._changed:
            if len(self._pending) >= self._max_queue_size and not self._waits:
                raise CheckpointError(
                    f"{len(self._pending)} saves are on their way and max_queue_size is "
                    f"{self._max_queue_size}: "
                    "this state was not saved; save less often, or use when_full='wait'"
                )
            self._tell_full()
            with self._waits_for_files():
                self._changed.wait_for(lambda: len(self._pending) < self._max_queue_size)
        self._check_open()

    def _tell_full(self) -> None:
        """Warn, once for this saver, that a call waits for the disk."""
        if not self._told_full:
            self._told_full = True
            warnings.warn(
                f"the save queue is full ({len(self._pending)} of {self._max_queue_size} saves "
                "pending), "
                "checkpoint may be delayed: training waits for the disk. Save less often, or "
                "raise max_queue_size",
                RuntimeWarning,
                stacklevel=5,
            )

    @contextlib.contextmanager
    def _waits_for_files(self) -> Iterator[None]:
        """Let the background use every core in the block, which is to be entered, and left, with
        the lock held.
        """
        try:
            self._waiting += 1
            self._changed.notify_all()
            yield
        finally:
            self._waiting -= 1

    def _enqueue(self, job: Job) -> None:
        """Hand a job to the background threads, unless they ended while the snapshot was taken."""
        with self._changed:
            self._check_open()
            try:
                self._pending.append(job)
                self._uncopied.append(job)
                self._to_copy.put(job)
            except BaseException:
                for jobs in (self._pending, self._uncopied):
                    if job in jobs:
                        jobs.remove(job)
                job.snapshot.abandon(CheckpointError("interrupted on its way to the background"))
                raise

    def _close_if_done(self) -> bool:
        """Stop the threads if nothing is pending; return whether the saver is closed."""
        with self._changed:
            if self._closed or self._pending:
                return self._closed
            self._closed = True
        atexit.unregister(self._finish_at_exit)
        self._stop()
        return True

    def _report_errors(self) -> None:
        with self._changed:
            errors, self._errors = self._errors, []
        if not errors:
            return
        for error in errors[1:]:
            errors[0].add_note(f"and: {error}")
        if self._raises:
            raise errors[0]
        for error in errors:
            warnings.warn(str(error), RuntimeWarning, stacklevel=3)

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._to_copy.put(None)
        self._to_write.put(None)  # should the thread that copies have died, which would pass it on
        try:
            join_all(self._threads)
        finally:
            self._files.close()

    def _finish_at_exit(self) -> None:
        if self._is_forked():
            return
        if self._pending:
            logger.warning(
                "an AsyncCheckpointSaver was not shut down; finishing %d saves", len(self._pending)
            )
        self.shutdown()

    # In the background threads.

    def _leaves_cores_to_training(self) -> bool:
        """Tell whether one thread is to code, after the copy: there are few cores, and there is no
        hurry.
        """
        return self._few_cores and not self._waiting and len(self._pending) <= 1

    def _may_begin(self, job: Job) -> bool:
        return job.snapshot.copied.is_set() or not self._leaves_cores_to_training()

    def _run(self, loop: Callable[[], None]) -> None:
        """Run a loop; should it die, of whatever, fail all that is pending and hold nobody up."""
        try:
            loop()
        except BaseException as error:
            with self._changed:
                self._dead = True
                pending = self._pending.copy()
                self._uncopied.clear()
            for job in pending:
                job.snapshot.abandon(error)
            for job in pending:
                self._settle(job, job.failed(error))

    def _copy_all(self) -> None:
        while (job := self._to_copy.get()) is not None:
            job.snapshot.prepare()
            overlaps = job.snapshot.size >= _WORTH_OVERLAP
            if overlaps:
                self._to_write.put(job)  # which can begin while the copy is still being made
            job.snapshot.finish_copy()
            with self._changed:
                if job in self._uncopied:
                    self._uncopied.remove(job)
                self._changed.notify_all()
            if not overlaps:
                self._to_write.put(job)
        self._to_write.put(None)

    def _write_all(self) -> None:
        lower_priority(NICENESS)
        while (job := self._to_write.get()) is not None:
            with self._changed:
                self._changed.wait_for(partial(self._may_begin, job))
            error = self._attempt(job)
            job.snapshot.release()
            self._settle(job, error)
            del job

    def _settle(self, job: Job, error: CheckpointError | None) -> None:
        """Count and report how a save ended, once; only then is it no longer pending."""
        with self._changed:
            if job.settled:  # by the other thread
                return
            job.settled = True
            self._statistics.failed += error is not None
            if error is not None and self._on_done is None:
                self._errors.append(error)
        try:
            self._report(job, error)
        finally:
            with self._changed:
                if job in self._pending:
                    self._pending.remove(job)
                self._changed.notify_all()

    def _report(self, job: Job, error: CheckpointError | None) -> None:
        """Tell `on_done` or the log how a save ended; without the lock, so that `on_done` may ask
        the saver.
        """
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

    def _attempt(self, job: Job) -> CheckpointError | None:
        """Write a file and do what is to follow; return what went wrong."""
        try:
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
        written = self._files.write(job)
        seconds = time.perf_counter() - start
        with self._changed:
            self._statistics.wrote(written, seconds)
        raw, stored = written.raw_bytes / 1e6, written.stored_bytes / 1e6
        logger.debug("%s: %.1f MB as %.1f MB in %.2f s", job.path, raw, stored, seconds)
        self._say(f"saved {job.path}: {raw:.1f} MB as {stored:.1f} MB in {seconds:.2f} s")
        return written

    def _say(self, line: str) -> None:
        """Print a line if the user asked for it; a closed terminal is no reason to fail a save."""
        if self._verbose:
            with contextlib.suppress(OSError, ValueError):
                print(f"[checkpoint] {line}", flush=True)
