"""NavRL: train a drone to fly to a goal among static and moving obstacles.

The public names are imported when they are first used, so `import navrl` is quick and
loads no part that is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.adapters.gymnasium_registry import register_when_loaded
from navrl.lazy import lazy_names

__version__ = "0.2.0"

_PUBLIC = {
    "AsyncCheckpointSaver": "navrl.io.checkpoint.saver",
    "DictReplayBuffer": "navrl.io.replay.dict_replay_buffer",
    "FrameStore": "navrl.io.replay.frame_store",
    "PrefixSum": "navrl.io.replay.prefix_sum",
    "Rounded": "navrl.io.replay.rounded",
    "compress_image": "navrl.io.replay.images",
    "compress_image_seq": "navrl.io.replay.images",
    "decompress_image": "navrl.io.replay.images",
    "decompress_image_seq": "navrl.io.replay.images",
    "CheckpointDirectory": "navrl.io.checkpoint.directory",
    "CompressedDataCollector": "navrl.adapters.compressed_collector",
    "CompressedLidarTransform": "navrl.adapters.observation_compression",
    "CompressedStorage": "navrl.adapters.torchrl_replay",
    "CompressedTensorDict": "navrl.adapters.compressed_tensordict",
    "PipelinedDataCollector": "navrl.adapters.pipelined_collector",
    "PrioritizedSampler": "navrl.adapters.prioritized",
    "PrioritizedSliceSampler": "navrl.adapters.prioritized",
    "compress_rollout": "navrl.io.rollouts.in_memory",
    "decompress_minibatch": "navrl.io.rollouts.in_memory",
    "decompress_rollout": "navrl.io.rollouts.in_memory",
    "save_rollout_compressed": "navrl.io.rollouts.in_memory",
    "format_checkpoint_name": "navrl.io.container.step_names",
    "get_model_size": "navrl.io.checkpoint.model_size",
    "load_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "print_model_info": "navrl.io.checkpoint.model_size",
    "save_checkpoint": "navrl.io.checkpoint.checkpoint_file",
    "RolloutStorage": "navrl.io.rollouts.storage",
    "NavigationEnv": "navrl.sim.env",
    "NavigationSettings": "navrl.sim.settings",
    "PerformanceMonitor": "navrl.monitor",
    "Evaluation": "navrl.api.evaluation_result",
    "Run": "navrl.api.training_run",
    "evaluate": "navrl.api.evaluate_policy",
    "load_policy": "navrl.evaluation",
    "train": "navrl.api.train_policy",
    "Registry": "navrl.registry.registry",
    "find_model": "navrl.registry.resolve",
    "create_navrl_model": "navrl.models",
    "download_model_from_wandb": "navrl.tracking.wandb_downloads",
    "save_and_upload_best_model": "navrl.tracking.wandb_uploads",
    "upload_model_to_wandb": "navrl.tracking.wandb_uploads",
}

if TYPE_CHECKING:
    from navrl.adapters.compressed_collector import (
        CompressedDataCollector as CompressedDataCollector,
    )
    from navrl.adapters.compressed_tensordict import CompressedTensorDict as CompressedTensorDict
    from navrl.adapters.observation_compression import (
        CompressedLidarTransform as CompressedLidarTransform,
    )
    from navrl.adapters.pipelined_collector import PipelinedDataCollector as PipelinedDataCollector
    from navrl.adapters.prioritized import PrioritizedSampler as PrioritizedSampler
    from navrl.adapters.prioritized import PrioritizedSliceSampler as PrioritizedSliceSampler
    from navrl.adapters.torchrl_replay import CompressedStorage as CompressedStorage
    from navrl.api.evaluate_policy import evaluate as evaluate
    from navrl.api.evaluation_result import Evaluation as Evaluation
    from navrl.api.train_policy import train as train
    from navrl.api.training_run import Run as Run
    from navrl.evaluation import load_policy as load_policy
    from navrl.io.checkpoint.checkpoint_file import load_checkpoint as load_checkpoint
    from navrl.io.checkpoint.checkpoint_file import save_checkpoint as save_checkpoint
    from navrl.io.checkpoint.directory import CheckpointDirectory as CheckpointDirectory
    from navrl.io.checkpoint.model_size import get_model_size as get_model_size
    from navrl.io.checkpoint.model_size import print_model_info as print_model_info
    from navrl.io.checkpoint.saver import AsyncCheckpointSaver as AsyncCheckpointSaver
    from navrl.io.container.step_names import format_checkpoint_name as format_checkpoint_name
    from navrl.io.replay.dict_replay_buffer import DictReplayBuffer as DictReplayBuffer
    from navrl.io.replay.frame_store import FrameStore as FrameStore
    from navrl.io.replay.images import compress_image as compress_image
    from navrl.io.replay.images import compress_image_seq as compress_image_seq
    from navrl.io.replay.images import decompress_image as decompress_image
    from navrl.io.replay.images import decompress_image_seq as decompress_image_seq
    from navrl.io.replay.prefix_sum import PrefixSum as PrefixSum
    from navrl.io.replay.rounded import Rounded as Rounded
    from navrl.io.rollouts.in_memory import compress_rollout as compress_rollout
    from navrl.io.rollouts.in_memory import decompress_minibatch as decompress_minibatch
    from navrl.io.rollouts.in_memory import decompress_rollout as decompress_rollout
    from navrl.io.rollouts.in_memory import save_rollout_compressed as save_rollout_compressed
    from navrl.io.rollouts.storage import RolloutStorage as RolloutStorage
    from navrl.models import create_navrl_model as create_navrl_model
    from navrl.monitor import PerformanceMonitor as PerformanceMonitor
    from navrl.registry.registry import Registry as Registry
    from navrl.registry.resolve import find_model as find_model
    from navrl.sim.env import NavigationEnv as NavigationEnv
    from navrl.sim.settings import NavigationSettings as NavigationSettings
    from navrl.tracking.wandb_downloads import (
        download_model_from_wandb as download_model_from_wandb,
    )
    from navrl.tracking.wandb_uploads import (
        save_and_upload_best_model as save_and_upload_best_model,
    )
    from navrl.tracking.wandb_uploads import upload_model_to_wandb as upload_model_to_wandb

__all__ = ["__version__", *_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)

# `gymnasium.make("navrl:navrl/Navigation-v0")` imports this module and nothing else
register_when_loaded()


def __dir__() -> list[str]:
    return sorted(__all__)
