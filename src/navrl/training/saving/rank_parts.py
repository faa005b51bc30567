"""The parts of a checkpoint that ranks other than 0 write, and how rank 0 learns of them.

A rank posts to the team's store when its part is on the disk. Rank 0's writer thread waits for
these posts, then writes the main file. No training thread waits, and no state is sent.
"""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.config import Config
from navrl.errors import CheckpointError
from navrl.io.checkpoint.parts import describe_part, format_part_name, parts_document
from navrl.io.checkpoint.saver import AsyncCheckpointSaver
from navrl.io.container.container_writer import Written
from navrl.training.distributed.team import Team, TeamError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RANKS", "PartSaver", "PartsOfOthers"]

RANKS = "ranks"  # the list of the states of all ranks in a training state
PATIENCE = 600.0  # s that rank 0's writer thread waits for the parts of one save
_LOOK = 0.01  # s between two looks at the store


class PartSaver:
    """Writes the parts of one rank other than 0 in the background; leaving the block flushes them.

    Args:
        folder: of the checkpoints.
        config: the settings.
        team: this rank's.
    """

    def __init__(self, folder: Path, config: Config, team: Team) -> None:
        self._folder, self._config, self._team = folder, config, team
        self._saver = AsyncCheckpointSaver(
            config.async_checkpoint_queue_size,
            level=config.save_compression_level or None,
            on_done=self._done,
        )
        self._sequences: dict[str, int] = {}  # by path, of the parts on their way

    def save(self, step: int, sequence: int, state: Any) -> None:
        """Take a snapshot of this rank's state and return; a thread writes it, then posts it."""
        path = self._folder / format_part_name(step, sequence, self._team.rank)
        self._sequences[str(path)] = sequence
        self._saver.save_async(
            state,
            path,
            self._config.compress_checkpoint,
            {"step": step, "rank": self._team.rank},
            sequence=sequence,
            after=partial(self._written, sequence),
        )

    def _written(self, sequence: int, written: Written) -> None:
        self._post(sequence, describe_part(written.path))

    def _done(self, path: Path, written: bool, error: CheckpointError | None) -> None:
        sequence = self._sequences.pop(str(path))
        if not written:
            self._post(sequence, {"error": str(error)})

    def _post(self, sequence: int, said: dict[str, Any]) -> None:
        self._team.store.set(_key(sequence, self._team.rank), json.dumps(said))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._saver.__exit__(*exception)


class PartsOfOthers:
    """What rank 0 knows of the parts of the other ranks.

    Leaving the block because a process has died fails the saves whose parts are missing.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._abandoned = threading.Event()

    def wait(self, sequence: int) -> dict[str, Any]:
        """Return what the main file says about the parts, once all are on the disk.

        Raises:
            CheckpointError: a rank could not write its part, or has died.
        """
        keys = [_key(sequence, rank) for rank in range(1, self._team.size)]
        end = time.monotonic() + PATIENCE
        while not self._team.store.check(keys):
            if self._abandoned.is_set() or time.monotonic() > end:
                raise CheckpointError(
                    "the other training processes did not write their parts; see their errors"
                )
            time.sleep(_LOOK)
        parts = [json.loads(self._team.store.get(key)) for key in keys]
        for rank, part in enumerate(parts, 1):
            if "error" in part:
                raise CheckpointError(f"training process {rank}: {part['error']}")
        return parts_document(RANKS, parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None and issubclass(kind, TeamError):
            self._abandoned.set()


def _key(sequence: int, rank: int) -> str:
    return f"part/{sequence}/{rank}"
