"""Codecs that know rows: an array whose first two axes are environments and steps, any of which can
be read alone.

A chunk holds whole rows, and its rows are coded in groups, each by itself: to read one environment
of a chunk is to decode one group of it. `time-delta-zstd` stores what changes from step to step.
Most of what a drone measures does not change at all (a ray that hits nothing, a goal that stays),
and so each group has a map of the numbers that did, one bit each, and then only those numbers, byte
plane by byte plane. `rows-zstd` stores the bytes as they are: pictures and grids, in which
neighbours resemble each other more than moments do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from navrl.errors import ContainerError
from navrl.io.container.coders import (
    CODED,
    MAX_CHUNK_BYTES,
    Bytes,
    compress_all,
    decompress_all,
    padding_for,
)
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF

__all__ = ["RowCodec", "RowPlan", "Rows", "plan_rows"]

# of rows: what has to be read, and its checksum taken, for the least that can be asked for
_CHUNK_BYTES = 1 << 17
# that a small array is cut into: with fewer, more is read for one row; with more, the whole is read
# more slowly
_CHUNKS = 16
_GROUP_BYTES = 1 << 14  # of rows: what has to be decoded for it
# of small rows: what has to be decoded for one of them, where nobody would notice a smaller file
_GROUP_ENVS = 4
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
        return Rows(self.row_bytes, self.steps, self.group, position // self.row_bytes)

    def groups(self, size: int) -> int:
        """Return how many groups a chunk of so many bytes has."""
        return -(-size // (self.row_bytes * self.group))

    def begins(self, count: int) -> Any:
        """Return which of a chunk's rows hold no differences: the first of a group, and those of an
        episode's first step.
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
    """Return how to cut an array of (environments, steps, ...) into chunks of rows; None if it has
    none, or huge ones.
    """
    if len(shape) < 2 or 0 in shape:
        return None
    steps, row_bytes = shape[1], math.prod(shape[2:]) * ITEM_BYTES[element]
    wished = min(_CHUNK_BYTES, shape[0] * steps * row_bytes // _CHUNKS)
    group = max(1, min(round(_GROUP_BYTES / row_bytes), _GROUP_ENVS * steps))
    if group > steps // 2:
        group = max(1, round(group / steps)) * steps  # whole environments
    for rows in (group, 1):
        unit = rows * row_bytes
        unit *= 16 // math.gcd(16, unit)  # all chunks but the last are a multiple of 16 bytes
        if unit <= MAX_CHUNK_BYTES:
            return RowPlan(unit * max(1, wished // unit), Rows(row_bytes, steps, rows))
    return None


@dataclass(frozen=True)
class RowCodec:
    """Stores the rows of a chunk in groups; with `differences`, what changes from one row to the
    next.
    """

    name: str
    differences: bool = False

    def encode(
        self,
        chunk: Bytes,
        element: str,
        level: int | None,
        scratch: Bytes,
        rows: Rows | None = None,
    ) -> list[Any]:
        """Return buffers whose concatenation is the stored form of a chunk; some may be views of
        it.
        """
        rows = rows or _numbers(chunk, element)
        kernels = compiled() if chunk.size else None
        if kernels is not None:
            coded = kernels.encode_chunk(
                chunk, self._cut(element, rows), _LEVEL if level is None else level, scratch
            )
            if coded is not None:
                return [coded, *padding_for(chunk.size, coded.size)]
        return self.encode_readably(chunk, element, level, rows)

    def encode_readably(
        self, chunk: Bytes, element: str, level: int | None, rows: Rows
    ) -> list[Any]:
        """Do what `encode` does, in NumPy: the same bytes, more slowly."""
        words: list[int] = []
        buffers: list[Any] = []
        parts = [part for group in self._split(chunk, element, rows) for part in group]
        frames = iter(
            compress_all([part for part in parts if part.size], _LEVEL if level is None else level)
        )
        for part in parts:
            coded = next(frames) if part.size else b""
            pays = 0 < len(coded) < part.size
            buffers.append(coded if pays else part)
            words.append(CODED | len(coded) if pays else part.size)
        stored = 4 * len(words) + sum(word & ~CODED for word in words)
        return [np.array(words, "<u4"), *buffers, *padding_for(chunk.size, stored)]

    def _split(self, chunk: Bytes, element: str, rows: Rows) -> Iterable[list[Bytes]]:
        """Yield the parts of each group."""
        group_bytes = rows.group * rows.row_bytes
        if not self.differences:
            yield from (
                [chunk[start : start + group_bytes]] for start in range(0, chunk.size, group_bytes)
            )
            return
        width = _width(element)
        # (rows, numbers of a row)
        numbers = chunk.view(f"<u{width}").reshape(-1, rows.row_bytes // width)
        changes = np.empty_like(numbers)
        np.subtract(numbers[1:], numbers[:-1], out=changes[1:])
        begins = rows.begins(len(numbers))
        changes[begins] = numbers[begins]
        for first, count, lines in _alike(len(numbers), rows.group):
            some: Any = changes[first * rows.group :][: count * lines].reshape(count, lines, -1)
            # what one number does in time, side by side
            some = np.ascontiguousarray(some.swapaxes(1, 2)).reshape(count, -1)
            changed = some != 0
            maps, ends = np.packbits(changed, axis=1), np.cumsum(np.count_nonzero(changed, axis=1))
            # several times as fast as a mask
            values = some.reshape(-1).take(np.flatnonzero(changed))
            planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, width).T[::-1])
            for number, (start, stop) in enumerate(itertools.pairwise([0, *ends.tolist()])):
                yield [maps[number], *planes[:, start:stop]]

    def decode(
        self,
        stored: Bytes,
        chunk: Bytes,
        element: str,
        rows: Rows | None = None,
        groups: Iterable[int] | None = None,
    ) -> None:
        """Fill `chunk` from its stored form, or only these groups of its rows.

        Raises:
            ContainerError: the stored form is not one that `encode` could have made.
        """
        rows = rows or _numbers(chunk, element)
        kernels = compiled() if chunk.size else None
        if kernels is not None:
            chosen = range(rows.groups(chunk.size)) if groups is None else groups
            numbers = (
                np.arange(chosen.start, chosen.stop)
                if isinstance(chosen, range)
                else np.fromiter(chosen, np.int64)
            )
            if kernels.decode_chunk(stored, chunk, self._cut(element, rows), numbers):
                return
        # and say what is wrong, where something is
        self.decode_readably(stored, chunk, element, rows, groups)

    def decode_readably(
        self, stored: Bytes, chunk: Bytes, element: str, rows: Rows, groups: Iterable[int] | None
    ) -> None:
        """Do what `decode` does, in NumPy."""
        count = rows.groups(chunk.size)
        parts = _Parts(stored, count * (_width(element) + 1 if self.differences else 1))
        wanted = np.arange(count) if groups is None else np.fromiter(groups, np.int64)
        if not self.differences:
            size = rows.group * rows.row_bytes
            outputs = [chunk[number * size :][:size] for number in wanted.tolist()]
            for output, part in zip(
                outputs,
                parts.read(wanted.tolist(), [output.size for output in outputs]),
                strict=True,
            ):
                np.copyto(output, part)
            return
        numbers = chunk.view(f"<u{_width(element)}").reshape(-1, rows.row_bytes // _width(element))
        for first, number, lines in _alike(len(numbers), rows.group):
            chosen = wanted[(wanted >= first) & (wanted < first + number)]
            if len(chosen):
                output = numbers[first * rows.group :][: number * lines].reshape(number, lines, -1)
                _add_up(parts, chosen, output, chosen - first, rows)

    def _cut(self, element: str, rows: Rows) -> tuple[int, int, int, int, int, int]:
        """Return what the kernels have to know of a chunk."""
        return (
            rows.row_bytes,
            _width(element),
            rows.steps,
            rows.group,
            rows.first,
            int(self.differences),
        )


@cache
def compiled() -> Any:
    """Return the compiled form of these codecs; None where numba is missing, or zstd's functions
    are hidden.
    """
    try:
        from navrl.io.container import row_kernels
    except ImportError:
        return None
    return row_kernels if row_kernels.zstd_functions() is not None else None


def _alike(count: int, group: int) -> Iterable[tuple[int, int, int]]:
    """Yield the groups of `count` rows that are equally long, together: the first, how many, and
    their rows.
    """
    whole, left = divmod(count, group)
    if whole:
        yield 0, whole, group
    if left:
        yield whole, 1, left


def _add_up(parts: _Parts, groups: Any, output: Any, places: Any, rows: Rows) -> None:
    """Fill places of the output, (groups, rows, numbers of a row), from the numbers of these groups
    that changed.
    """
    (_, lines, length), unsigned = output.shape, output.dtype
    width, count = unsigned.itemsize, lines * length
    first = groups * (width + 1)
    bits = np.stack(parts.read(first.tolist(), [-(-count // 8)] * len(groups)))
    changed = np.unpackbits(bits, axis=1, count=count).view(bool)
    changes = np.zeros(len(groups) * count, unsigned)
    counts = np.count_nonzero(changed, axis=1).tolist()
    values = np.empty((sum(counts), width), np.uint8)
    planes = parts.read(
        (first + 1 + np.arange(width)[:, None]).reshape(-1).tolist(), counts * width
    )
    for plane in range(width):
        np.concatenate(
            planes[plane * len(groups) :][: len(groups)], out=values[:, width - 1 - plane]
        )
    changes[np.flatnonzero(changed)] = values.reshape(-1).view(unsigned)
    if lines % rows.steps == 0 and not ((rows.first + groups * rows.group) % rows.steps).any():
        changes = changes.reshape(len(groups), length, -1, rows.steps)
        np.add.accumulate(changes, axis=3, dtype=unsigned, out=changes)
    else:
        changes = changes.reshape(len(groups), length, lines)
        for number, group in enumerate(groups.tolist()):
            begins = [
                *replace(rows, first=rows.first + group * rows.group).begins(lines).tolist(),
                lines,
            ]
            for start, stop in itertools.pairwise(begins):
                part = changes[number, :, start:stop]
                part[...] = np.add.accumulate(part, axis=1, dtype=unsigned)
    output[places] = changes.reshape(len(groups), length, lines).swapaxes(1, 2)


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

    def read(self, numbers: Sequence[int], sizes: Sequence[int]) -> list[Bytes]:
        """Return some parts, which must have these sizes."""
        words, ends = self._words[numbers].tolist(), self._ends[numbers].tolist()
        parts = [
            self._stored[end - (word & ~CODED) : end] for word, end in zip(words, ends, strict=True)
        ]
        coded = [place for place, word in enumerate(words) if word & CODED]
        for place, whole in zip(
            coded,
            decompress_all([parts[place] for place in coded], [sizes[place] for place in coded]),
            strict=True,
        ):
            parts[place] = whole
        for part, size in zip(parts, sizes, strict=True):
            if part.size != size:
                raise ContainerError(f"a part of {part.size} bytes where {size} were expected")
        return parts


def _width(element: str) -> int:
    return ITEM_BYTES[SCALAR_OF.get(element, element)]


def _numbers(chunk: Bytes, element: str) -> Rows:
    """Return the rows of a chunk of which nothing is known: every number is one, and they follow
    one another in time.
    """
    width = _width(element)
    return Rows(width, chunk.size // width, chunk.size // width)
