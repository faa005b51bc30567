"""Batches of experience on disk or as bytes; any environment, key or time window is read alone.

Written in the background like checkpoints; exported to Minari and Parquet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "RolloutStorage": "navrl.io.rollouts.storage",
    "compress_rollout": "navrl.io.rollouts.in_memory",
    "decompress_minibatch": "navrl.io.rollouts.in_memory",
    "decompress_rollout": "navrl.io.rollouts.in_memory",
    "export_minari": "navrl.io.rollouts.dataset_export",
    "export_parquet": "navrl.io.rollouts.dataset_export",
    "save_rollout_compressed": "navrl.io.rollouts.in_memory",
}

if TYPE_CHECKING:
    from navrl.io.rollouts.dataset_export import export_minari as export_minari
    from navrl.io.rollouts.dataset_export import export_parquet as export_parquet
    from navrl.io.rollouts.in_memory import compress_rollout as compress_rollout
    from navrl.io.rollouts.in_memory import decompress_minibatch as decompress_minibatch
    from navrl.io.rollouts.in_memory import decompress_rollout as decompress_rollout
    from navrl.io.rollouts.in_memory import save_rollout_compressed as save_rollout_compressed
    from navrl.io.rollouts.storage import RolloutStorage as RolloutStorage

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)
