"""Blobs of any size in a few large pieces of memory; what is freed in the order it came is used
again in that order.

One allocation a blob would cost sixteen bytes and a search each, and scatter them. Here a blob is
put behind the one before it; a piece is used again when the last blob in it is gone. Blobs of a
ring come and go in order, so at any time all pieces but two are full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from navrl.io.container.numba_memory import PADDING

__all__ = ["Arena"]

# bytes of a piece: a sixteenth of what is held, within limits
SMALLEST, LARGEST, SHARE = (1 << 16, 1 << 24, 16)

Array = np.ndarray[Any, np.dtype[Any]]


class Arena:
    """Memory for `count` numbered blobs; `addresses` and `sizes` say where they are."""

    def __init__(self, count: int) -> None:
        self.addresses = np.zeros(count, np.int64)
        self.sizes = np.zeros(count, np.uint32)
        self._piece_of = np.zeros(count, np.int32)
        self._pieces: dict[int, Array] = {}
        self._live: dict[int, int] = {}
        self._spare: Array | None = None
        self._current, self._next, self._used, self._base = -1, 0, 0, 0

    def place(self, numbers: Array, sizes: Array) -> Array:
        """Make room for blobs, in place of those that had the same numbers; return the addresses to
        write them to.
        """
        self.free(numbers)
        ends, done = np.cumsum(sizes), 0
        while done < len(numbers):
            placed = ends[done - 1] if done else 0
            room = (
                len(self._pieces[self._current]) - self._used - PADDING
                if self._current >= 0
                else -1
            )
            last = int(np.searchsorted(ends, placed + room, "right"))
            if last <= done:
                self._begin_piece(int(sizes[done]) + PADDING)
                continue
            some = slice(done, last)
            self.addresses[numbers[some]] = (
                self._base + self._used + ends[some] - sizes[some] - placed
            )
            self._piece_of[numbers[some]] = self._current
            self._live[self._current] += last - done
            self._used += int(ends[last - 1] - placed)
            done = last
        self.sizes[numbers] = sizes
        return self.addresses[numbers]

    def free(self, numbers: Array) -> None:
        """Forget blobs; numbers that have none are passed over."""
        held = numbers[self.addresses[numbers] != 0]
        for piece in self._piece_of[held].tolist():
            self._live[piece] -= 1
            if not self._live[piece] and piece != self._current:
                self._spare = self._pieces.pop(piece)
                del self._live[piece]
        self.addresses[held] = 0
        self.sizes[held] = 0

    def compact(self) -> None:
        """Move blobs out of pieces that are less than half full, if more than half of all memory
        holds none.
        """
        if (
            sum(map(len, self._pieces.values()))
            <= 2 * int(self.sizes.sum(dtype=np.int64)) + 2 * SMALLEST
        ):
            return
        held = np.flatnonzero(self.addresses)
        for piece in [number for number in self._pieces if number != self._current]:
            numbers = held[self._piece_of[held] == piece]
            sizes = self.sizes[numbers]
            if 2 * int(sizes.sum(dtype=np.int64)) >= len(self._pieces[piece]):
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
        piece = self._pieces[int(self._piece_of[number])]
        begin = int(self.addresses[number]) - piece.ctypes.data
        return piece[begin : begin + size]

    def nbytes(self) -> int:
        """Return the bytes held: pieces, full or not, and tables."""
        pieces = sum(len(piece) for piece in self._pieces.values()) + (
            0 if self._spare is None else len(self._spare)
        )
        return pieces + self.addresses.nbytes + self.sizes.nbytes + self._piece_of.nbytes

    def _begin_piece(self, least: int) -> None:
        if self._current >= 0 and not self._live[self._current]:
            del self._pieces[self._current], self._live[self._current]
        held = int(self.sizes.sum(dtype=np.int64))
        size = max(least, min(max(held // SHARE, SMALLEST), LARGEST))
        piece, self._spare = self._spare, None
        if piece is None or len(piece) < least:
            piece = np.zeros(size, np.uint8)
        self._current, self._used = self._next, 0
        self._next += 1
        self._base = piece.ctypes.data
        self._pieces[self._current], self._live[self._current] = piece, 0
