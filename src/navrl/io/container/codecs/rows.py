"""The codecs `rows-zstd` and `time-delta-zstd`: arrays of (environments, steps, ...), read in part.

`time-delta-zstd` stores what changes from step to step. Most of what a drone measures does not
change at all (a ray that hits nothing, a goal that stays), so each group has a bitmap of the
numbers that did, followed by those numbers only, byte plane by byte plane. `rows-zstd` stores the
bytes as they are: for images and grids, whose neighbouring pixels are more alike than successive
frames.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from navrl.io.container.codecs.chunk_parts import StoredParts, padding_for, store_parts
from navrl.io.container.codecs.codec import Bytes, ChunkCodec, register
from navrl.io.container.codecs.compressors import compress_all, decompress_all
from navrl.io.container.codecs.row_plan import Rows
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF

__all__ = ["ROW_BYTES", "TIME_DELTA", "RowCodec", "compiled"]

_LEVEL = 1


@dataclass(frozen=True)
class RowCodec(ChunkCodec):
    """Stores the rows of a chunk in groups; with `differences`, what changes from row to row."""

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
        """Return the parts of all groups; without `rows`, every number is a row of its own."""
        rows = rows or _single_numbers(chunk, element)
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
        """Return what `encode` returns, computed in NumPy: the same bytes, more slowly."""
        parts = [part for group in self._split(chunk, element, rows) for part in group]
        frames = iter(
            compress_all([part for part in parts if part.size], _LEVEL if level is None else level)
        )
        coded = ((part, next(frames) if part.size else b"") for part in parts)
        return store_parts(chunk.size, coded)

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
        starts = rows.starts(len(numbers))
        changes[starts] = numbers[starts]
        for first, count, lines in _equal_groups(len(numbers), rows.group):
            some: Any = changes[first * rows.group :][: count * lines].reshape(count, lines, -1)
            # the values of one number over time, side by side
            some = np.ascontiguousarray(some.swapaxes(1, 2)).reshape(count, -1)
            changed = some != 0
            maps, ends = np.packbits(changed, axis=1), np.cumsum(np.count_nonzero(changed, axis=1))
            # several times as fast as a boolean mask
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
        rows = rows or _single_numbers(chunk, element)
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
        # names what is wrong with the chunk
        self.decode_readably(stored, chunk, element, rows, groups)

    def decode_readably(
        self, stored: Bytes, chunk: Bytes, element: str, rows: Rows, groups: Iterable[int] | None
    ) -> None:
        """Do what `decode` does, computed in NumPy."""
        count = rows.groups(chunk.size)
        parts = StoredParts(stored, count * (_width(element) + 1 if self.differences else 1))
        wanted = np.arange(count) if groups is None else np.fromiter(groups, np.int64)
        if not self.differences:
            size = rows.group * rows.row_bytes
            outputs = [chunk[number * size :][:size] for number in wanted.tolist()]
            sizes = [output.size for output in outputs]
            found = parts.read(wanted.tolist(), sizes, decompress_all)
            for output, part in zip(outputs, found, strict=True):
                np.copyto(output, part)
            return
        numbers = chunk.view(f"<u{_width(element)}").reshape(-1, rows.row_bytes // _width(element))
        for first, number, lines in _equal_groups(len(numbers), rows.group):
            chosen = wanted[(wanted >= first) & (wanted < first + number)]
            if len(chosen):
                output = numbers[first * rows.group :][: number * lines].reshape(number, lines, -1)
                _add_up(parts, chosen, output, chosen - first, rows)

    def _cut(self, element: str, rows: Rows) -> tuple[int, int, int, int, int, int]:
        """Return the layout of a chunk as the kernels take it."""
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
    """Return the compiled kernels; None without numba, or where zstandard hides libzstd."""
    try:
        from navrl.io.container.codecs import row_kernels
    except ImportError:
        return None
    return row_kernels if row_kernels.zstd_functions() is not None else None


def _equal_groups(count: int, group: int) -> Iterable[tuple[int, int, int]]:
    """Yield groups of equal length together: number of the first, how many, and rows of each."""
    whole, left = divmod(count, group)
    if whole:
        yield 0, whole, group
    if left:
        yield whole, 1, left


def _add_up(parts: StoredParts, groups: Any, output: Any, places: Any, rows: Rows) -> None:
    """Fill places of the output, (groups, rows, numbers of a row), by summing the differences."""
    (_, lines, length), unsigned = output.shape, output.dtype
    width, count = unsigned.itemsize, lines * length
    first = groups * (width + 1)
    bits = np.stack(parts.read(first.tolist(), [-(-count // 8)] * len(groups), decompress_all))
    changed = np.unpackbits(bits, axis=1, count=count).view(bool)
    changes = np.zeros(len(groups) * count, unsigned)
    counts = np.count_nonzero(changed, axis=1).tolist()
    values = np.empty((sum(counts), width), np.uint8)
    numbers = (first + 1 + np.arange(width)[:, None]).reshape(-1).tolist()
    planes = parts.read(numbers, counts * width, decompress_all)
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
            starts = replace(rows, first=rows.first + group * rows.group).starts(lines)
            for start, stop in itertools.pairwise([*starts.tolist(), lines]):
                part = changes[number, :, start:stop]
                part[...] = np.add.accumulate(part, axis=1, dtype=unsigned)
    output[places] = changes.reshape(len(groups), length, lines).swapaxes(1, 2)


def _width(element: str) -> int:
    return ITEM_BYTES[SCALAR_OF.get(element, element)]


def _single_numbers(chunk: Bytes, element: str) -> Rows:
    """Return the rows of a chunk of unknown layout: every number is a step of one environment."""
    width = _width(element)
    return Rows(width, chunk.size // width, chunk.size // width)


ROW_BYTES = register(RowCodec("rows-zstd"))
TIME_DELTA = register(RowCodec("time-delta-zstd", differences=True))
