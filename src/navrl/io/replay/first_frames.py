"""What the first frames of a store tell: how many streams there are, and which keys are linked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from navrl.io.replay.frame_codec import Array
from navrl.io.replay.frame_input import length_of
from navrl.io.replay.links import linked_share

__all__ = ["LEAST_LINKED", "SAMPLE_FRAMES", "find_streams", "joined"]

LEAST_LINKED = 0.5  # of the frames: with fewer, `next/X` is stored as a key of its own
SAMPLE_FRAMES = 4096  # that are looked at, besides some of every stream

Frames = Sequence[Mapping[str, Array]]


def joined(first: Frames, most: int | None = None) -> dict[str, Array]:
    """Return the first frames, or at most that many of them, one array a key."""
    return {
        key: first[0][key][:most]
        if len(first) == 1
        else np.concatenate([part[key][:most] for part in first])[:most]
        for key in first[0]
    }


def find_streams(
    first: Frames, linkable: Sequence[str], capacity: int, chunk: int, streams: int | None
) -> int | None:
    """Return how many streams there are, or None while more frames are needed to tell.

    Args:
        first: the frames so far, as they came.
        linkable: the X for which there is a `next/X` of the same kind.
        capacity: of the store.
        chunk: frames of a chunk.
        streams: what the user said.
    """
    count, turn = sum(map(length_of, first)), length_of(first[0])
    full = count >= capacity
    if streams is not None:
        return streams if full or count >= 4 * max(chunk, streams) else None
    if count < 4 * chunk and not full:
        return None
    frames = joined(first, SAMPLE_FRAMES + 8 * turn)

    def linked(distance: int) -> bool:
        return max(linked_share(frames, name, distance) for name in linkable) >= LEAST_LINKED

    if not linkable or turn == 1 or linked(1):
        return 1
    if count < 4 * turn and not full:
        return None
    if turn <= capacity // 2 and linked(turn):
        return turn if full or count >= 8 * turn else None
    return 1
