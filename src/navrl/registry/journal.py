"""The journal beside the model files: every change, so that the database can be made again.

One line for each transaction: a CRC-32, the transaction's sequence number, and its changes as JSON.
The first line names the store and the generation of the file. A line is on the disk before the
database commits; a line that the database does not know was written by a process that was killed
between the two, or the database is an older copy.
"""

from __future__ import annotations

import json
import os
import re
import uuid
import zlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from navrl.io.container.atomic_files import AtomicFile, sync_folder
from navrl.registry.transaction import Change

__all__ = ["Entry", "Header", "Journal", "set_aside"]

FORMAT = 1
_HEADER_BYTES = 1024
_ROWS_A_LINE = 100
_LINE = re.compile(rb"([0-9a-f]{8}) (\{.*\})\n?", re.DOTALL)


class Header(NamedTuple):
    """The first line: which store this is, and which rewriting of its journal."""

    store: str
    generation: str


class Entry(NamedTuple):
    """One transaction."""

    sequence: int
    changes: list[Change]


class Contents(NamedTuple):
    """The readable entries of a journal, and how many lines could not be read."""

    entries: list[Entry]
    damaged: int


class Journal:
    """An append-only file of changes; written by whoever holds the database's write lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Return the size in bytes, 0 if there is no file."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def header(self) -> Header | None:
        """Return the first line, or None if there is no file, or it cannot be read."""
        try:
            with open(self.path, "rb") as file:
                values = _decoded(file.read(_HEADER_BYTES).partition(b"\n")[0])
        except FileNotFoundError:
            return None
        if not values or values.get("journal") != FORMAT:
            return None
        return Header(str(values["store"]), str(values["generation"]))

    def read(self, start: int = 0) -> Contents:
        """Return the entries from a byte on; damaged lines are left out and counted."""
        entries, damaged = [], 0
        with open(self.path, "rb") as file:
            file.seek(start)
            for line in file:
                values = _decoded(line)
                if values is None:
                    damaged += line.endswith(b"\n")  # the last one may still be in the making
                elif isinstance(values.get("changes"), list) and isinstance(
                    values.get("sequence"), int
                ):
                    entries.append(Entry(values["sequence"], values["changes"]))
        return Contents(entries, damaged)

    def end_of_last_line(self) -> int:
        """Return the size without a last line that was cut short."""
        size = self.size()
        with open(self.path, "rb") as file:
            while size:
                start = max(0, size - (1 << 16))
                file.seek(start)
                newline = file.read(size - start).rfind(b"\n")
                if newline >= 0:
                    return start + newline + 1
                size = start
        return 0

    def append(self, entry: Entry, at: int) -> int:
        """Write an entry at the end, flush it, and return the new size; `at` is the size before."""
        line = _encoded({"sequence": entry.sequence, "changes": entry.changes})
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_all(descriptor, line, at)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return at + len(line)

    def truncate(self, size: int) -> None:
        """Cut the file to a size."""
        os.truncate(self.path, size)

    def rewrite(self, store: str, sequence: int, rows: Iterable[Change]) -> tuple[Header, int]:
        """Replace the file by one that makes these rows from nothing; return header and size."""
        header = Header(store, uuid.uuid4().hex)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with AtomicFile(self.path) as file:
            file.write([_encoded({"journal": FORMAT, **header._asdict()})])
            pending = iter(rows)
            while some := list(islice(pending, _ROWS_A_LINE)):
                file.write([_encoded({"sequence": sequence, "changes": some})])
            file.commit()
            size = file.size
        sync_folder(self.path.parent.parent)
        return header, size

    def fault(self) -> str | None:
        """Return what is wrong with the file, or None; reads all of it."""
        if self.size() == 0:
            return None
        if self.header() is None:
            return "has a damaged first line; `navrl models repair` writes it again"
        damaged = self.read().damaged
        if not damaged:
            return None
        return f"has {damaged} damaged lines; `navrl models repair` writes it again"


def set_aside(path: Path) -> Path:
    """Rename a file to `NAME.damaged-1`, or the next free number, and return its new path."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.replace(path, target)
    return target


def _encoded(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decoded(line: bytes) -> dict[str, Any] | None:
    """Return what a line holds, or None if it is damaged."""
    found = _LINE.fullmatch(line)
    if found is None or int(found[1], 16) != zlib.crc32(found[2]):
        return None
    values: dict[str, Any] = json.loads(found[2])
    return values


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
