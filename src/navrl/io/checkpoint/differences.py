"""Differential checkpoints, opt-in: store the difference to the checkpoint before.

Pays if saves are a few optimiser steps apart; at a thousand steps it gains nothing. The elements of
an array are read as integers and subtracted from those of the base. Zigzag coding turns small
differences of either sign into small unsigned numbers, whose zero upper bytes compress well.
Reading adds the differences up again, exactly.

Every file of a chain needs all files before it. So chains are bounded, a base is identified by its
checksum, a base of a kept file is not pruned, a chain does not overwrite its own bases, and a base
that is missing or replaced is an error that names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from navrl.errors import CheckpointError, ContainerError
from navrl.io.container.codecs import Bytes
from navrl.io.container.container_reader import Container
from navrl.io.container.container_writer import ArraySource, Written
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF
from navrl.io.container.index import CHECKSUM, Index, read_index
from navrl.io.container.snapshot import Snapshot

__all__ = ["DeltaChain", "add_bases", "base_of", "verify_bases"]

MAX_CHAIN = 64
_FILE = re.compile(r"[^/\0.][^/\0]*")

# The integer type in which elements of this many bytes are subtracted and stored.
_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def _as_numbers(data: Bytes, element: str) -> Any:
    return data.view(f"<u{ITEM_BYTES[element]}")


def _subtract(data: Bytes, base: Bytes, element: str) -> None:
    """Replace the base by the zigzag-coded difference to it."""
    numbers, difference = _as_numbers(data, element), _as_numbers(base, element)
    bits = 8 * difference.itemsize
    np.subtract(numbers, difference, out=difference)
    sign = np.right_shift(difference.view(f"<i{difference.itemsize}"), bits - 1).view(
        difference.dtype
    )
    np.left_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, sign, out=difference)


def _undo_zigzag(data: Bytes, element: str) -> None:
    """Turn zigzag-coded differences into differences, in place."""
    coded = _as_numbers(data, element)
    sign = np.negative(np.bitwise_and(coded, 1))
    np.right_shift(coded, 1, out=coded)
    np.bitwise_xor(coded, sign, out=coded)


# Writing.


@dataclass(frozen=True)
class _Base:
    """The last file of a chain, and the copy of its state to compare the next one with."""

    path: Path
    checksum: int
    snapshot: Snapshot
    sources: Mapping[str, ArraySource]
    chain: tuple[Path, ...]  # the files needed to read this one, itself included


class DeltaChain:
    """Stores each save as the difference to the one before; a chain has at most `length` files."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._base: _Base | None = None

    def write(
        self,
        path: Path,
        snapshot: Snapshot,
        sources: Sequence[ArraySource],
        document: dict[str, Any],
        write: Callable[[Sequence[ArraySource]], Written],
    ) -> Written:
        """Write the differences, or everything if there is no base, and keep the copy.

        Raises:
            CheckpointError: later checkpoints of the chain need the file at `path`.
        """
        base = self._base
        if base is not None and path in base.chain[:-1]:  # the last one is no base yet
            raise CheckpointError(f"{path}: later checkpoints need it; save under another name")
        chain: tuple[Path, ...] = (path,)
        to_write = sources
        self._base = None  # its memory is overwritten with the differences
        try:
            if base is not None and self._fits(base, path):
                to_write = _differences(base, sources, document)
                chain = (*base.chain, path)
            written = write(to_write)
        finally:
            if base is not None:
                base.snapshot.release()
        snapshot.keep()
        self._base = _Base(
            path, read_index(path).checksum, snapshot, {one.name: one for one in sources}, chain
        )
        return written

    def _fits(self, base: _Base, path: Path) -> bool:
        if len(base.chain) >= self._length or path.parent != base.path.parent or path == base.path:
            return False
        try:
            return read_index(base.path).checksum == base.checksum
        except (OSError, ContainerError):
            return False  # pruned, replaced or damaged


def _differences(
    base: _Base, sources: Sequence[ArraySource], document: dict[str, Any]
) -> list[ArraySource]:
    """Return the sources, as differences where the base has them too; name the base in the
    document.
    """
    written = []
    elements: dict[str, str] = {}
    for source in sources:
        before = base.sources.get(source.name)
        if (
            before is not None
            and (before.element, before.shape) == (source.element, source.shape)
            and source.element not in SCALAR_OF
        ):
            _subtract(source.data, before.data, source.element)
            elements[source.name] = source.element
            source = replace(before, element=_UNSIGNED[ITEM_BYTES[source.element]])
        written.append(source)
    document["base"] = {
        "file": base.path.name,
        "checksum": f"{base.checksum:016x}",
        "arrays": elements,
    }
    return written


# Reading.


class Base(NamedTuple):
    """The base of a checkpoint: a file beside it, and the types of the arrays stored as
    differences.
    """

    file: str
    checksum: int
    elements: dict[str, str]


def base_of(index: Index) -> Base | None:
    """Return the base of a checkpoint, or None.

    Raises:
        ContainerError: the description of the base is invalid, or points to another folder.
    """
    base = index.document.get("base")
    if base is None:
        return None
    try:
        file, checksum, elements = base["file"], base["checksum"], dict(base["arrays"])
        stored = {entry.name: entry.element for entry in index.arrays}
        fits = all(
            _UNSIGNED[ITEM_BYTES[element]] == stored[name] for name, element in elements.items()
        )
        if fits and _FILE.fullmatch(file) and CHECKSUM.fullmatch(checksum):
            return Base(file, int(checksum, 16), elements)
    except (TypeError, ValueError, LookupError):
        pass
    raise ContainerError(f"{index.path}: invalid base {str(base)[:80]}")


def add_bases(index: Index, outputs: Mapping[str, Bytes], workers: int | None) -> None:
    """Add the bases of a checkpoint to the differences in `outputs`, in place.

    Args:
        index: of the checkpoint.
        outputs: its arrays by name, as they are stored.
        workers: threads that read.

    Raises:
        ContainerError: a base is missing, damaged, or was replaced.
    """
    base = base_of(index)
    left = dict(base.elements) if base else {}
    for name, element in left.items():
        _undo_zigzag(outputs[name], element)
    for _ in range(MAX_CHAIN):
        if base is None or not left:
            return
        with _open_base(index, base) as container:
            base = base_of(container.index)
            coded = base.elements if base else {}
            _add(container, left, coded, outputs, workers)
            left = {name: element for name, element in left.items() if name in coded}
    raise ContainerError(f"{index.path}: needs more than {MAX_CHAIN} files")


def verify_bases(index: Index, workers: int | None) -> None:
    """Check every byte of the bases of a checkpoint.

    Raises:
        ContainerError: a base is missing, damaged, or was replaced.
    """
    base = base_of(index)
    for _ in range(MAX_CHAIN):
        if base is None:
            return
        with _open_base(index, base) as container:
            container.verify(workers=workers)
            base = base_of(container.index)
    raise ContainerError(f"{index.path}: needs more than {MAX_CHAIN} files")


def _open_base(index: Index, base: Base) -> Container:
    path = index.path.parent / base.file
    if not os.path.isfile(path):
        raise ContainerError(f"{index.path}: needs {base.file:.255}, which is missing")
    container = Container(path)
    if container.index.checksum != base.checksum:
        container.close()
        raise ContainerError(f"{index.path}: needs {base.file}, which was replaced by another file")
    return container


def _add(
    container: Container,
    elements: Mapping[str, str],
    coded: Mapping[str, str],
    outputs: Mapping[str, Bytes],
    workers: int | None,
) -> None:
    """Add the arrays of a base, which may be differences too, to the outputs of the same names."""
    entries = {entry.name: entry for entry in container.index.arrays}
    for name, element in elements.items():
        entry = entries.get(name)
        if (
            entry is None
            or coded.get(name, entry.element) != element
            or entry.size != outputs[name].size
        ):
            raise ContainerError(
                f"{container.index.path}: {name} is not the array that later checkpoints need"
            )
        (data,) = container.read([entry], [np.empty(entry.size, np.uint8)], workers=workers)
        if name in coded:
            _undo_zigzag(data, element)
        total = _as_numbers(outputs[name], element)
        np.add(total, _as_numbers(data, element), out=total)
