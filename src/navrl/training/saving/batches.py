"""Batches of experience in files: every array under its name, for later inspection."""

from __future__ import annotations

import warnings
from typing import Any

from navrl.errors import NavrlError
from navrl.io.rollouts.storage import RolloutStorage
from navrl.rl.collect import Rollout
from navrl.rl.transitions import Transitions
from navrl.training.trainers import Trainer

__all__ = ["batch_arrays", "keep_batch"]


def keep_batch(
    storage: RolloutStorage, trainer: Trainer, batch: Rollout | Transitions, iteration: int
) -> None:
    """Store the batch of an iteration in the background; a failure only warns."""
    metadata = {
        "frames": iteration * trainer.frames_per_iteration,
        "seed": trainer.config.seed,
        **trainer.task.rollout_metadata(),
    }
    try:
        storage.save(batch_arrays(batch, trainer.env.observation), iteration, metadata=metadata)
    except (NavrlError, OSError) as error:
        warnings.warn(
            f"the batch of iteration {iteration} was not kept: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def batch_arrays(batch: Rollout | Transitions, layout: Any) -> dict[str, Any]:
    """Return the arrays of a batch by name, (T, N, ...), and those of its last step, (N, ...)."""
    if isinstance(batch, Transitions):
        return _arrays_of_transitions(batch, layout)
    seen = layout.split(batch.rows)
    return {
        "observation": {name: rows[:-1] for name, rows in seen.items()},
        "action": batch.action,
        "reward": batch.reward,
        "ended": batch.done.bool(),
        "value": batch.value[:-1],
        "cut_value": batch.truncated_value,
        "log_density": batch.log_prob,
        "last_observation": {name: rows[-1] for name, rows in seen.items()},
        "last_value": batch.value[-1],
        "episodes": batch.episodes,
    }


def _arrays_of_transitions(batch: Transitions, layout: Any) -> dict[str, Any]:
    last = layout.split(batch.next_rows)
    return {
        "observation": layout.split(batch.rows),
        "action": batch.action,
        "reward": batch.reward,
        "ended": batch.done,
        "terminated": batch.terminated,
        "last_observation": {name: rows[-1] for name, rows in last.items()},
        "episodes": batch.episodes,
    }
