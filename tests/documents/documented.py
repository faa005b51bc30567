"""The training command of the user's documents."""

from __future__ import annotations

COMMAND = (
    "headless=True",
    "env.num_envs=64",
    "env.num_obstacles=350",
    "env_dyn.num_obstacles=80",
    "wandb.mode=offline",
    "compress_checkpoint=True",
    "async_checkpoint_queue_size=3",
    "save_compression_level=9",
)
