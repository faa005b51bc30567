"""Tracks of moving obstacles: their columns, and the policy's observed rows as tracks and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from navrl.navigation_observation import (
    OBSTACLE,
    OBSTACLE_DIRECTION,
    OBSTACLE_DISTANCE,
    OBSTACLE_FLOATS,
    OBSTACLE_HEIGHT,
    OBSTACLE_VELOCITY,
    OBSTACLE_WIDTH,
    WIDTH_STEP,
)
from navrl.sim.worlds.obstacles import FLOATING_HEIGHT, TALL_HEIGHT

Array = NDArray[np.float64]

# A width of 0 or less is an empty slot.
COLUMNS = ("x", "y", "z", "vx", "vy", "vz", "width", "height")
UNITS = ("m", "m", "m", "m/s", "m/s", "m/s", "m", "m")
TRACK = len(COLUMNS)
TALL = 1.0  # m: a higher obstacle is a column: no vertical offset, and passed beside, never above


def horizontal_offset(direction: Array, distance: Array) -> Array:
    """Return x and y, (..., 2), from a direction, (..., 3), and a horizontal distance, (...)."""
    flat = np.maximum(np.hypot(direction[..., 0], direction[..., 1]), 1e-9)
    offset: Array = direction[..., :2] / flat[..., None] * distance[..., None]
    return offset


def observed_tracks(rows: Array, height: Array) -> Array:
    """Return tracks, (N, K, 8), in the goal frame around drones at a height, from rows (N, K, 10).

    Of tall obstacles the height is not observed: they are given the drone's.
    """
    tracks = np.zeros((*rows.shape[:2], TRACK))
    tracks[..., :2] = horizontal_offset(rows[..., OBSTACLE_DIRECTION], rows[..., OBSTACLE_DISTANCE])
    tracks[..., 2] = rows[..., OBSTACLE_HEIGHT] + height[:, None]
    tracks[..., 3:6] = rows[..., OBSTACLE_VELOCITY]
    seen = np.abs(rows).sum(-1) > 0
    tracks[..., 6] = np.where(seen, (rows[..., OBSTACLE_WIDTH] + 1) * WIDTH_STEP, 0.0)
    floats = rows[..., OBSTACLE_FLOATS] > 0.5
    tracks[..., 7] = np.where(floats, FLOATING_HEIGHT, TALL_HEIGHT)
    return tracks


def observed_rows(tracks: Array, place: Array, observed: int, reach: float) -> NDArray[np.float32]:
    """Return the rows, (N, observed, 10), of the nearest tracks in reach of drones at a place.

    Args:
        tracks: (N, K, 8), any K.
        place: of the drones, (N, 3), in the frame of the tracks.
        observed: rows of an observation; those without a track are zeros.
        reach: of the detector, m.
    """
    tracks = np.concatenate([tracks, np.zeros((len(tracks), observed, TRACK))], 1)
    offset = tracks[..., :3] - place[:, None]
    horizontal = np.hypot(offset[..., 0], offset[..., 1])
    seen = (tracks[..., 6] > 0) & (horizontal <= reach)
    nearest = np.argsort(np.where(seen, horizontal, np.inf), axis=1, kind="stable")[:, :observed]
    chosen, offset = (np.take_along_axis(part, nearest[..., None], 1) for part in (tracks, offset))
    horizontal, seen = (np.take_along_axis(part, nearest, 1) for part in (horizontal, seen))
    floats = chosen[..., 7] <= FLOATING_HEIGHT
    offset[..., 2] = np.where(floats, offset[..., 2], 0.0)
    rows = np.zeros((*nearest.shape, len(OBSTACLE)), np.float32)
    distance = np.maximum(np.linalg.norm(offset, axis=-1, keepdims=True), 1e-6)
    rows[..., OBSTACLE_DIRECTION] = offset / distance
    rows[..., OBSTACLE_DISTANCE] = horizontal
    rows[..., OBSTACLE_HEIGHT] = offset[..., 2]
    rows[..., OBSTACLE_VELOCITY] = chosen[..., 3:6]
    rows[..., OBSTACLE_WIDTH] = chosen[..., 6] / WIDTH_STEP - 1
    rows[..., OBSTACLE_FLOATS] = floats
    rows[~seen] = 0.0
    return rows
