"""Which codec keeps the frames of a key: the one asked for, or the one that stores them smallest.

`raw` keeps frames as they are; `delta` is for numbers that change little from frame to frame;
`rows` for grids and images of bytes; `lz4` for anything that repeats. `Rounded(step)` is lossy and
only used when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from navrl.errors import ConfigError
from navrl.io.container.codecs import find_codec
from navrl.io.replay.delta_codec import DELTA_CODEC
from navrl.io.replay.frame_codec import RAW_FRAMES, ChunkLayout, FrameChunks, FrameCodec, Kind
from navrl.io.replay.lz4_codec import LZ4_CODEC
from navrl.io.replay.rounded import Rounded
from navrl.io.replay.rows_codec import ROWS_CODEC

__all__ = ["choose_codec", "codec_for_key", "frame_codec", "rounded_keys"]

TRIED = (DELTA_CODEC, ROWS_CODEC, LZ4_CODEC)  # the fastest to read first
WORTH = 0.87  # a codec has to store frames in less than this share of their bytes
SLOWER = 0.9  # and a later, slower one in less than this share of the best before it


def frame_codec(name: str, kind: Kind, parameter: int | None = None) -> FrameCodec:
    """Return a codec by name, set up for frames of a kind; empty frames are kept raw.

    Raises:
        ConfigError: there is no such codec, or it is not for such frames.
    """
    codec = find_codec(name, FrameCodec)
    return codec.fitted(kind, parameter) if kind.nbytes else RAW_FRAMES


def choose_codec(layout: ChunkLayout, chunks: FrameChunks) -> FrameCodec:
    """Return the codec that stores sample chunks in the fewest bytes; raw if none is worth it."""
    best: FrameCodec = RAW_FRAMES
    if layout.kind.nbytes < 16 or not len(chunks.frames):
        return best
    smallest = int(chunks.counts.sum()) * layout.kind.nbytes * WORTH
    for known in TRIED:
        for codec in known.candidates(layout.kind):
            target = np.empty(codec.bound(layout) * len(chunks.starts), np.uint8)
            stored = int(codec.encode(layout, chunks, target).sum())
            if stored < smallest:
                best, smallest = codec, stored * SLOWER
    return best


def codec_for_key(codecs: Mapping[str, str | Rounded], key: str) -> str | Rounded | None:
    """Return the codec that the user chose for a key; `next/X` takes that of X."""
    return codecs.get(key, codecs.get(key.removeprefix("next/")))


def rounded_keys(
    codecs: Mapping[str, str | Rounded], kinds: Mapping[str, Kind]
) -> dict[str, Rounded]:
    """Return the keys that the user wants rounded.

    Raises:
        ConfigError: a codec is for a key that the frames do not have, or cannot store its frames.
    """
    unknown = [key for key in codecs if key not in kinds]
    if unknown:
        raise ConfigError(
            f"codecs names {unknown}, which the frames do not have; they have {list(kinds)}"
        )
    found = {}
    for key, kind in kinds.items():
        codec = codec_for_key(codecs, key)
        if isinstance(codec, Rounded):
            if kind.element not in ("float16", "float32", "float64"):
                raise ConfigError(
                    f"{key}: {codec} is for float16, float32 and float64, found {kind.element}"
                )
            found[key] = codec
        elif codec is not None:
            frame_codec(codec, kind)
    return found
