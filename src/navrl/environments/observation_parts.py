"""Observation parts of arrays: which kind they are, and how they come into rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.observation import ObservationLayout, Part

__all__ = ["part_of", "write_part"]

BRIGHTEST = 255.0  # of a pixel of 8 bits


def part_of(name: str, shape: tuple[int, ...], dtype: Any) -> Part:
    """Return the part that an array becomes: bytes in two or three dimensions are an image."""
    kind = np.dtype(str(dtype).removeprefix("torch.")).kind
    if kind == "u" and len(shape) in (2, 3):
        return Part(name, shape if len(shape) == 3 else (1, *shape), "image", scaled=True)
    return Part(name, shape or (1,), "vector", scaled=kind == "b")


def write_part(observation: ObservationLayout, name: str, values: Any, rows: Tensor) -> None:
    """Write a part of all rows, (N, *shape), as float32; the bytes of an image become 0 to 1."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
    place = rows[:, observation.slices[name]]
    place.copy_(tensor.reshape(len(rows), -1))
    if observation[name].kind == "image" and tensor.dtype == torch.uint8:
        place.div_(BRIGHTEST)
