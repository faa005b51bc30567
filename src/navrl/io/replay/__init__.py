"""A replay memory that keeps frames compressed and returns random batches at full speed.

Frames or whole episodes in, batches out; codecs are chosen by what the frames hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "CompressedRows": "navrl.io.replay.compressed_rows",
    "DictReplayBuffer": "navrl.io.replay.dict_replay_buffer",
    "FrameStore": "navrl.io.replay.frame_store",
    "PrefixSum": "navrl.io.replay.prefix_sum",
    "Rounded": "navrl.io.replay.rounded",
    "compress_image": "navrl.io.replay.images",
    "compress_image_seq": "navrl.io.replay.images",
    "decompress_image": "navrl.io.replay.images",
    "decompress_image_seq": "navrl.io.replay.images",
}

if TYPE_CHECKING:
    from navrl.io.replay.compressed_rows import CompressedRows as CompressedRows
    from navrl.io.replay.dict_replay_buffer import DictReplayBuffer as DictReplayBuffer
    from navrl.io.replay.frame_store import FrameStore as FrameStore
    from navrl.io.replay.images import compress_image as compress_image
    from navrl.io.replay.images import compress_image_seq as compress_image_seq
    from navrl.io.replay.images import decompress_image as decompress_image
    from navrl.io.replay.images import decompress_image_seq as decompress_image_seq
    from navrl.io.replay.prefix_sum import PrefixSum as PrefixSum
    from navrl.io.replay.rounded import Rounded as Rounded

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)
