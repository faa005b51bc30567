"""What training keeps of a batch of experience: every array by its name, so that a flight can be
looked at later.
"""

from __future__ import annotations

import warnings
from typing import Any

from navrl.errors import NavrlError
from navrl.io.rollouts.storage import RolloutStorage
from navrl.rl.collect import Rollout
from navrl.rl.transitions import Transitions
from navrl.train.trainers import Trainer

__all__ = ["keep_rollout", "rollout_data"]


def keep_rollout(
    storage: RolloutStorage, trainer: Trainer, batch: Rollout | Transitions, iteration: int
) -> None:
    """Store a batch in the background, under the number of the iteration that it belongs to; a
    failure only warns.
    """
    metadata = {
        "frames": iteration * trainer.frames_per_iteration,
        "seed": trainer.config.seed,
        **trainer.task.rollout_metadata(),
    }
    try:
        storage.save(rollout_data(batch, trainer.env.observation), iteration, metadata=metadata)
    except (NavrlError, OSError) as error:
        warnings.warn(f"this rollout is not kept: {error}", RuntimeWarning, stacklevel=2)


def rollout_data(batch: Rollout | Transitions, layout: Any) -> dict[str, Any]:
    """Return a batch by names: what was seen, done and earned, (T, N, ...), and what was seen last,
    (N, ...).
    """
    if isinstance(batch, Transitions):
        return {
            "observation": layout.split(batch.rows),
            "action": batch.action,
            "reward": batch.reward,
            "ended": batch.done,
            "terminated": batch.terminated,
            "last_observation": {
                name: rows[-1] for name, rows in layout.split(batch.next_rows).items()
            },
            "episodes": batch.episodes,
        }
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
