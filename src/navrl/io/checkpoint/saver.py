"""AsyncCheckpointSaver: saves states in the background while training goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from navrl.arguments import as_path, whole_number
from navrl.errors import CheckpointError, ConfigError, add_note
from navrl.io.checkpoint.checkpoint_file import checkpoint_document
from navrl.io.checkpoint.differences import MAX_CHAIN, DeltaChain
from navrl.io.checkpoint.guarded import Guarded
from navrl.io.checkpoint.rounded_moments import narrow_moments
from navrl.io.container.background import BackgroundWriter, OnDone
from navrl.io.container.codecs import DEFAULT_CODEC, MAX_LEVEL, find_codec
from navrl.io.container.container_writer import Written, write_container
from navrl.io.container.job import Job
from navrl.io.container.snapshot import ArenaPool, Snapshot
from navrl.io.container.state_tree import pack_state
from navrl.io.container.thread_pool import TaskThreads

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AsyncCheckpointSaver"]


class AsyncCheckpointSaver:
    """Saves states in the background: every file equals the state at the moment of the call, or
    does not exist.

    Args:
        max_queue_size: saves that may be on their way at once; each holds one copy of the state in
            memory.
        verbose: print a line for every file that is on the disk, and for every save that failed.
        optimizers: their parameters and moments are copied while training goes on, and their next
            step waits for the copy. Nothing else may write to those tensors meanwhile; see
            `barrier`. What they do not own, and everything if no optimiser is registered, is copied
            in the call.
        codec: how compressed files are stored; see `navrl.io.container.codecs.CODECS`.
        level: compression level, 0 to 16; None is the codec's default.
        delta_chain: store a save as the difference to the one before, and a whole file after this
            many; 0 is never, otherwise 2 to 64. Worth it a few steps apart; takes one more copy of
            the state in memory. See `navrl.io.checkpoint.differences`.
        lossy_moments: round the moments of optimisers, and nothing else, to bfloat16; see
            `navrl.io.checkpoint.rounded_moments`.
        workers: encoder threads beside the one that writes; None is one for each core but one.
            On one or two cores they stay idle unless a caller waits for a file or another save is
            queued.
        on_error: `raise` a failed save at the next call and at the end, or `warn` and let training
            go on.
        on_done: called in the background thread after each save with its path, whether the file is
            on the disk, and the error if something failed; `flush` returns after it. With it, a
            failed save is neither raised nor warned about. It may call `get_stats`, `errors` and
            `queue_size`; waiting for a file from it (`flush`) raises CheckpointError. An exception
            that it raises is logged and changes nothing about the save.
        when_full: `wait` for a save to end when `max_queue_size` are on their way, or `raise`.

    >>> import torch, navrl
    >>> model = torch.nn.Linear(8, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with navrl.AsyncCheckpointSaver(optimizers=[optimizer]) as saver:
    ...     saver.save_async({"model": model.state_dict()}, "a.pt")
    >>> torch.equal(navrl.load_checkpoint("a.pt")["model"]["weight"], model.weight)
    True
    """

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
        delta_chain = whole_number("delta_chain", delta_chain, 0, MAX_CHAIN)
        if delta_chain == 1:
            raise ConfigError("delta_chain is 1; expected 0 for whole files only, or at least 2")
        if level is not None:
            level = whole_number("level", level, 0, MAX_LEVEL)
        if not isinstance(optimizers, Iterable):
            raise ConfigError(
                f"optimizers is a {type(optimizers).__name__}; expected a list, such as [optimizer]"
            )
        registered = [*optimizers]
        self.codec = find_codec(codec).name
        self._optimizers: list[torch.optim.Optimizer] = []
        self._hooks: list[Any] = []
        self._writer = BackgroundWriter(
            "AsyncCheckpointSaver",
            _CheckpointFiles(level, delta_chain, lossy_moments).write,
            max_queue_size=max_queue_size,
            workers=workers,
            on_error=on_error,
            on_done=on_done,
            when_full=when_full,
            verbose=verbose,
        )
        for optimizer in registered:
            self.register(optimizer)

    def register(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy what this optimiser owns in the background; its steps wait for the copy."""
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
        before: Callable[[], Mapping[str, Any]] | None = None,
        after: Callable[[Written], None] | None = None,
    ) -> None:
        """Take a snapshot of a state and return; a background thread writes it.

        Args:
            checkpoint: dicts, lists, tensors, arrays, numbers, strings, in any nesting.
            path: the file; its folder is created. An earlier file of that name stays until the new
                one is whole.
            compress: store with the saver's codec; otherwise uncompressed.
            metadata: JSON values that can be read without reading the file, such as metrics.
            sequence: orders the files of a folder; stored in the index. `CheckpointDirectory` sets
                it.
            before: called in the background thread before the file is written; what it returns
                goes into the document of the index, and what it raises counts as a failed save.
            after: called in the background thread when the file is on the disk; what it raises
                counts as a failed save.

        Raises:
            CheckpointError: an earlier save failed (this one was not started; call again), or the
                queue is full.
            UnsupportedStateError: the state holds an object that cannot be stored. If it is in the
                state of a registered optimiser, the next call may raise it instead.
        """
        self._writer.submit(
            as_path("path", path),
            partial(self._snapshot, checkpoint),
            checkpoint_document(metadata, sequence),
            self.codec if compress else "raw",
            after,
            before,
        )

    def _snapshot(self, state: Any, pool: ArenaPool) -> Snapshot:
        if not self._optimizers:
            return Snapshot(pack_state(state), pool)
        guarded = Guarded(self._optimizers)
        return Snapshot(pack_state(state, guarded.dicts), pool, guarded.numbers)

    def barrier(self) -> None:
        """Return when no snapshot is being copied; call it before writing to a saved tensor by
        hand.

        Steps of registered optimisers call it themselves. Writes that need it: `load_state_dict`
        into the model, clamping or averaging parameters in place outside of `optimizer.step()`, and
        changing what is in `optimizer.state[parameter]` by hand, such as resetting moments.
        """
        self._writer.barrier()

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything saved so far is on the disk.

        Raises:
            CheckpointError: a save failed, or some are still on their way after `timeout` seconds.
        """
        self._writer.flush(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Write everything that is pending, stop the threads, and raise what failed.

        A second call does nothing, nor does a call in a forked process: what is pending is written
        by its parent.

        Raises:
            CheckpointError: a save failed, or some are still on their way after `timeout` seconds;
                call again to wait.
        """
        try:
            self._writer.shutdown(timeout)
        finally:
            if self._writer.closed:
                for hook in self._hooks:
                    hook.remove()

    close = shutdown

    @property
    def errors(self) -> tuple[CheckpointError, ...]:
        """The failed saves that no call has raised yet."""
        return self._writer.errors

    @property
    def queue_size(self) -> int:
        """How many saves are on their way to the disk."""
        return self._writer.queue_size

    def get_stats(self) -> dict[str, float]:
        """Return what was saved so far, what is pending, and the stall of the training thread.

        `total_saved` and `failed` count saves, `queue_size` those pending of at most
        `max_queue_size`. `raw_bytes` and `stored_bytes` are sums; `compression_ratio` is raw over
        stored. `stall_ms_p50`, `_p99` and `_max` are times that `save_async` and the step after it
        took, `write_seconds` is the time spent writing files.
        """
        return self._writer.get_stats()

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
            add_note(error, f"and a checkpoint was not saved: {failed}")


class _CheckpointFiles:
    """Writes the files of a saver: whole, as differences, or with rounded moments."""

    def __init__(self, level: int | None, delta_chain: int, lossy_moments: bool) -> None:
        self._level = level
        self._lossy_moments = lossy_moments
        self._delta = DeltaChain(delta_chain) if delta_chain else None

    def write(self, job: Job, threads: TaskThreads) -> Written:
        """Write the file of a job; when this returns it is on the disk under its name."""
        sources, packed = job.snapshot.sources(), job.snapshot.packed
        job.document["state"] = packed.tree
        if job.before is not None:
            job.document.update(job.before())
        if self._lossy_moments:
            sources = narrow_moments(sources, packed)
        write = partial(
            write_container,
            job.path,
            document=job.document,
            codec=job.codec,
            level=self._level,
            threads=threads,
        )
        if self._delta is None:
            return write(sources)
        return self._delta.write(job.path, job.snapshot, sources, job.document, write)
