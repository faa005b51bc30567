"""PrefixSum: which episode a frame is in, in O(log n), as episodes come and go."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np

from navrl.arguments import whole_number
from navrl.errors import ReplayIndexError, shown

__all__ = ["PrefixSum"]


class PrefixSum:
    """Which part (episode) an index (frame) falls into, in O(log n), as parts come and go.

    With `max_len`, at most that many parts are kept: adding one more removes the oldest.

    >>> sums = PrefixSum(max_len=1000)
    >>> for length in (10, 20, 15):
    ...     sums.add(length)
    >>> sums.get_range_idx(25), sums.get_range_relative_idx(25, 1)
    (1, 15)
    """

    def __init__(self, max_len: int | None = None, lengths: Iterable[int] = ()) -> None:
        if max_len is not None:
            max_len = whole_number("max_len", max_len, 1, 1 << 62)
        self.max_len = max_len
        self._ends: list[int] = []  # sums from the first part ever added
        self._gone = 0  # removed parts that are still in `_ends`
        self._base = 0  # the sum of all removed parts
        for length in lengths:
            self.add(length)

    def add(self, length: int) -> None:
        """Add a part at the end; the first is removed if there are `max_len` already.

        Raises:
            ConfigError: the length is not a whole number of at least 1.
        """
        length = whole_number("length", length, 1, 1 << 62)
        self._ends.append((self._ends[-1] if self._ends else self._base) + length)
        if self.max_len is not None and len(self) > self.max_len:
            self.popleft()

    append = add

    def popleft(self) -> int:
        """Remove the first part and return its length."""
        if not len(self):
            raise ReplayIndexError("there is no part to remove; add one first")
        length = self._ends[self._gone] - self._base
        self._base += length
        self._gone += 1
        if self._gone > len(self._ends) // 2:  # so that removing stays O(1) on average
            del self._ends[: self._gone]
            self._gone = 0
        return length

    @property
    def total(self) -> int:
        """The sum of the lengths of all parts."""
        return self._ends[-1] - self._base if len(self) else 0

    @property
    def ar(self) -> list[int]:
        """The lengths of the parts, oldest first; a new list."""
        return np.diff(self.prefix_sum).tolist()

    @property
    def prefix_sum(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where each part begins, from 0, and the total at the end; a new array."""
        return np.array([self._base, *self._ends[self._gone :]], np.int64) - self._base

    def __len__(self) -> int:
        return len(self._ends) - self._gone

    def find(self, index: int) -> tuple[int, int]:
        """Return the part that an index falls into, counted from the oldest, and the place in it.

        Raises:
            ReplayIndexError: the index is negative, or not less than `total`.
        """
        try:
            inside = 0 <= index < self.total
        except TypeError as error:
            raise ReplayIndexError(f"index is {shown(index)}; expected a whole number") from error
        if not inside:
            found = f"expected 0 to {self.total - 1}" if self.total else "there are no parts yet"
            raise ReplayIndexError(f"index {index} is out of range; {found}")
        part = bisect_right(self._ends, index + self._base, self._gone)
        return part - self._gone, int(index) - self._start(part - self._gone)

    def get_range_idx(self, idx: int) -> int:
        """Return the part that an index falls into."""
        return self.find(idx)[0]

    def get_range_relative_idx(self, idx: int, range_idx: int) -> int:
        """Return the place of an index in its part, which `get_range_idx` returned.

        Raises:
            ReplayIndexError: there is no such part, or the index does not fall into it.
        """
        if not 0 <= range_idx < len(self):
            raise ReplayIndexError(f"part {range_idx} is out of range; there are {len(self)} parts")
        begin, end = self._start(range_idx), self._ends[self._gone + range_idx] - self._base
        if not begin <= idx < end:
            held = f"which holds {begin} to {end - 1}"
            raise ReplayIndexError(f"index {idx} is not in part {range_idx}, {held}")
        return int(idx) - begin

    def _start(self, part: int) -> int:
        """Return the index at which a part begins."""
        return self._ends[self._gone + part - 1] - self._base if part else 0
