"""The journal beside the model files: every change, so that the database can be rebuilt.

One line for each transaction: a CRC-32, the transaction's sequence number, and its changes as JSON.
The first line names the store and the generation of the file. A line is on the disk before the
database commits. If the database lacks a line, its writer was killed between the two, or the
database is an older copy.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from navrl.io.container.atomic_files import AtomicFile, sync_folder
from navrl.io.container.checksums import decode_line, encode_line
from navrl.registry.transaction import Change

__all__ = ["Entry", "Header", "Journal", "set_aside"]

FORMAT = 1
_HEADER_BYTES = 1024
_ROWS_A_LINE = 100


class Header(NamedTuple):
    """The first line: the id of the store, and of this rewrite of its journal."""

    store: str
    generation: str


class Entry(NamedTuple):
    """One transaction."""

    sequence: int
    changes: list[Change]


class Entries(NamedTuple):
    """The readable entries of a journal, and how many lines are damaged."""

    entries: list[Entry]
    damaged: int


class Journal:
    """An append-only file of changes, written under the database's write lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Return the size in bytes, 0 if there is no file."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def header(self) -> Header | None:
        """Return the first line, or None if it is missing or damaged."""
        try:
            with open(self.path, "rb") as file:
                values = decode_line(file.read(_HEADER_BYTES).partition(b"\n")[0])
        except FileNotFoundError:
            return None
        if not values or values.get("journal") != FORMAT:
            return None
        return Header(str(values["store"]), str(values["generation"]))

    def read(self, start: int = 0) -> Entries:
        """Return the entries from byte `start` on; damaged lines are left out and counted."""
        entries, damaged = [], 0
        with open(self.path, "rb") as file:
            file.seek(start)
            for line in file:
                values = decode_line(line)
                if values is None:
                    damaged += line.endswith(b"\n")  # the last one may still be being written
                elif isinstance(values.get("changes"), list) and isinstance(
                    values.get("sequence"), int
                ):
                    entries.append(Entry(values["sequence"], values["changes"]))
        return Entries(entries, damaged)

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
        """Write an entry at byte `at`, the end, flush it, and return the new size."""
        line = encode_line({"sequence": entry.sequence, "changes": entry.changes})
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
        """Replace the file by one that recreates these rows; return its header and size."""
        header = Header(store, uuid.uuid4().hex)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with AtomicFile(self.path) as file:
            file.write([encode_line({"journal": FORMAT, **header._asdict()})])
            pending = iter(rows)
            while some := list(islice(pending, _ROWS_A_LINE)):
                file.write([encode_line({"sequence": sequence, "changes": some})])
            file.commit()
            size = file.size
        sync_folder(self.path.parent.parent)
        return header, size

    def fault(self) -> str | None:
        """Return what is wrong with the file, or None; reads all of it."""
        if self.size() == 0:
            return None
        if self.header() is None:
            return "has a damaged first line; `navrl models repair` rewrites it"
        damaged = self.read().damaged
        if not damaged:
            return None
        return f"has {damaged} damaged lines; `navrl models repair` rewrites it"


def set_aside(path: Path) -> Path:
    """Rename a file to `NAME.damaged-1`, or the next free number, and return its new path."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.replace(path, target)
    return target


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
