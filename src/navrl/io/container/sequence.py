"""Sequence numbers: the order in which the files of a folder were saved, whatever the clock said.

A clock can be set back, or run a day fast for a while. So every file carries a number in its index
that only grows, and files are ordered by it. The time of day beside it is for people.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["SequenceNumbers", "sequence_of"]

# A process that opens a folder starts at the next multiple of this. The last process may have been
# killed while a file was on its way whose number is not visible yet; that file must count as older.
_SESSION = 1 << 20
# Added if a file's number cannot be read: it may be the newest, and readable again after a repair.
_UNREADABLE = 1 << 30
_EXACT = 1 << 53  # other readers of JSON keep numbers in doubles


def sequence_of(document: Mapping[str, Any]) -> int | None:
    """Return the sequence number in the document of a file; None if it has none."""
    number = document.get("sequence")
    return number if type(number) is int and 0 < number < _EXACT else None


class SequenceNumbers:
    """Gives every file of a folder a number larger than all before it.

    Args:
        folder: all objects of one process for the same folder give out different numbers.
        known: the numbers of the files in the folder.
        unreadable: whether the folder has a file whose number cannot be read.
    """

    _lock = threading.Lock()
    _taken: dict[str, int] = {}  # noqa: RUF012 - the last number given out in this process, by folder

    def __init__(self, folder: Path, known: Iterable[int], *, unreadable: bool) -> None:
        self._folder = os.path.realpath(folder)
        self._floor = (max(known, default=0) // _SESSION + 1) * _SESSION
        if unreadable:
            self._floor += _UNREADABLE

    def observe(self, known: Iterable[int]) -> None:
        """Stay above these numbers too, which another process may have given out."""
        self._floor = max(self._floor, *known, 0)

    def take(self) -> int:
        """Return the next number."""
        with self._lock:
            number = max(self._floor, self._taken.get(self._folder, 0)) + 1
            self._taken[self._folder] = number
        return number
