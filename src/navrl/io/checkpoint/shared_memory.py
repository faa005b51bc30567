"""Memory that another process can look at: the copy of a large state lies in it, and need not be
sent.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from typing import Any

import numpy as np

__all__ = ["SharedMemory"]

_PIECE = 4 << 20
_serials = itertools.count()


class SharedMemory:
    """Fresh memory behind a descriptor; who is sent the descriptor may map it too. Linux has such
    memory, others do not.

    Raises:
        OSError: the system has no such memory, or not that much.
    """

    def __init__(self, size: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory that is a file")
        self.serial = next(_serials)  # no other of this process has the same
        self.descriptor = os.memfd_create("navrl", os.MFD_CLOEXEC)
        weakref.finalize(
            self, os.close, self.descriptor
        ).atexit = False  # the end of the process closes it
        # Reserved here, else a lack of memory would show when it is written to, as a signal. In
        # pieces: a call that a signal interrupts begins anew, and one for gigabytes might never end
        # beside a timer.
        for start in range(0, size, _PIECE):
            os.posix_fallocate(self.descriptor, start, min(_PIECE, size - start))
        self.bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(
            mmap.mmap(self.descriptor, size), np.uint8
        )
        self._address = self.bytes.ctypes.data

    def place_of(self, data: np.ndarray[Any, np.dtype[np.uint8]]) -> int | None:
        """Return how far behind the beginning some bytes lie, or None if they lie elsewhere."""
        place = data.ctypes.data - self._address
        return place if 0 <= place <= self.bytes.size - data.size else None
