"""Codecs that know rows: an array whose first two axes are environments and steps, any of which can be read alone.

A chunk holds whole rows, and its rows are coded in groups, each by itself: to read one environment of a chunk is to
decode one group of it. `time-delta-zstd` stores what changes from step to step. Most of what a drone measures does not
change at all (a ray that hits nothing, a goal that stays), and so each group has a map of the numbers that did, one bit
each, and then only those numbers, byte plane by byte plane. `rows-zstd` stores the bytes as they are: pictures and
grids, in which neighbours resemble each other more than moments do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from navrl.errors import ContainerError
from navrl.io.coders import CODED, MAX_CHUNK_BYTES, ZSTD, Bytes, padding_for
from navrl.io.element_types import ITEM_BYTES, SCALAR_OF

__all__ = ["RowCodec", "RowPlan", "Rows", "plan_rows"]

_CHUNK_BYTES = 1 << 18  # of rows: what has to be read, and its checksum taken, for the least that can be asked for
_GROUP_BYTES = 1 << 15  # of rows: what has to be decoded for it
_LEVEL = 1


@dataclass(frozen=True)
class Rows:
    """How the bytes of a chunk fall into rows."""

    row_bytes: int
    steps: int  # rows that follow one another in time; then the next environment begins
    group: int  # rows that are coded together
    first: int = 0  # the number of the chunk's first row in the array

    def at(self, position: int) -> Rows:
        """Return the rows of the chunk that begins at a byte of the array."""
        return replace(self, first=position // self.row_bytes)

    def groups(self, size: int) -> int:
        """Return how many groups a chunk of so many bytes has."""
        return -(-size // (self.row_bytes * self.group))

    def begins(self, count: int) -> Any:
        """Return which of a chunk's rows hold no differences: the first of a group, and those of an episode's first step."""
        numbers = np.arange(count)
        return np.flatnonzero((numbers % self.group == 0) | ((numbers + self.first) % self.steps == 0))


@dataclass(frozen=True)
class RowPlan:
    """How an array is cut: the bytes of its chunks, and the rows in them."""

    chunk_bytes: int
    rows: Rows


def plan_rows(shape: Sequence[int], element: str) -> RowPlan | None:
    """Return how to cut an array of (environments, steps, ...) into chunks of rows; None if it has none, or huge ones."""
    if len(shape) < 2 or 0 in shape:
        return None
    steps, row_bytes = shape[1], math.prod(shape[2:]) * ITEM_BYTES[element]
    group = max(1, round(_GROUP_BYTES / row_bytes))
    if group > steps // 2:
        group = max(1, round(group / steps)) * steps  # whole environments
    for rows in (group, 1):
        unit = rows * row_bytes
        unit *= 16 // math.gcd(16, unit)  # all chunks but the last are a multiple of 16 bytes
        if unit <= MAX_CHUNK_BYTES:
            return RowPlan(unit * max(1, _CHUNK_BYTES // unit), Rows(row_bytes, steps, rows))
    return None


@dataclass(frozen=True)
class RowCodec:
    """Stores the rows of a chunk in groups; with `differences`, what changes from one row to the next."""

    name: str
    differences: bool = False

    def encode(
        self, chunk: Bytes, element: str, level: int | None, scratch: Bytes, rows: Rows | None = None
    ) -> list[Any]:  # fmt: skip
        """Return buffers whose concatenation is the stored form of a chunk; some may be views of it."""
        rows = rows or _numbers(chunk, element)
        words: list[int] = []
        buffers: list[Any] = []
        for parts in self._split(chunk, element, rows):
            for part in parts:
                coded = ZSTD.compress(part, _LEVEL if level is None else level) if part.size else b""
                pays = 0 < len(coded) < part.size
                buffers.append(coded if pays else part)
                words.append(CODED | len(coded) if pays else part.size)
        stored = 4 * len(words) + sum(word & ~CODED for word in words)
        return [np.array(words, "<u4"), *buffers, *padding_for(chunk.size, stored)]

    def _split(self, chunk: Bytes, element: str, rows: Rows) -> Iterable[list[Bytes]]:
        """Yield the parts of each group."""
        group_bytes = rows.group * rows.row_bytes
        if not self.differences:
            yield from ([chunk[start : start + group_bytes]] for start in range(0, chunk.size, group_bytes))
            return
        width = _width(element)
        numbers = chunk.view(f"<u{width}").reshape(-1, rows.row_bytes // width)  # (rows, numbers of a row)
        changes = np.empty_like(numbers)
        np.subtract(numbers[1:], numbers[:-1], out=changes[1:])
        begins = rows.begins(len(numbers))
        changes[begins] = numbers[begins]
        for start in range(0, len(numbers), rows.group):
            group = changes[start : start + rows.group].T.ravel()  # what one number does in time lies side by side
            changed = group != 0
            planes = np.ascontiguousarray(group[changed].view(np.uint8).reshape(-1, width).T[::-1])
            yield [np.packbits(changed), *planes]

    def decode(
        self, stored: Bytes, chunk: Bytes, element: str, rows: Rows | None = None, groups: Iterable[int] | None = None
    ) -> None:  # fmt: skip
        """Fill `chunk` from its stored form, or only these groups of its rows.

        Raises:
            ContainerError: the stored form is not one that `encode` could have made.
        """
        rows = rows or _numbers(chunk, element)
        count = rows.groups(chunk.size)
        parts = _Parts(stored, count * (_width(element) + 1 if self.differences else 1))
        group_bytes = rows.group * rows.row_bytes
        for number in range(count) if groups is None else groups:
            output = chunk[number * group_bytes : (number + 1) * group_bytes]
            if self.differences:
                _add_up(parts, number, output, element, replace(rows, first=rows.first + number * rows.group))
            else:
                np.copyto(output, parts.read(number, output.size))


def _add_up(parts: _Parts, number: int, output: Bytes, element: str, rows: Rows) -> None:
    """Fill the rows of one group from the numbers that changed."""
    width = _width(element)
    unsigned = np.dtype(f"<u{width}")
    numbers = output.view(unsigned).reshape(-1, rows.row_bytes // width)
    first = number * (width + 1)
    bits = parts.read(first, -(-numbers.size // 8))
    changed = np.unpackbits(bits, count=numbers.size).view(bool)
    count = int(np.count_nonzero(changed))
    values = np.empty((count, width), np.uint8)
    for place in range(width):
        values[:, width - 1 - place] = parts.read(first + 1 + place, count)
    changes = np.zeros(numbers.size, unsigned)
    changes[changed] = values.reshape(-1).view(unsigned)
    changes = changes.reshape(numbers.shape[::-1])  # (numbers of a row, rows)
    if len(numbers) % rows.steps == 0 and rows.first % rows.steps == 0:  # whole environments, all at once
        changes = changes.reshape(len(changes), -1, rows.steps)
        whole = np.add.accumulate(changes, axis=2, dtype=unsigned, out=changes)
        np.copyto(numbers, whole.reshape(len(changes), -1).T)
        return
    begins = [*rows.begins(len(numbers)), len(numbers)]
    for start, stop in itertools.pairwise(begins):
        np.copyto(numbers[start:stop], np.add.accumulate(changes[:, start:stop], axis=1, dtype=unsigned).T)


class _Parts:
    """The parts of a stored chunk, each by its number."""

    def __init__(self, stored: Bytes, count: int) -> None:
        table = 4 * count
        if stored.size < table:
            raise ContainerError(f"{stored.size} bytes stored, expected at least {table}")
        self._stored = stored
        self._words = stored[:table].view("<u4")
        self._ends = table + np.cumsum(self._words & np.uint32(CODED - 1), dtype=np.int64)
        end = int(self._ends[-1])
        if end > stored.size or stored[end:].any():
            raise ContainerError(f"parts of {end} bytes and padding in {stored.size} bytes stored")

    def read(self, number: int, size: int) -> Bytes:
        """Return a part, which must have this size."""
        word, end = int(self._words[number]), int(self._ends[number])
        part = self._stored[end - (word & ~CODED) : end]
        if word & CODED:
            return ZSTD.decompress(part, size)
        if part.size != size:
            raise ContainerError(f"a part of {part.size} bytes where {size} were expected")
        return part


def _width(element: str) -> int:
    return ITEM_BYTES[SCALAR_OF.get(element, element)]


def _numbers(chunk: Bytes, element: str) -> Rows:
    """Return the rows of a chunk of which nothing is known: every number is one, and they follow one another in time."""
    width = _width(element)
    return Rows(width, chunk.size // width, chunk.size // width)
