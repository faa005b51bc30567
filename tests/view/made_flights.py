"""Recorded flights made up for tests: no simulator is needed to draw them."""

from __future__ import annotations

import numpy as np

from navrl.evaluation.recording import ENDINGS, Recording
from navrl.sim.settings import NavigationSettings

SECONDS = 0.08


def made_recording(
    flights: int = 8, frames: int = 60, moving: int = 8, seed: int = 0, **changes: object
) -> Recording:
    """Return drones that cross the field side by side on wavy lines, every ending among them."""
    random = np.random.default_rng(seed)
    time = np.arange(frames)[:, None]
    lengths = np.linspace(frames // 2, frames - 1, flights).astype(np.int64)
    moment = np.minimum(time, lengths)  # (T, R)
    lanes = np.linspace(-16, 16, flights)
    places = [lanes + np.sin(moment / 7) * 0.8, 24 - 48 * moment / frames, 1.5 + np.cos(moment / 9)]
    position = np.stack(places, axis=2).astype(np.float32)
    x, y = random.uniform(-19, 19, (2, 40))
    heights = random.uniform(1, 6, 40)
    origin = random.uniform(-18, 18, (moving, 3))
    drift = random.uniform(-1, 1, (moving, 3)) * SECONDS
    tall = np.arange(moving) >= moving // 2
    origin[:, 2], drift[:, 2] = np.where(tall, 2.5, 2.0), 0.0
    values = {
        "scenario": "crossing",
        "policy": "a made-up policy",
        "world": "a made-up world",
        "settings": NavigationSettings().as_dict(),
        "seconds_per_frame": SECONDS,
        "boxes": np.stack([x, x + 0.7, y, y + 0.7, 0 * x, heights], 1).astype(np.float32),
        "cylinders": np.array([[3, 3, 0.5, 0, 4], [-6, 2, 0.3, 0, 2]], np.float32),
        "episode": np.arange(flights) * 3,
        "position": position,
        "velocity": np.gradient(position, SECONDS, axis=0).astype(np.float32),
        "yaw": np.full((frames, flights), -np.pi / 2, np.float32),
        "goal": np.stack([lanes, np.full(flights, -24.0), np.full(flights, 2.0)], 1).astype("f4"),
        "outcome": tuple(ENDINGS[i % len(ENDINGS)] for i in range(flights)),
        "lengths": lengths,
        "moving_position": (origin + time[:, :, None] * drift).astype(np.float32),
        "moving_velocity": np.broadcast_to(drift / SECONDS, (frames, moving, 3)).astype("f4"),
        "moving_width": np.resize([0.25, 0.5, 0.75, 1.0], moving).astype(np.float32),
        "moving_tall": tall,
    }
    return Recording(**{**values, **changes})  # type: ignore[arg-type]
