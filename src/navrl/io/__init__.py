"""Checkpoints that never stop training and never lie. This part stands alone: torch, NumPy and three small codecs."""

from navrl.io.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint, verify_checkpoint
from navrl.io.directory import CheckpointDirectory, Entry, Retention
from navrl.io.index import read_index
from navrl.io.models import format_checkpoint_name, get_model_size, print_model_info
from navrl.io.random_state import get_random_state, set_random_state
from navrl.io.rollouts import RolloutStorage
from navrl.io.saver import AsyncCheckpointSaver

__all__ = [
    "AsyncCheckpointSaver",
    "CheckpointDirectory",
    "Entry",
    "Retention",
    "RolloutStorage",
    "find_checkpoint",
    "format_checkpoint_name",
    "get_model_size",
    "get_random_state",
    "load_checkpoint",
    "print_model_info",
    "read_index",
    "save_checkpoint",
    "set_random_state",
    "verify_checkpoint",
]
