"""Checkpoints: saved in the background while training goes on, verified when they are loaded.

A file appears whole or not at all; a folder of them keeps what its rules say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "AsyncCheckpointSaver": "navrl.io.checkpoint.saver",
    "CheckpointDirectory": "navrl.io.checkpoint.directory",
    "Entry": "navrl.io.checkpoint.listing",
    "Retention": "navrl.io.retention",
    "convert_checkpoint": "navrl.io.checkpoint.conversion",
    "find_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "format_checkpoint_name": "navrl.io.container.step_names",
    "get_model_size": "navrl.io.checkpoint.model_size",
    "get_random_state": "navrl.io.checkpoint.random_state",
    "load_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "print_model_info": "navrl.io.checkpoint.model_size",
    "save_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "set_random_state": "navrl.io.checkpoint.random_state",
    "verify_checkpoint": "navrl.io.checkpoint.checkpoint_file",
}

if TYPE_CHECKING:
    from navrl.io.checkpoint.checkpoint_file import find_checkpoint as find_checkpoint
    from navrl.io.checkpoint.checkpoint_file import load_checkpoint as load_checkpoint
    from navrl.io.checkpoint.checkpoint_file import save_checkpoint as save_checkpoint
    from navrl.io.checkpoint.checkpoint_file import verify_checkpoint as verify_checkpoint
    from navrl.io.checkpoint.conversion import convert_checkpoint as convert_checkpoint
    from navrl.io.checkpoint.directory import CheckpointDirectory as CheckpointDirectory
    from navrl.io.checkpoint.listing import Entry as Entry
    from navrl.io.checkpoint.model_size import get_model_size as get_model_size
    from navrl.io.checkpoint.model_size import print_model_info as print_model_info
    from navrl.io.checkpoint.random_state import get_random_state as get_random_state
    from navrl.io.checkpoint.random_state import set_random_state as set_random_state
    from navrl.io.checkpoint.saver import AsyncCheckpointSaver as AsyncCheckpointSaver
    from navrl.io.container.step_names import format_checkpoint_name as format_checkpoint_name
    from navrl.io.retention import Retention as Retention

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)
