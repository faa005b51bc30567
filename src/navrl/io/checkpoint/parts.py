"""Sharded checkpoints: every rank writes its own part, and a main file names all parts.

The main file is written last, when the parts are on the disk, so a checkpoint appears whole or not
at all. It identifies each part by its checksum. Parts have the sequence number of the save in their
name: saving a step again does not touch the parts of the earlier save.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navrl.errors import ContainerError
from navrl.io.container.index import CHECKSUM, Index, read_index

__all__ = [
    "PART_NAME",
    "Part",
    "Parts",
    "check_part",
    "describe_part",
    "format_part_name",
    "parts_document",
    "parts_of",
    "unused_parts",
]

PART_NAME = re.compile(r"checkpoint_(\d{9,})\.(\d{1,16})\.rank(\d{1,9})\.pt")


@dataclass(frozen=True)
class Part:
    """One part, as the main file describes it."""

    file: str  # in the folder of the main file
    checksum: str  # of its index, which has the checksums of its arrays
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class Parts:
    """The parts of a checkpoint; their states continue a list of the state in the main file."""

    key: str = ""  # of that list
    parts: tuple[Part, ...] = ()

    @property
    def raw_bytes(self) -> int:
        """Bytes of the arrays of all parts."""
        return sum(part.raw_bytes for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the files of all parts."""
        return sum(part.stored_bytes for part in self.parts)


def format_part_name(step: int, sequence: int, rank: int) -> str:
    """Return the file name of a rank's part: `checkpoint_000000025.1048577.rank1.pt`."""
    return f"checkpoint_{step:09d}.{sequence}.rank{rank}.pt"


def describe_part(path: Path) -> dict[str, Any]:
    """Return what the main file says about a part that is on the disk."""
    index = read_index(path)
    return {
        "file": path.name,
        "checksum": f"{index.checksum:016x}",
        "raw_bytes": index.size,
        "stored_bytes": index.file_size,
    }


def parts_document(key: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what goes into the document of the main file."""
    return {"parts": {"key": key, "files": [*parts]}}


def parts_of(index: Index) -> Parts:
    """Return the parts that a main file names; none for a checkpoint of one file.

    Raises:
        ContainerError: the file says something impossible.
    """
    said = index.document.get("parts")
    if said is None:
        return Parts()
    try:
        key, files = said["key"], [Part(**one) for one in said["files"]]
        good = isinstance(key, str) and all(map(_is_possible, files))
    except (TypeError, KeyError):
        good = False
    if not good:
        raise ContainerError(
            f"{index.path}: its parts are {said!r:.100}, expected file, checksum and sizes of "
            "each; the file is damaged, use an older checkpoint"
        )
    return Parts(key, tuple(files))


def _is_possible(part: Part) -> bool:
    texts = isinstance(part.file, str) and isinstance(part.checksum, str)
    sizes = all(type(size) is int and size >= 0 for size in (part.raw_bytes, part.stored_bytes))
    return bool(
        texts and sizes and PART_NAME.fullmatch(part.file) and CHECKSUM.fullmatch(part.checksum)
    )


def check_part(main: Path, part: Part) -> Path:
    """Return the path of a part once its index shows that it is the one the main file names.

    Raises:
        ContainerError: it is missing, damaged, or another file.
    """
    path = main.resolve().parent / part.file  # `main` may be an alias
    try:
        found = f"{read_index(path).checksum:016x}"
    except FileNotFoundError as error:
        raise ContainerError(
            f"{main}: its part {part.file} is missing; use an older checkpoint"
        ) from error
    if found != part.checksum:
        raise ContainerError(
            f"{main}: its part {part.file} has the checksum {found}, expected {part.checksum}; "
            "the part was replaced, use an older checkpoint"
        )
    return path


def unused_parts(
    folder: str | os.PathLike[str], used: Collection[str], kept_steps: Collection[int], newest: int
) -> list[Path]:
    """Return parts that no checkpoint names: of removed ones, and of saves that were interrupted.

    Args:
        folder: of the checkpoints.
        used: file names of parts that checkpoints name.
        kept_steps: steps whose parts stay, because their main file cannot be read.
        newest: the highest sequence number of a checkpoint; saves with a higher one may be on
            their way.
    """
    unused = []
    for path in sorted(Path(folder).iterdir()):
        match = PART_NAME.fullmatch(path.name)
        if match is None or path.name in used or int(match[1]) in kept_steps:
            continue
        if int(match[2]) < newest:
            unused.append(path)
    return unused
