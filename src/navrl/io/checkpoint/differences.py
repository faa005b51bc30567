"""Opt-in differential checkpoints: store what changed since the one before.

Pays where saves are a few optimiser steps apart, and not at a thousand. The numbers of an array,
seen as whole numbers, are subtracted from those of the base; small differences of either sign
become small unsigned numbers, whose upper bytes are zeros that compress well. Reading adds the
differences up again, exactly.

A chain of such files is only as good as its first: chains are bounded, a base is identified by its
checksum, what a kept file builds on is not pruned, what the chain being written builds on is not
overwritten by it, and a base that is missing or another is an error that names it.
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
from navrl.io.container.index import Index, read_index
from navrl.io.container.snapshot import Snapshot

__all__ = ["DeltaChain", "add_bases", "base_of", "verify_bases"]

MAX_CHAIN = 64
_FILE = re.compile(r"[^/\0.][^/\0]*")
_CHECKSUM = re.compile(r"[0-9a-f]{16}")

# The whole numbers as which elements of so many bytes are subtracted and stored.
_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def _as_numbers(data: Bytes, element: str) -> Any:
    return data.view(f"<u{ITEM_BYTES[element]}")


def _subtract(data: Bytes, base: Bytes, element: str) -> None:
    """Replace the base by the difference to it, folded so that small ones of either sign are small
    numbers.
    """
    numbers, difference = _as_numbers(data, element), _as_numbers(base, element)
    bits = 8 * difference.itemsize
    np.subtract(numbers, difference, out=difference)
    sign = np.right_shift(difference.view(f"<i{difference.itemsize}"), bits - 1).view(
        difference.dtype
    )
    np.left_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, sign, out=difference)


def _unfold(data: Bytes, element: str) -> None:
    """Undo the folding of a difference, in place."""
    folded = _as_numbers(data, element)
    sign = np.negative(np.bitwise_and(folded, 1))
    np.right_shift(folded, 1, out=folded)
    np.bitwise_xor(folded, sign, out=folded)


# Writing.


@dataclass(frozen=True)
class _Base:
    """The last file that was written, and the copy of its state that the next one is compared
    with.
    """

    path: Path
    checksum: int
    snapshot: Snapshot
    sources: Mapping[str, ArraySource]
    chain: tuple[Path, ...]  # the files that reading this one needs, itself included


class DeltaChain:
    """Stores each save as the difference to the one before, and starts anew after `length`
    files.
    """

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
        """Have the differences written, or everything where there is no base, and keep the copy for
        the next save.

        Raises:
            CheckpointError: later checkpoints build on what stands at `path`.
        """
        base = self._base
        if base is not None and path in base.chain[:-1]:  # nothing builds on the last one yet
            raise CheckpointError(f"{path}: other checkpoints build on it; save under another name")
        chain: tuple[Path, ...] = (path,)
        to_write = sources
        self._base = None  # used up: the memory of the old copy becomes the differences
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
            return False  # pruned, replaced or damaged: nothing to build on


def _differences(
    base: _Base, sources: Sequence[ArraySource], document: dict[str, Any]
) -> list[ArraySource]:
    """Return the sources, those that the base has too as differences; the document then names the
    base.
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
    """What a checkpoint builds on: a file beside it, and the element types of the arrays that are
    differences.
    """

    file: str
    checksum: int
    elements: dict[str, str]


def base_of(index: Index) -> Base | None:
    """Return what a checkpoint builds on, or None.

    Raises:
        ContainerError: the base is not described as it must be, or would lie in another folder.
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
        if fits and _FILE.fullmatch(file) and _CHECKSUM.fullmatch(checksum):
            return Base(file, int(checksum, 16), elements)
    except (TypeError, ValueError, LookupError):
        pass
    raise ContainerError(f"{index.path}: invalid base {str(base)[:80]}")


def add_bases(index: Index, outputs: Mapping[str, Bytes], workers: int | None) -> None:
    """Add up the differences in `outputs` (arrays by name) with the files that they build on, in
    place.

    Raises:
        ContainerError: a base is missing, damaged, or not the file that it was.
    """
    base = base_of(index)
    left = dict(base.elements) if base else {}
    for name, element in left.items():
        _unfold(outputs[name], element)
    for _ in range(MAX_CHAIN):
        if base is None or not left:
            return
        with _open_base(index, base) as container:
            base = base_of(container.index)
            folded = base.elements if base else {}
            _add(container, left, folded, outputs, workers)
            left = {name: element for name, element in left.items() if name in folded}
    raise ContainerError(f"{index.path}: builds on more than {MAX_CHAIN} files")


def verify_bases(index: Index, workers: int | None) -> None:
    """Check every byte of the files that a checkpoint builds on.

    Raises:
        ContainerError: a base is missing, damaged, or not the file that it was.
    """
    base = base_of(index)
    for _ in range(MAX_CHAIN):
        if base is None:
            return
        with _open_base(index, base) as container:
            container.verify(workers=workers)
            base = base_of(container.index)
    raise ContainerError(f"{index.path}: builds on more than {MAX_CHAIN} files")


def _open_base(index: Index, base: Base) -> Container:
    path = index.path.parent / base.file
    if not os.path.isfile(path):
        raise ContainerError(f"{index.path}: builds on {base.file:.255}, which is missing")
    container = Container(path)
    if container.index.checksum != base.checksum:
        container.close()
        raise ContainerError(
            f"{index.path}: builds on {base.file}, but that is not the file that it was"
        )
    return container


def _add(
    container: Container,
    elements: Mapping[str, str],
    folded: Mapping[str, str],
    outputs: Mapping[str, Bytes],
    workers: int | None,
) -> None:
    """Add the arrays of a base, themselves differences or not, to the outputs of the same names."""
    entries = {entry.name: entry for entry in container.index.arrays}
    for name, element in elements.items():
        entry = entries.get(name)
        if (
            entry is None
            or folded.get(name, entry.element) != element
            or entry.size != outputs[name].size
        ):
            raise ContainerError(
                f"{container.index.path}: {name} is not what later checkpoints build on"
            )
        (data,) = container.read([entry], [np.empty(entry.size, np.uint8)], workers=workers)
        if name in folded:
            _unfold(data, element)
        total = _as_numbers(outputs[name], element)
        np.add(total, _as_numbers(data, element), out=total)
