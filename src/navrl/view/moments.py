"""The moments of a recording, for pictures."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from navrl.evaluation.recording import Recording
from navrl.render.moment import FLYING, Moment

__all__ = ["moment_at"]

Floats = NDArray[np.float32]


def moment_at(recording: Recording, seconds: float) -> Moment:
    """Return what a recording shows so many seconds after its start."""
    last = len(recording.position) - 1
    frame = min(max(seconds / recording.seconds_per_frame, 0.0), float(last))
    before, after = math.floor(frame), min(math.floor(frame) + 1, last)
    share = np.float32(frame - before)

    def between(values: Floats) -> Floats:
        return values[before] + (values[after] - values[before]) * share

    position = between(recording.position)
    turn = recording.yaw[after] - recording.yaw[before]
    turn -= np.float32(2 * math.pi) * np.rint(turn / (2 * math.pi)).astype(np.float32)
    over = frame >= recording.lengths
    trails = []
    for flight, end in enumerate(recording.lengths):
        until = min(before, int(end))
        way = recording.position[: until + 1, flight]
        trails.append(way if over[flight] else np.vstack([way, position[flight]]))
    return Moment(
        position=position,
        yaw=recording.yaw[before] + turn * share,
        goal=recording.goal,
        state=[
            outcome if ended else FLYING
            for outcome, ended in zip(recording.outcome, over, strict=True)
        ],
        moving_position=between(recording.moving_position),
        moving_width=recording.moving_width,
        moving_tall=recording.moving_tall,
        trails=trails,
        seconds=seconds,
    )
