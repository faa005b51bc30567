"""The index of a container: what the file holds, validated before anything is allocated.

docs/format.md specifies the file. In short: a header, the stored chunks of all arrays back to
back, an index in JSON, a footer. Offsets are not stored but follow from the lengths, so none can be
wrong.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from navrl.errors import ContainerError
from navrl.io.container.atomic_files import irregular_kind
from navrl.io.container.codecs import CODECS, MAX_CHUNK_BYTES, MAX_EXPANSION, RowCodec, Rows
from navrl.io.container.element_types import ITEM_BYTES

__all__ = ["CHECKSUM", "FOOTER", "HEADER", "MAGIC", "ArrayEntry", "Index", "read_index"]

MAGIC = b"\x89NavRL\r\n"
END_MAGIC = b"\n\x1aNavRL\x98"
VERSION = 1
HEADER = struct.Struct("<8sII")  # magic, version, zero
FOOTER = struct.Struct("<QQ8s")  # bytes of the index, checksum of header + length + index, magic

MAX_INDEX_BYTES = 1 << 28
MAX_DIMENSIONS = 64
MAX_ARRAY_BYTES = 1 << 62

_TAIL = 1 << 16  # most indexes fit into one read of this many bytes at the end of the file
_HEXADECIMAL = re.compile("[0-9a-f]*")
CHECKSUM = re.compile(r"[0-9a-f]{16}")  # how another file names the checksum of an index


@dataclass(frozen=True)
class ArrayEntry:
    """One array of a container: what it is, and where and how its chunks are stored."""

    name: str
    element: str
    shape: tuple[int, ...]
    codec: str
    chunk_bytes: int
    stored: tuple[int, ...]  # bytes of each chunk in the file
    checksums: tuple[int, ...]  # of the stored bytes of each chunk
    offsets: tuple[int, ...]  # of each chunk in the file
    part_rows: int = 0  # rows that are coded together, if the codec stores rows

    @cached_property
    def size(self) -> int:
        """The bytes of the array in memory."""
        return math.prod(self.shape) * ITEM_BYTES[self.element]

    @property
    def stored_bytes(self) -> int:
        """The bytes of the array in the file."""
        return sum(self.stored)

    def chunk(self, number: int) -> slice:
        """Return where a chunk lies in the bytes of the array."""
        start = number * self.chunk_bytes
        return slice(start, min(start + self.chunk_bytes, self.size))

    @cached_property
    def rows(self) -> Rows | None:
        """How the array divides into rows, if its codec stores rows."""
        if not self.part_rows:
            return None
        return Rows(
            math.prod(self.shape[2:]) * ITEM_BYTES[self.element], self.shape[1], self.part_rows
        )


@dataclass(frozen=True)
class Index:
    """What a container holds: its arrays, and a document of JSON values."""

    path: Path
    arrays: tuple[ArrayEntry, ...]
    document: dict[str, Any]
    file_size: int
    checksum: int

    @property
    def size(self) -> int:
        """The bytes of all arrays in memory."""
        return sum(array.size for array in self.arrays)


def read_index(path: str | os.PathLike[str]) -> Index:
    """Return the index of a container without reading any array.

    Two small reads whatever the file's size, so it is safe on a whole folder.

    Raises:
        FileNotFoundError: `path` does not exist.
        ContainerError: not a container, cut short, or damaged; the message says which and where.

    >>> import torch
    >>> from navrl.io import read_index, save_checkpoint
    >>> written = save_checkpoint({"weight": torch.zeros(3, 4)}, "a.pt")
    >>> [(array.name, array.shape) for array in read_index("a.pt").arrays]
    [('weight', (3, 4))]
    """
    descriptor = open_to_read(path)
    try:
        return read_index_of(descriptor, Path(path))
    finally:
        os.close(descriptor)


@contextmanager
def naming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn OS errors while a file is read into errors that name it, except a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ContainerError(
            f"{os.fspath(path)}: cannot be read: {type(error).__name__}: {error}; check the "
            "disk, or use an older checkpoint"
        ) from error


def open_to_read(path: str | os.PathLike[str]) -> int:
    """Return a file descriptor to read from.

    Raises:
        FileNotFoundError: `path` does not exist.
        ContainerError: it cannot be opened, or is not a regular file; the message says what it is.
    """
    kind = irregular_kind(path)
    if kind is not None:
        raise ContainerError(f"{os.fspath(path)}: found {kind}, expected a file")
    with naming_file(path):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def read_index_of(descriptor: int, path: Path) -> Index:
    """Return the index of a container that is open already."""
    with naming_file(path):
        text, size, checksum = _read_text(descriptor, path)
    return _parse(path, text, size, checksum)


def _read_text(descriptor: int, path: Path) -> tuple[bytes, int, int]:
    """Return the verified text of an index, the size of the file, and the footer's checksum."""
    size = os.fstat(descriptor).st_size
    header = os.pread(descriptor, HEADER.size, 0)
    _check_header(path, header)
    if size < HEADER.size + FOOTER.size:
        raise ContainerError(
            f"{path}: cut short: {size} bytes are too few for a container; use an older checkpoint"
        )
    tail = os.pread(descriptor, min(size, _TAIL), max(0, size - _TAIL))
    length, checksum, magic = FOOTER.unpack(tail[-FOOTER.size :])
    if magic != END_MAGIC:
        raise ContainerError(
            f"{path}: cut short, or something was appended: its last bytes are no footer"
        )
    if length > MAX_INDEX_BYTES or length > size - HEADER.size - FOOTER.size:
        raise ContainerError(
            f"{path}: damaged footer: an index of {length} bytes in a file of {size}"
        )
    text = tail[-FOOTER.size - length : -FOOTER.size]
    if len(text) < length:
        text = os.pread(descriptor, length, size - FOOTER.size - length)
    if index_checksum(header, text) != checksum:
        raise ContainerError(
            f"{path}: damaged index: its checksum does not match; use an older checkpoint"
        )
    return text, size, checksum


def index_checksum(header: bytes, text: bytes) -> int:
    """Return the checksum in the footer: of the header, the index's length, and the index."""
    return xxhash.xxh3_64_intdigest(header + struct.pack("<Q", len(text)) + text)


def _check_header(path: Path, header: bytes) -> None:
    if len(header) < HEADER.size or header[: len(MAGIC)] != MAGIC:
        raise ContainerError(
            f"{path}: not a navrl container: starts with {header[:8]!r}, expected {MAGIC!r}"
        )
    _, version, zero = HEADER.unpack(header)
    if version != VERSION:
        raise ContainerError(
            f"{path}: container version {version}; this navrl reads version {VERSION}; "
            "upgrade navrl"
        )
    if zero:
        raise ContainerError(f"{path}: damaged header: {zero} where a zero must be")


def _parse(path: Path, text: bytes, file_size: int, checksum: int) -> Index:
    """Check every claim of an index against the file.

    A matching checksum rules out accidents, not malice.
    """
    try:
        whole = json.loads(text, parse_constant=_refuse_constant)
        arrays, document = whole["arrays"], whole["document"]
        if type(arrays) is not list or type(document) is not dict:
            raise ContainerError("'arrays' must be a list and 'document' an object")
        entries = []
        offset = HEADER.size
        for fields in arrays:
            entries.append(_parse_array(fields, offset))
            offset += entries[-1].stored_bytes
        if len({entry.name for entry in entries}) != len(entries):
            raise ContainerError("two arrays of the same name")
        expected = offset + len(text) + FOOTER.size
        if expected != file_size:
            raise ContainerError(
                f"the chunks add up to a file of {expected} bytes, it has {file_size}"
            )
    except KeyError as error:
        raise ContainerError(f"{path}: invalid index: {error} is missing") from error
    except (ContainerError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ContainerError(f"{path}: invalid index: {error!s:.300}") from error
    return Index(path, tuple(entries), document, file_size, checksum)


def _refuse_constant(name: str) -> None:
    raise ContainerError(f"{name} is no JSON")


def _parse_array(fields: dict[str, Any], offset: int) -> ArrayEntry:
    name = fields["name"]
    if type(name) is not str:
        raise ContainerError(f"an array's name is {name!r:.60}, expected a string")
    shown = f"array {name!r:.100}"
    stored = _integers(fields["stored"], f"{shown}: stored", least=1)
    entry = ArrayEntry(
        name=name,
        element=_one_of(ITEM_BYTES, fields["element"], f"{shown}: element type"),
        shape=tuple(_integers(fields["shape"], f"{shown}: shape", least=0)),
        codec=_one_of(CODECS, fields["codec"], f"{shown}: codec"),
        chunk_bytes=_integers([fields["chunk_bytes"]], f"{shown}: chunk_bytes", least=16)[0],
        stored=tuple(stored),
        checksums=_parse_checksums(shown, fields["checksums"]),
        offsets=tuple(itertools.accumulate(stored[:-1], initial=offset)),
    )
    _check_sizes(entry, shown)
    if not isinstance(CODECS[entry.codec], RowCodec):
        return entry
    return replace(entry, part_rows=_part_rows(entry, fields["part_rows"], shown))


def _part_rows(entry: ArrayEntry, value: Any, shown: str) -> int:
    """Return how many rows are coded together; 0 for an array without elements."""
    (part_rows,) = _integers([value], f"{shown}: part_rows", least=1)
    if not entry.size:
        return 0
    row_bytes = math.prod(entry.shape[2:]) * ITEM_BYTES[entry.element]
    if len(entry.shape) < 2 or entry.chunk_bytes % row_bytes:
        raise ContainerError(
            f"{shown}: shape {list(entry.shape)} has no rows that fill chunks of "
            f"{entry.chunk_bytes} bytes"
        )
    return min(part_rows, entry.chunk_bytes // row_bytes)


def _check_sizes(entry: ArrayEntry, shown: str) -> None:
    """Refuse an array that claims more than its chunks can hold."""
    if (
        len(entry.shape) > MAX_DIMENSIONS
        or math.prod(max(1, n) for n in entry.shape) > MAX_ARRAY_BYTES // 16
    ):
        raise ContainerError(f"{shown}: impossible shape {list(entry.shape)[:8]}")
    if entry.chunk_bytes > MAX_CHUNK_BYTES or entry.chunk_bytes % 16:
        raise ContainerError(f"{shown}: chunks of {entry.chunk_bytes} bytes")
    size = entry.size
    chunks = -(-size // entry.chunk_bytes)
    if len(entry.stored) != chunks or len(entry.checksums) != chunks:
        raise ContainerError(
            f"{shown}: {len(entry.stored)} chunks for shape {list(entry.shape)}, expected {chunks}"
        )
    sizes = (
        [entry.chunk_bytes] * (chunks - 1) + [size - (chunks - 1) * entry.chunk_bytes]
        if chunks
        else []
    )
    for stored, claimed in zip(entry.stored, sizes, strict=True):
        if claimed > MAX_EXPANSION * stored or (entry.codec == "raw" and claimed != stored):
            raise ContainerError(f"{shown}: {stored} bytes stored that claim to be {claimed}")


def _one_of(known: dict[str, Any], value: Any, what: str) -> str:
    if type(value) is not str or value not in known:
        raise ContainerError(f"{what} is {value!r:.60}; this navrl knows {', '.join(known)}")
    return value


def _integers(values: Any, what: str, *, least: int) -> list[int]:
    if type(values) is not list or any(
        type(value) is not int or not least <= value <= MAX_ARRAY_BYTES for value in values
    ):
        raise ContainerError(f"{what}: expected whole numbers from {least} to 2^62")
    return values


def _parse_checksums(shown: str, texts: Any) -> tuple[int, ...]:
    if type(texts) is not list or any(type(text) is not str or len(text) != 16 for text in texts):
        raise ContainerError(f"{shown}: checksums: expected texts of 16 hexadecimal digits")
    if not _HEXADECIMAL.fullmatch("".join(texts)):
        raise ContainerError(f"{shown}: a checksum that is not 16 hexadecimal digits")
    return tuple([int(text, 16) for text in texts])
