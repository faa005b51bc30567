"""The large files of a run: checkpoints, rollouts, and the batch beside each checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.io.rollouts.storage import RolloutStorage
from navrl.training.run_folder import RunFolder, resume_command
from navrl.training.saving.batches import keep_batch
from navrl.training.saving.checkpoints import PATIENCE, AwaitParts, CheckpointSaving
from navrl.training.trainers import Trainer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RunFiles"]


class RunFiles:
    """Writes checkpoints and batches in the background; leaving the block flushes them.

    Raises:
        ConfigError: the folder cannot be made or read.
    """

    def __init__(self, folder: RunFolder, trainer: Trainer) -> None:
        self._folder, self._trainer, config = folder.path, trainer, trainer.config
        with ExitStack() as stack:
            self.checkpoints = stack.enter_context(
                CheckpointSaving(folder.checkpoints, config, trainer.optimizers)
            )
            self._rollouts = stack.enter_context(
                _storage(folder.path / "rollouts", config.rollout_keep_last_n or None)
            )
            # without a retention of its own: a batch is removed with its checkpoint
            self._last_batches = stack.enter_context(_storage(folder.checkpoints, None))
            self._stack = stack.pop_all()

    @property
    def rollout_due(self) -> bool:
        """Whether the batch of the iteration under way is kept in `RUN/rollouts`."""
        interval = self._trainer.config.rollout_save_interval
        return bool(interval) and (self._trainer.iteration + 1) % interval == 0

    def keep_rollout(self, batch: Any) -> None:
        """Keep the batch of the iteration under way in `RUN/rollouts`."""
        keep_batch(self._rollouts, self._trainer, batch, self._trainer.iteration + 1)

    def keep_last_batch(self, batch: Any) -> None:
        """Keep the batch of the last iteration beside its checkpoint."""
        keep_batch(self._last_batches, self._trainer, batch, self._trainer.iteration)

    def save(
        self,
        state: dict[str, Any],
        metrics: dict[str, float] | None,
        sequence: int,
        await_parts: AwaitParts | None,
    ) -> None:
        """Save a checkpoint of the last iteration; `checkpoints.status` tells later how it went."""
        self.checkpoints.save(self._trainer.iteration, state, metrics, sequence, await_parts)

    def flush(self) -> None:
        """Return when all writes so far have ended."""
        self.checkpoints.flush()
        self._last_batches.flush()
        self.checkpoints.prune()  # a batch may have been written after its checkpoint was removed

    def problems(self, gave_up: bool) -> list[str]:
        """Return sentences on what was not saved and what to do; none if everything was."""
        failure = self.checkpoints.status.failure
        sentences = []
        if gave_up:
            sentences.append(
                f"training stopped after iteration {self._trainer.iteration}: {PATIENCE} "
                "checkpoints in a row failed"
            )
        if failure:
            sentences.append(f"the last checkpoint was not written: {failure}")
        if sentences:
            alternative = " (on_save_failure=continue trains on without checkpoints)"
            sentences.append(self.checkpoints.newest())
            sentences.append(
                "free space or make the folder writable, then resume with "
                f"`{resume_command(self._folder)}`" + (alternative if gave_up else "")
            )
        return sentences

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)


def _storage(folder: Path, keep_last_n: int | None) -> RolloutStorage:
    return RolloutStorage(folder, keep_last_n=keep_last_n, time_first=True, on_error="warn")
