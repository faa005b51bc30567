"""Checkpoints that never stop training and never lie. This part stands alone: torch, NumPy and
three small codecs.

The public names are imported when they are first used: the process that writes files needs none of
them, nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "AsyncCheckpointSaver": "navrl.io.checkpoint.saver",
    "CheckpointDirectory": "navrl.io.checkpoint.directory",
    "Entry": "navrl.io.checkpoint.listing",
    "Retention": "navrl.io.retention",
    "RolloutStorage": "navrl.io.rollouts.storage",
    "find_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "format_checkpoint_name": "navrl.io.container.step_names",
    "get_model_size": "navrl.io.checkpoint.model_size",
    "get_random_state": "navrl.io.checkpoint.random_state",
    "load_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "print_model_info": "navrl.io.checkpoint.model_size",
    "read_index": "navrl.io.container.index",
    "save_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "set_random_state": "navrl.io.checkpoint.random_state",
    "verify_checkpoint": "navrl.io.checkpoint.checkpoint_file",
}

if TYPE_CHECKING:
    from navrl.io.checkpoint.checkpoint_file import find_checkpoint as find_checkpoint
    from navrl.io.checkpoint.checkpoint_file import load_checkpoint as load_checkpoint
    from navrl.io.checkpoint.checkpoint_file import save_checkpoint as save_checkpoint
    from navrl.io.checkpoint.checkpoint_file import verify_checkpoint as verify_checkpoint
    from navrl.io.checkpoint.directory import CheckpointDirectory as CheckpointDirectory
    from navrl.io.checkpoint.listing import Entry as Entry
    from navrl.io.checkpoint.model_size import get_model_size as get_model_size
    from navrl.io.checkpoint.model_size import print_model_info as print_model_info
    from navrl.io.checkpoint.random_state import get_random_state as get_random_state
    from navrl.io.checkpoint.random_state import set_random_state as set_random_state
    from navrl.io.checkpoint.saver import AsyncCheckpointSaver as AsyncCheckpointSaver
    from navrl.io.container.index import read_index as read_index
    from navrl.io.container.step_names import format_checkpoint_name as format_checkpoint_name
    from navrl.io.retention import Retention as Retention
    from navrl.io.rollouts.storage import RolloutStorage as RolloutStorage

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return sorted(__all__)
