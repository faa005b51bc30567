"""Segment trees for prioritised replay: write priorities and draw frames by them, in O(log n).

`SumTree` and `MinTree` compute what the compiled trees of TorchRL compute, in the same order of
operations, so they draw the same frames. TorchRL's are compiled for one version of torch and do not
load under another; these run under all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit

from navrl.arguments import whole_number
from navrl.errors import ReplayIndexError
from navrl.io.replay_codecs import Array

__all__ = ["MinTree", "SumTree"]

_entry = njit(cache=True, nogil=True, error_model="numpy")


@_entry
def _write(nodes: Any, capacity: int, indices: Any, values: Any, smallest: bool) -> None:
    """Write leaves one after the other, and every node above them; one value may stand for all."""
    for i in range(len(indices)):
        node = indices[i] + capacity
        nodes[node] = values[i] if len(values) > 1 else values[0]
        while node > 1:
            one, other = nodes[node], nodes[node ^ 1]
            nodes[node >> 1] = min(one, other) if smallest else one + other
            node >>= 1


@_entry
def _reduce(nodes: Any, capacity: int, begin: int, end: int, smallest: bool) -> Any:
    """Return the sum, or the minimum, of the leaves from `begin` up to `end`."""
    found = nodes[0]  # no node uses it: it holds the neutral element
    left, right = begin + capacity, end + capacity
    while left < right:
        if left & 1:
            found = min(found, nodes[left]) if smallest else found + nodes[left]
            left += 1
        if right & 1:
            right -= 1
            found = min(found, nodes[right]) if smallest else found + nodes[right]
        left >>= 1
        right >>= 1
    return found


@_entry
def _find(nodes: Any, capacity: int, size: int, masses: Any, found: Any) -> None:
    """Fill in the first leaf for each mass, up to which the sum is not less than the mass."""
    for i in range(len(masses)):
        mass, node = masses[i], 1
        if mass > nodes[1]:
            found[i] = size
            continue
        while node < capacity:
            node <<= 1
            if mass > nodes[node]:
                mass -= nodes[node]
                node |= 1
        found[i] = node ^ capacity


class _SegmentTree:
    """A binary tree with numbers in its leaves; a node above holds their sum, or their minimum."""

    smallest = False

    def __init__(self, size: int, dtype: torch.dtype = torch.float32) -> None:
        size = whole_number("size", size, 1, 1 << 40)
        self._size, self._element = size, np.dtype(str(dtype).removeprefix("torch."))
        self._capacity = 1 << size.bit_length()  # above `size`: the end of a range has a node
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
        """Write leaves, one after the other; one value may stand for all."""
        places = self._places(index).reshape(-1)
        values = np.asarray(value, self._element).reshape(-1)
        if len(values) not in (1, len(places)):
            found = f"{len(values)} values for {len(places)} indices"
            raise ReplayIndexError(f"{found}; expected one for each, or one for all")
        _write(self._nodes, self._capacity, places, values, self.smallest)

    def query(self, begin: int, end: int) -> float:
        """Return the sum, or the minimum, of the leaves from `begin` up to `end`, without `end`."""
        if begin <= 0 and end >= self._size:
            return float(self._nodes[1])
        return float(_reduce(self._nodes, self._capacity, begin, end, self.smallest))

    def _places(self, index: Any) -> Array:
        places = np.asarray(index, np.int64)
        end = self._capacity  # as TorchRL's trees, which take what the nodes have room for
        if places.size and (places.min() < 0 or places.max() >= end):
            wrong = places[(places < 0) | (places >= end)].flat[0]
            raise ReplayIndexError(f"index {wrong} is outside; expected 0 to {self._size - 1}")
        return places


class SumTree(_SegmentTree):
    """Priorities, with the sums from which frames are drawn."""

    def scan_lower_bound(self, mass: Any) -> Any:
        """Return the leaf at which the sum reaches each mass; `len(self)` where it never does."""
        masses = np.asarray(mass, self._element)
        found = np.empty(masses.size, np.int64)
        _find(self._nodes, self._capacity, self._size, masses.reshape(-1), found)
        places = found.reshape(masses.shape)
        if isinstance(mass, torch.Tensor):
            return torch.from_numpy(places)
        return places if masses.ndim else int(places)


class MinTree(_SegmentTree):
    """Priorities, with the smallest of any range."""

    smallest = True
