"""How hard the background may work, said in a byte of memory that the process which writes files
sees too.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, Self

from navrl.io.checkpoint.shared_memory import SharedMemory

__all__ = ["Pace"]


class Pace:
    """Whether one thread is to do all the coding, and leave the other cores to the training.

    Args:
        shared: let another process see it too, if the system has memory for that; it then has a
            `descriptor`.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.descriptor: int | None = None
        self._shared: SharedMemory | None = None
        self._bytes: Any = bytearray(1)
        if shared:
            with contextlib.suppress(OSError):
                self._shared = SharedMemory(mmap.PAGESIZE)
                self.descriptor, self._bytes = self._shared.descriptor, self._shared.bytes.data

    @classmethod
    def behind(cls, descriptor: int) -> Self:
        """Return the pace that another process sets."""
        pace = cls()
        pace._bytes = mmap.mmap(descriptor, mmap.PAGESIZE)
        return pace

    @property
    def resting(self) -> bool:
        """Whether the one thread that writes also codes, alone: there are few cores, and nobody
        waits for a file.
        """
        return bool(self._bytes[0])

    @resting.setter
    def resting(self, resting: bool) -> None:
        self._bytes[0] = resting
