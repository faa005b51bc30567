"""`next/X` of frames, stored once: it is the `X` of the next frame of the same stream, mostly.

Whether it is, is found by comparing every bit when that next frame comes. The exceptions, mostly
ends of episodes, are stored as they are. The last frame of every stream has no next frame yet: its
`next/X` is in the tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from navrl.io.replay.columns import Ring
from navrl.io.replay.frame_codec import Array, Kind
from navrl.io.replay.frame_kernels import unequal_rows

__all__ = ["Link", "linked_share"]

# bytes of an exception besides its frame: key and value of a dict, and the header of an array
ENTRY = 200


def linked_share(words: Mapping[str, Array], name: str, streams: int) -> float:
    """Return the share of frames whose `next/X` is the X of the frame `streams` later."""
    differs = _unequal(words[name][streams:], words[f"next/{name}"][:-streams])
    return 1.0 - float(differs.mean()) if len(differs) else 0.0


def _unequal(frames: Array, others: Array) -> Array:
    """Return which of the first frames differ from the others in any bit."""
    unequal = np.zeros(len(others), bool)
    if others.size:
        unequal_rows(
            frames.ctypes.data,
            others.ctypes.data,
            len(others),
            others.nbytes // len(others),
            unequal,
        )
    return unequal


class Link:
    """Where the `next/X` of every frame is: in the next frame, the tail, or the exceptions."""

    def __init__(self, kind: Kind, ring: Ring) -> None:
        self.kind, self._ring = kind, ring
        self.apart = np.zeros(ring.capacity, bool)  # frames that are exceptions
        self.tail = np.zeros((ring.streams, kind.features), f"u{kind.word}")
        self.exceptions: dict[int, Array] = {}

    def append(self, frames: Array, nexts: Array) -> None:
        """Add frames and their `next/X`, before they are written at the cursor."""
        ring, count = self._ring, len(frames)
        streams, capacity = ring.streams, ring.capacity
        slots = (ring.cursor + np.arange(count)) % capacity
        self._forget(slots)
        # frames before this one are the first of their streams
        first = max(0, streams - ring.total)
        waiting = self.tail[(ring.total + np.arange(first, min(count, streams))) % streams]
        differs = np.zeros(count, bool)
        differs[first : first + len(waiting)] = _unequal(frames[first:], waiting)
        differs[streams:] = _unequal(frames[streams:], nexts[: max(0, count - streams)])
        # these frames overwrite their places
        differs[: max(0, count + streams - capacity)] = False
        for row in np.flatnonzero(differs).tolist():
            slot = int((ring.cursor + row - streams) % capacity)
            self.apart[slot] = True
            self.exceptions[slot] = (
                waiting[row - first] if row < streams else nexts[row - streams]
            ).copy()
        last = np.arange(max(0, count - streams), count)
        self.tail[(ring.total + last) % streams] = nexts[last]

    def rewrite(self, indices: Array, nexts: Array) -> None:
        """Set the `next/X` of frames, whatever their next frames are."""
        row, waits = self._in_tail(indices)
        self.tail[row[waits]] = nexts[waits]
        for slot, value in zip(indices[~waits].tolist(), nexts[~waits], strict=True):
            self.apart[slot] = True
            self.exceptions[slot] = value.copy()

    def paired(self, indices: Array) -> Array:
        """Return where `next/X` is to be read from the next frame."""
        return (~(self.apart[indices] | self._in_tail(indices)[1])).view(np.uint8)

    def fill(self, indices: Array, paired: Array, following: Array) -> None:
        """Fill the rows of `following` that are not in a next frame."""
        rows = np.flatnonzero(paired == 0)
        place, waits = self._in_tail(indices[rows])
        following[rows[waits]] = self.tail[place[waits]]
        for row in rows[~waits].tolist():
            following[row] = self.exceptions[int(indices[row])]

    def nbytes(self) -> int:
        """Return the bytes allocated."""
        return (
            self.apart.nbytes + self.tail.nbytes + len(self.exceptions) * (self.kind.nbytes + ENTRY)
        )

    def state(self) -> dict[str, Any]:
        """Return everything as arrays."""
        slots = sorted(self.exceptions)
        frames = (
            np.stack([self.exceptions[slot] for slot in slots]) if slots else self.tail[:0].copy()
        )
        return {"tail": self.tail.copy(), "slots": np.array(slots, np.int64), "frames": frames}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state()` returned; shapes have been checked."""
        self.tail[:] = state["tail"]
        for slot, frame in zip(state["slots"].tolist(), state["frames"], strict=True):
            self.exceptions[slot] = frame.copy()
        self.apart[state["slots"]] = True

    def _in_tail(self, indices: Array) -> tuple[Array, Array]:
        """Return the tail's rows for the `next/X` of frames, and whether they are there."""
        age = (self._ring.cursor - 1 - indices) % self._ring.capacity
        return (self._ring.total - 1 - age) % self._ring.streams, age < min(
            self._ring.streams, self._ring.total
        )

    def _forget(self, slots: Array) -> None:
        for slot in slots[self.apart[slots]].tolist():
            self.apart[slot] = False
            self.exceptions.pop(slot, None)
