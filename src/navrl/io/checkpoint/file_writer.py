"""How the files of a saver are written: whole or as differences, by threads of the training or by a
process of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from navrl.io.checkpoint.differences import DeltaChain
from navrl.io.checkpoint.job import Job
from navrl.io.checkpoint.pace import Pace
from navrl.io.checkpoint.rounded_moments import narrow_moments
from navrl.io.checkpoint.writer_process import ProcessGoneError, WriterProcess, can_start
from navrl.io.container.atomic_files import make_folder, remove_stale_files
from navrl.io.container.container_file import ArraySource, Written, write_container
from navrl.io.container.thread_pool import TaskThreads

__all__ = ["NICENESS", "WORTH_PROCESS", "FileWriter"]

logger = logging.getLogger("navrl.io")

# Encoding gives way to training where both want the same core; copying does not, because training
# may wait for it. On a machine that is busy otherwise it still gets a tenth of a core: with 19, the
# most, files were seconds late, and exits too.
NICENESS = 10

WORTH_PROCESS = 16 << 20  # bytes of tensors; a choice, not the result of a measurement
_MOST_SENT = 1 << 20  # bytes of what does not lie in the memory that the process sees: NumPy arrays


class FileWriter:
    """Writes the files of a saver, one after the other.

    Args:
        level: how hard the codec tries; None is the codec's own choice.
        delta_chain: files of a chain of differences; 0 is whole files only.
        lossy_moments: round the moments of optimisers to bfloat16.
        threads: that encode, beside the one that writes.
        process: have large whole files written by a process of their own, where one can be started.
    """

    # whether the arrays lie in the copy as they are stored, and so can be left to another process
    shares = True

    def __init__(
        self,
        *,
        level: int | None,
        delta_chain: int,
        lossy_moments: bool,
        threads: int,
        process: bool,
    ) -> None:
        self._level = level
        self._lossy_moments = lossy_moments
        self._delta = DeltaChain(delta_chain) if delta_chain else None
        self._cleaned: set[Path] = set()
        self._may_start = (
            self.shares and process and self._delta is None and not lossy_moments and can_start()
        )
        self.pace = pace = Pace(shared=self._may_start)
        self._encoders = TaskThreads(
            threads, "navrl-encode", niceness=NICENESS, resting=lambda: pace.resting
        )
        self._process: WriterProcess | None = None

    def share_from(self) -> int | None:
        """Return the bytes from which on a state is written by a process, which has to see its
        copy; None is never.
        """
        return WORTH_PROCESS if self._may_start else None

    def write(self, job: Job) -> Written:
        """Write the file of a job; when this returns it is on the disk under its name."""
        folder = job.path.parent
        if folder not in self._cleaned:
            make_folder(folder)
            remove_stale_files(folder)
            self._cleaned.add(folder)
        sources = self.sources(job)
        written = self._write_outside(job, sources)
        if written is not None:
            return written
        write = partial(
            write_container,
            job.path,
            document=job.document,
            codec=job.codec,
            level=self._level,
            threads=self._encoders,
            check=job.snapshot.check,
        )
        if self._delta is None:
            return write(sources)
        job.snapshot.check()
        return self._delta.write(job.path, job.snapshot, sources, job.document, write)

    def sources(self, job: Job) -> Sequence[ArraySource]:
        """Return the arrays of the file, and complete its document."""
        sources = job.snapshot.sources()
        job.document["state"] = job.snapshot.packed.tree
        if not self._lossy_moments:
            return sources
        job.snapshot.check()
        return narrow_moments(sources, job.snapshot.packed)

    def _write_outside(self, job: Job, sources: Sequence[ArraySource]) -> Written | None:
        """Have the process write the file, if it is there and the file is for it; None: it did
        not.
        """
        shared = job.snapshot.shared
        if (
            shared is None or job.snapshot.size < WORTH_PROCESS or job.codec == "raw"
        ):  # what is raw needs but a checksum
            return None
        places = [shared.place_of(source.data) for source in sources]
        sent = sum(
            source.data.size for source, place in zip(sources, places, strict=True) if place is None
        )
        process = self._running_process() if sent <= _MOST_SENT else None
        if process is None:
            return None
        try:
            return process.write(
                job.path,
                shared,
                sources,
                places,
                job.document,
                codec=job.codec,
                level=self._level,
                check=job.snapshot.check,
            )
        except ProcessGoneError as error:
            self._give_process_up(f"is gone: {error}")
            remove_stale_files(job.path.parent)  # it may have left half a file
            return None

    def _running_process(self) -> WriterProcess | None:
        """Return the process, if it is up; one that is not started yet is, for the files to
        come.
        """
        try:
            if self._process is None and self._may_start:
                self._process = WriterProcess(self._encoders.count, NICENESS, self.pace)
            return self._process if self._process is not None and self._process.is_up() else None
        except Exception as error:  # whatever it is, threads can write the file
            self._give_process_up(f"cannot be started: {type(error).__name__}: {error}")
            return None

    def _give_process_up(self, what: str) -> None:
        self._may_start = False
        process = self._end_process()
        if process is not None:
            what = f"{what} ({process.end})"
        logger.warning(
            "the process that writes checkpoints %s; threads of the training write them from "
            "now on",
            what,
        )

    def close(self) -> None:
        """Stop the threads and the process, which must not be writing any more."""
        self._encoders.close()
        try:
            self._encoders.join()
        finally:
            self._end_process()

    def _end_process(self) -> WriterProcess | None:
        """End the process, if there is one, and return what is left of it."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
        return process
