"""Checkpoints that never stop training and never lie. This part stands alone: torch, NumPy and three small codecs.

The public names are imported when they are first used: the process that writes files needs none of them, nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "AsyncCheckpointSaver": "navrl.io.saver",
    "CheckpointDirectory": "navrl.io.directory",
    "Entry": "navrl.io.directory",
    "Retention": "navrl.io.directory",
    "RolloutStorage": "navrl.io.rollouts",
    "find_checkpoint": "navrl.io.checkpoint",
    "format_checkpoint_name": "navrl.io.models",
    "get_model_size": "navrl.io.models",
    "get_random_state": "navrl.io.random_state",
    "load_checkpoint": "navrl.io.checkpoint",
    "print_model_info": "navrl.io.models",
    "read_index": "navrl.io.index",
    "save_checkpoint": "navrl.io.checkpoint",
    "set_random_state": "navrl.io.random_state",
    "verify_checkpoint": "navrl.io.checkpoint",
}

if TYPE_CHECKING:
    from navrl.io.checkpoint import find_checkpoint as find_checkpoint
    from navrl.io.checkpoint import load_checkpoint as load_checkpoint
    from navrl.io.checkpoint import save_checkpoint as save_checkpoint
    from navrl.io.checkpoint import verify_checkpoint as verify_checkpoint
    from navrl.io.directory import CheckpointDirectory as CheckpointDirectory
    from navrl.io.directory import Entry as Entry
    from navrl.io.directory import Retention as Retention
    from navrl.io.index import read_index as read_index
    from navrl.io.models import format_checkpoint_name as format_checkpoint_name
    from navrl.io.models import get_model_size as get_model_size
    from navrl.io.models import print_model_info as print_model_info
    from navrl.io.random_state import get_random_state as get_random_state
    from navrl.io.random_state import set_random_state as set_random_state
    from navrl.io.rollouts import RolloutStorage as RolloutStorage
    from navrl.io.saver import AsyncCheckpointSaver as AsyncCheckpointSaver

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return sorted(__all__)
