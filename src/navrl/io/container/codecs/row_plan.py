"""How an array of (environments, steps, ...) is cut into chunks of rows, and groups of rows.

A chunk holds whole rows: reading a few rows reads the chunks they lie in. The rows of a chunk are
coded in groups, each by itself: decoding one environment decodes one group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.io.container.codecs.chunk_parts import MAX_CHUNK_BYTES
from navrl.io.container.element_types import ITEM_BYTES

__all__ = ["RowPlan", "Rows", "plan_rows"]

_CHUNK_BYTES = 1 << 17  # of rows: read and checksummed for the smallest request
# A small array is cut into this many chunks: fewer read more for one row, more make reading the
# whole array slower.
_CHUNKS = 16
_GROUP_BYTES = 1 << 14  # of rows: decoded for the smallest request
_GROUP_ENVS = 4  # environments of small rows in a group: with more, the file gets no smaller


@dataclass(frozen=True)
class Rows:
    """How the bytes of a chunk divide into rows."""

    row_bytes: int
    steps: int  # consecutive rows in time; then the next environment begins
    group: int  # rows that are coded together
    first: int = 0  # the number of the chunk's first row in the array

    def at(self, position: int) -> Rows:
        """Return the rows of the chunk that begins at a byte of the array."""
        return Rows(self.row_bytes, self.steps, self.group, position // self.row_bytes)

    def groups(self, size: int) -> int:
        """Return how many groups a chunk of `size` bytes has."""
        return -(-size // (self.row_bytes * self.group))

    def starts(self, count: int) -> Any:
        """Return which of the chunk's first `count` rows are stored whole, not as differences.

        They are the first row of every group, and the first step of every environment.
        """
        numbers = np.arange(count)
        return np.flatnonzero(
            (numbers % self.group == 0) | ((numbers + self.first) % self.steps == 0)
        )


@dataclass(frozen=True)
class RowPlan:
    """How an array is cut: the bytes of its chunks, and the rows in them."""

    chunk_bytes: int
    rows: Rows


def plan_rows(shape: Sequence[int], element: str) -> RowPlan | None:
    """Return how to cut an array into chunks of rows; None if it has no rows, or huge ones."""
    if len(shape) < 2 or 0 in shape:
        return None
    steps, row_bytes = shape[1], math.prod(shape[2:]) * ITEM_BYTES[element]
    target = min(_CHUNK_BYTES, shape[0] * steps * row_bytes // _CHUNKS)
    group = max(1, min(round(_GROUP_BYTES / row_bytes), _GROUP_ENVS * steps))
    if group > steps // 2:
        group = max(1, round(group / steps)) * steps  # whole environments
    for rows in (group, 1):
        unit = rows * row_bytes
        unit *= 16 // math.gcd(16, unit)  # all chunks but the last are a multiple of 16 bytes
        if unit <= MAX_CHUNK_BYTES:
            return RowPlan(unit * max(1, target // unit), Rows(row_bytes, steps, rows))
    return None
