"""Flights as a short text that a page decodes: whole numbers, differences, deflate, base64.

Lengths are counted in centimetres (in coarser units in a world wider than 640 m), headings in
65536ths of a turn. Each series is replaced by its second differences, which are near zero for
things that move smoothly. Differences wrap at 16 bits, so any series can be restored. The low bytes
of all numbers come first and the high bytes after them, and both are deflated.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.evaluation.recording import Recording
from navrl.view.words import obstacles_in_words

__all__ = ["decode", "encode", "payload_of"]

FINEST = 0.01  # m
TURN = 65536

Numbers = NDArray[np.int16]


def encode(arrays: dict[str, Numbers]) -> tuple[str, dict[str, list[int]]]:
    """Return the arrays as base64, and the shape of each by name; the first axis is time."""
    parts = [_folded(_differences(_differences(array))) for array in arrays.values()]
    joined = np.concatenate([part.ravel() for part in parts] or [np.zeros(0, np.uint16)])
    planes = joined.astype("<u2").view(np.uint8).reshape(-1, 2).T.tobytes()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflate.compress(planes) + deflate.flush()
    shapes = {name: [*array.shape] for name, array in arrays.items()}
    return base64.b64encode(packed).decode(), shapes


def decode(text: str, shapes: dict[str, list[int]]) -> dict[str, Numbers]:
    """Return the arrays of `encode`."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text), -15), np.uint8)
    words = np.ascontiguousarray(planes.reshape(2, -1).T).view("<u2").ravel()
    arrays, used = {}, 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        part = _unfolded(words[used : used + count].reshape(shape))
        for _ in range(2):
            part = np.cumsum(part, axis=0, dtype=np.int16)
        arrays[name] = part
        used += count
    return arrays


def _differences(values: Numbers) -> Numbers:
    """Return each row less the row before, modulo 65536; the first row stays."""
    return np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))


def _folded(values: Numbers) -> NDArray[np.uint16]:
    """Return 0, -1, 1, -2, ... as 0, 1, 2, 3, ..., so that small numbers have a high byte of 0."""
    return ((values << 1) ^ (values >> 15)).view(np.uint16)


def _unfolded(words: NDArray[np.uint16]) -> Numbers:
    return ((words >> 1) ^ (-(words & 1).astype(np.int16)).view(np.uint16)).view(np.int16)


def payload_of(recording: Recording) -> dict[str, Any]:
    """Return one recording as plain values for JSON, its arrays encoded."""
    unit = _unit(recording)
    data, shapes = encode(_arrays(recording, unit))
    return {
        "scenario": recording.scenario,
        "policy": recording.policy,
        "world": recording.world,
        "obstacles": obstacles_in_words(recording),
        "unit": unit,
        "secondsPerFrame": recording.seconds_per_frame,
        "lidar": _lidar(recording),
        "flights": [
            {"episode": int(episode), "outcome": outcome, "frames": int(frames)}
            for episode, outcome, frames in zip(
                recording.episode, recording.outcome, recording.lengths, strict=True
            )
        ],
        "shapes": shapes,
        "data": data,
    }


def _lidar(recording: Recording) -> dict[str, Any]:
    """Return what the page needs to cast the rays again."""
    sensor = recording.settings["sensor"]
    lowest, highest = sensor["lidar_vfov"]
    elevations = np.linspace(lowest, highest, sensor["lidar_vbeams"])
    return {
        "range": sensor["lidar_range"],
        "azimuths": round(360.0 / sensor["lidar_hres"]),
        "elevations": elevations.round(4).tolist(),
        "seesMoving": bool(recording.settings["env_dyn"]["visible_to_lidar"]),
    }


def _unit(recording: Recording) -> float:
    """Return the metres of one unit: a centimetre, or as much as the farthest coordinate needs."""
    parts = (recording.position, recording.goal, recording.boxes, recording.moving_position)
    farthest = max((float(np.abs(part).max()) for part in parts if part.size), default=0.0)
    return max(FINEST, farthest / 32000)


def _arrays(recording: Recording, unit: float) -> dict[str, Numbers]:
    """Return the arrays of a recording as whole numbers, cut where the last flight ends."""
    last = int(recording.lengths.max(initial=0))

    def counted(values: NDArray[np.float32]) -> Numbers:
        return np.rint(np.asarray(values, np.float64) / unit).astype(np.int16)

    frame = np.arange(min(last + 1, len(recording.position)))
    rows = np.minimum(
        frame[:, None], recording.lengths
    )  # (F, R): ended flights stay where they are
    columns = np.arange(recording.flights)
    angles = np.asarray(recording.yaw, np.float64)[rows, columns] * (TURN / (2 * np.pi))
    return {
        "position": counted(recording.position[rows, columns]),
        "yaw": np.rint(angles).astype(np.int64).astype(np.int16),
        "moving": counted(recording.moving_position[frame]),
        "goal": counted(recording.goal),
        "boxes": counted(recording.boxes),
        "cylinders": counted(recording.cylinders),
        "size": counted(recording.moving_width),
        "tall": recording.moving_tall.astype(np.int16),
    }
