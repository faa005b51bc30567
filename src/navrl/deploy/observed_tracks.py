"""Rows of the policy's observation as tracks of moving obstacles, and back."""

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


def observed_rows(
    tracks: NDArray[np.float64], place: NDArray[np.float64], observed: int, reach: float
) -> NDArray[np.float32]:
    """Return the rows, (N, observed, 10), of the nearest tracks in reach of drones at a place.

    Args:
        tracks: (N, K, 8), any K.
        place: of the drones, (N, 3), in the frame of the tracks.
        observed: rows of an observation; those without a track are zeros.
        reach: of the detector, m.
    """
    spare = np.zeros((len(tracks), observed, 8))
    tracks = np.concatenate([tracks, spare], 1)
    offset = tracks[..., :3] - place[:, None]
    horizontal = np.hypot(offset[..., 0], offset[..., 1])
    seen = (tracks[..., 6] > 0) & (horizontal <= reach)
    nearest = np.argsort(np.where(seen, horizontal, np.inf), axis=1, kind="stable")[:, :observed]
    chosen, offset = (np.take_along_axis(part, nearest[..., None], 1) for part in (tracks, offset))
    horizontal, seen = (np.take_along_axis(part, nearest, 1) for part in (horizontal, seen))
    floats = chosen[..., 7] <= FLOATING_HEIGHT
    offset[..., 2] = np.where(floats, offset[..., 2], 0.0)
    distance = np.maximum(np.linalg.norm(offset, axis=-1), 1e-6)
    parts = [offset / distance[..., None], horizontal[..., None], offset[..., 2:3]]
    parts += [chosen[..., 3:6], chosen[..., 6:7] * 4 - 1, floats[..., None]]
    rows = np.concatenate(parts, -1).astype(np.float32)
    rows[~seen] = 0.0
    return rows
