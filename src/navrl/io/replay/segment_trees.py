"""Segment trees for prioritised replay: write priorities and draw frames by them, in O(log n).

`SumTree` and `MinTree` compute what TorchRL's compiled trees compute, in the same order of
operations, so they draw the same frames. TorchRL's trees are built for one version of torch and do
not load under another; these run under all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from navrl.arguments import whole_number
from navrl.errors import ReplayIndexError
from navrl.io.replay.frame_codec import Array
from navrl.io.replay.segment_tree_kernels import find, reduce, write

__all__ = ["MinTree", "SumTree"]


class _SegmentTree:
    """A binary tree with numbers in its leaves; nodes above hold their sum, or minimum."""

    smallest = False

    def __init__(self, size: int, dtype: torch.dtype = torch.float32) -> None:
        size = whole_number("size", size, 1, 1 << 40)
        self._size, self._element = size, np.dtype(str(dtype).removeprefix("torch."))
        self._capacity = (
            1 << size.bit_length()
        )  # above `size`, so that the end of a range has a node
        neutral = np.finfo(self._element).max if self.smallest else 0
        self._nodes = np.full(2 * self._capacity, neutral, self._element)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        """Return leaves: a number for an integer, an array for an array, a tensor for a tensor."""
        places = self._places(index)
        found = self._nodes[places + self._capacity]
        if isinstance(index, torch.Tensor):
            return torch.as_tensor(found)
        return found if places.ndim else float(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write leaves, one after the other; one value may be for all."""
        places = self._places(index).reshape(-1)
        values = np.asarray(value, self._element).reshape(-1)
        if len(values) not in (1, len(places)):
            found = f"{len(values)} values for {len(places)} indices"
            raise ReplayIndexError(f"{found}; expected one for each, or one for all")
        write(self._nodes, self._capacity, places, values, self.smallest)

    def query(self, begin: int, end: int) -> float:
        """Return the sum, or the minimum, of the leaves from `begin` up to `end`, without `end`."""
        if begin <= 0 and end >= self._size:
            return float(self._nodes[1])
        return float(reduce(self._nodes, self._capacity, begin, end, self.smallest))

    def _places(self, index: Any) -> Array:
        places = np.asarray(index, np.int64)
        end = self._capacity  # as TorchRL's trees, which accept every leaf there is
        if places.size and (places.min() < 0 or places.max() >= end):
            wrong = places[(places < 0) | (places >= end)].flat[0]
            raise ReplayIndexError(f"index {wrong} is out of range; expected 0 to {self._size - 1}")
        return places


class SumTree(_SegmentTree):
    """Priorities, with the sums from which frames are drawn."""

    def scan_lower_bound(self, mass: Any) -> Any:
        """Return the leaf at which the sum reaches each mass; `len(self)` where it never does."""
        masses = np.asarray(mass, self._element)
        found = np.empty(masses.size, np.int64)
        find(self._nodes, self._capacity, self._size, masses.reshape(-1), found)
        places = found.reshape(masses.shape)
        if isinstance(mass, torch.Tensor):
            return torch.from_numpy(places)
        return places if masses.ndim else int(places)


class MinTree(_SegmentTree):
    """Priorities, with the smallest of any range."""

    smallest = True
