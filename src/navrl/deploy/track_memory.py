"""Moving obstacles that a detector misses for a moment fly on at their last velocity.

memory = TrackMemory(keep=0.5)
tracks = memory(detected, seconds=0.08)      # what is detected, and what was a moment ago
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GATE = 1.5  # m: a detection so near to where a track is expected is that track
LONGEST = 1000  # tracks; with more of them in a list nothing is remembered


class TrackMemory:
    """Keeps the tracks of N robots that are missing from newer lists (coasting).

    Tracks are in a frame that stands still: x, y, z, vx, vy, vz, width, height, where a width of 0
    or less is an empty slot.

    Args:
        keep: s; a track that has been missing for longer is forgotten.

    >>> import numpy as np
    >>> from navrl.deploy import TrackMemory
    >>> memory = TrackMemory(keep=0.5)
    >>> seen = np.array([[[2.0, 0, 1, -1, 0, 0, 0.5, 1]]])
    >>> memory(seen, seconds=0.0).shape
    (1, 1, 8)
    >>> memory(np.zeros((1, 0, 8)), seconds=0.1)[0, 0, :3]  # missed
    array([1.9, 0. , 1. ])
    """

    def __init__(self, keep: float = 0.5) -> None:
        self.keep = keep
        self._tracks: Array = np.zeros((0, 0, 8))
        self._missing_for: Array = np.zeros((0, 0))  # s

    def __call__(self, detected: Array, seconds: float) -> Array:
        """Return what is detected, (N, K, 8), followed by what is missing, (N, K + M, 8).

        Args:
            detected: the newest lists, padded with empty slots.
            seconds: since the lists before.
        """
        number, listed = detected.shape[:2]
        if self._tracks.shape[0] != number or listed > LONGEST:
            self._tracks, self._missing_for = np.zeros((number, 0, 8)), np.zeros((number, 0))
        moved = self._tracks.copy()
        moved[..., :3] += seconds * moved[..., 3:6]
        missing_for = self._missing_for + seconds
        missing = (moved[..., 6] > 0) & (missing_for < self.keep) & ~_found_again(moved, detected)
        kept = np.argsort(~missing, axis=1, kind="stable")[:, : int(missing.sum(1).max(initial=0))]
        lost = np.take_along_axis(moved, kept[..., None], 1)
        lost[~np.take_along_axis(missing, kept, 1)] = 0.0
        self._tracks = np.concatenate([detected, lost], 1)
        self._missing_for = np.concatenate(
            [np.zeros((number, listed)), np.take_along_axis(missing_for, kept, 1)], 1
        )
        return self._tracks


def _found_again(expected: Array, detected: Array) -> NDArray[np.bool_]:
    """Return which of the expected tracks, (N, M), are the nearest to a detection, and near."""
    found = np.zeros(expected.shape[:2], bool)
    if not expected.shape[1] or not detected.shape[1]:
        return found
    offset = detected[:, :, None, :2] - expected[:, None, :, :2]  # (N, K, M, 2)
    distance = np.hypot(offset[..., 0], offset[..., 1])
    distance[np.broadcast_to(expected[:, None, :, 6] <= 0, distance.shape)] = np.inf
    nearest = distance.argmin(2)  # (N, K)
    near = np.take_along_axis(distance, nearest[..., None], 2)[..., 0] <= GATE
    robots, detections = np.nonzero(near & (detected[..., 6] > 0))
    found[robots, nearest[robots, detections]] = True
    return found
