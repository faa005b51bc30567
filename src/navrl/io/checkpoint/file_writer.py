"""Writes the files of a saver: whole, as differences, or with rounded moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from navrl.io.checkpoint.differences import DeltaChain
from navrl.io.checkpoint.job import Job
from navrl.io.checkpoint.rounded_moments import narrow_moments
from navrl.io.container.atomic_files import make_folder, remove_stale_files
from navrl.io.container.container_writer import ArraySource, Written, write_container
from navrl.io.container.thread_pool import TaskThreads

__all__ = ["NICENESS", "FileWriter"]

# Encoding yields to training where both want the same core. Copying does not: training may be
# waiting for it. 19, the maximum, delays files by seconds on a busy machine.
NICENESS = 10


class FileWriter:
    """Writes the files of a saver, one after the other.

    Args:
        level: compression level; None is the codec's default.
        delta_chain: files in a chain of differences; 0 writes whole files only.
        lossy_moments: round the moments of optimisers to bfloat16.
        threads: encoder threads, beside the one that writes.
        resting: True while the writing thread should encode alone.
    """

    def __init__(
        self,
        *,
        level: int | None,
        delta_chain: int,
        lossy_moments: bool,
        threads: int,
        resting: Callable[[], bool],
    ) -> None:
        self._level = level
        self._lossy_moments = lossy_moments
        self._delta = DeltaChain(delta_chain) if delta_chain else None
        self._cleaned: set[Path] = set()
        self._encoders = TaskThreads(threads, "navrl-encode", niceness=NICENESS, resting=resting)

    def write(self, job: Job) -> Written:
        """Write the file of a job; when this returns it is on the disk under its name."""
        folder = job.path.parent
        if folder not in self._cleaned:
            make_folder(folder)
            remove_stale_files(folder)
            self._cleaned.add(folder)
        sources = self.sources(job)
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

    def close(self) -> None:
        """Stop the encoder threads; no file may be under way."""
        self._encoders.close()
        self._encoders.join()
        self._encoders.resting = bool  # always False; drops the reference to the saver
