"""Blobs of any size in a few large blocks of memory.

One allocation a blob would cost sixteen bytes and a search each, and scatter them. Here a blob is
put behind the one before it, and a block is reused when its last blob is freed. Blobs of a ring
come and go in order, so at any time all blocks but two are full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from navrl.io.container.numba_memory import PADDING

__all__ = ["Arena"]

# bytes of a block: a sixteenth of what is stored, within limits
SMALLEST, LARGEST, SHARE = (1 << 16, 1 << 24, 16)

Array = np.ndarray[Any, np.dtype[Any]]


class Arena:
    """Memory for `count` numbered blobs; `addresses` and `sizes` say where they are."""

    def __init__(self, count: int) -> None:
        self.addresses = np.zeros(count, np.int64)
        self.sizes = np.zeros(count, np.uint32)
        self._block_of = np.zeros(count, np.int32)
        self._blocks: dict[int, Array] = {}
        self._live: dict[int, int] = {}
        self._spare: Array | None = None
        self._current, self._next, self._used, self._base = -1, 0, 0, 0

    def place(self, numbers: Array, sizes: Array) -> Array:
        """Make room for blobs and return the addresses to write them to.

        They replace those with the same numbers.
        """
        self.free(numbers)
        ends, done = np.cumsum(sizes), 0
        while done < len(numbers):
            placed = ends[done - 1] if done else 0
            room = (
                len(self._blocks[self._current]) - self._used - PADDING
                if self._current >= 0
                else -1
            )
            last = int(np.searchsorted(ends, placed + room, "right"))
            if last <= done:
                self._begin_block(int(sizes[done]) + PADDING)
                continue
            some = slice(done, last)
            self.addresses[numbers[some]] = (
                self._base + self._used + ends[some] - sizes[some] - placed
            )
            self._block_of[numbers[some]] = self._current
            self._live[self._current] += last - done
            self._used += int(ends[last - 1] - placed)
            done = last
        self.sizes[numbers] = sizes
        return self.addresses[numbers]

    def free(self, numbers: Array) -> None:
        """Free blobs; numbers without one are skipped."""
        held = numbers[self.addresses[numbers] != 0]
        for block in self._block_of[held].tolist():
            self._live[block] -= 1
            if not self._live[block] and block != self._current:
                self._spare = self._blocks.pop(block)
                del self._live[block]
        self.addresses[held] = 0
        self.sizes[held] = 0

    def compact(self) -> None:
        """Move blobs out of blocks that are less than half full.

        Done only if more than half of all memory is unused.
        """
        if (
            sum(map(len, self._blocks.values()))
            <= 2 * int(self.sizes.sum(dtype=np.int64)) + 2 * SMALLEST
        ):
            return
        held = np.flatnonzero(self.addresses)
        for block in [number for number in self._blocks if number != self._current]:
            numbers = held[self._block_of[held] == block]
            sizes = self.sizes[numbers]
            if 2 * int(sizes.sum(dtype=np.int64)) >= len(self._blocks[block]):
                continue
            blobs = [np.empty(size, np.uint8) for size in sizes.tolist()]
            for number, blob in zip(numbers.tolist(), blobs, strict=True):
                self.read(number, blob)
            self.place(numbers, sizes)
            for number, blob in zip(numbers.tolist(), blobs, strict=True):
                self._slice(number, len(blob))[:] = blob

    def read(self, number: int, out: Array) -> None:
        """Copy a blob into an array of its size."""
        out[:] = self._slice(number, len(out))

    def _slice(self, number: int, size: int) -> Array:
        block = self._blocks[int(self._block_of[number])]
        begin = int(self.addresses[number]) - block.ctypes.data
        return block[begin : begin + size]

    def nbytes(self) -> int:
        """Return the bytes allocated: blocks, full or not, and tables."""
        blocks = sum(len(block) for block in self._blocks.values()) + (
            0 if self._spare is None else len(self._spare)
        )
        return blocks + self.addresses.nbytes + self.sizes.nbytes + self._block_of.nbytes

    def _begin_block(self, least: int) -> None:
        if self._current >= 0 and not self._live[self._current]:
            del self._blocks[self._current], self._live[self._current]
        held = int(self.sizes.sum(dtype=np.int64))
        size = max(least, min(max(held // SHARE, SMALLEST), LARGEST))
        block, self._spare = self._spare, None
        if block is None or len(block) < least:
            block = np.zeros(size, np.uint8)
        self._current, self._used = self._next, 0
        self._next += 1
        self._base = block.ctypes.data
        self._blocks[self._current], self._live[self._current] = block, 0
