"""Rows of the policy's observation as tracks of moving obstacles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FLOATING_HEIGHT, TALL_HEIGHT = 1.0, 5.0  # m, of the simulator's moving obstacles


def observed_tracks(rows: NDArray[np.float64], height: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tracks, (N, K, 8), in the goal frame around the drones, from observed rows (N, K, 10).

    Rows: direction (3), horizontal distance, vertical offset, velocity (3), width and height code.
    """
    tracks = np.zeros((*rows.shape[:2], 8))
    horizontal = rows[..., 3]
    flat = np.maximum(np.hypot(rows[..., 0], rows[..., 1]), 1e-9)
    tracks[..., 0] = rows[..., 0] / flat * horizontal
    tracks[..., 1] = rows[..., 1] / flat * horizontal
    tracks[..., 2] = rows[..., 4] + height[:, None]
    tracks[..., 3:6] = rows[..., 5:8]
    seen = np.abs(rows).sum(-1) > 0
    tracks[..., 6] = np.where(seen, (rows[..., 8] + 1) / 4, 0.0)
    tracks[..., 7] = np.where(rows[..., 9] > 0.5, FLOATING_HEIGHT, TALL_HEIGHT)
    return tracks
