"""How hard the background may work: whether it is to leave the cores to training, and whether an optimiser steps just now.

A step of an optimiser goes through parameters, gradients and moments and does little with each number: it is as fast as the
memory lets it be, and whoever uses the memory beside it holds it up; forward and backward passes are mostly arithmetic. So
who codes beside a training on few cores waits while an optimiser steps. This is said in a few bytes of memory that
the process which writes files sees too.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from typing import Any, Self

from navrl.io.shared_memory import SharedMemory

__all__ = ["Pace"]

_RESTING, _STEPS = 0, 1  # places of the bytes
_LONGEST_WAIT = 1.0  # seconds; some steps take longer, and one that raises never ends
_LOOK_EVERY = 0.001


class Pace:
    """Whether to rest and whether an optimiser steps; `give_way` waits while both is so.

    Args:
        shared: let another process see it too, if the system has memory for that; it then has a `descriptor`.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.descriptor: int | None = None
        self._shared: SharedMemory | None = None
        self._bytes: Any = bytearray(2)
        self._works_until = 0.0
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
        """Whether one thread is to do all the coding, and leave the other cores to the training."""
        return bool(self._bytes[_RESTING])

    @resting.setter
    def resting(self, resting: bool) -> None:
        self._bytes[_RESTING] = resting

    def step_begins(self) -> None:
        """Say that an optimiser steps: the number of steps is odd from now on, whether or not the last one has ended."""
        self._bytes[_STEPS] = ((self._bytes[_STEPS] + 1) | 1) & 0xFF

    def step_ends(self) -> None:
        """Say that a step has ended. If another one goes on, in another thread, it is not waited for."""
        self._bytes[_STEPS] = (self._bytes[_STEPS] + 1) & 0xFE

    def give_way(self) -> None:
        """Return when no optimiser steps, or there is a hurry, or this took too long.

        Who has waited is not made to wait again before it has worked as long: where there is nothing but steps, as with
        optimisers that compute the loss in them, files take twice their time and no more.
        """
        step, begun = self._bytes[_STEPS], time.monotonic()
        if not step & 1 or begun < self._works_until:
            return
        waited = 0.0
        while self.resting and self._bytes[_STEPS] == step and waited < _LONGEST_WAIT:
            time.sleep(_LOOK_EVERY)
            waited = time.monotonic() - begun
        self._works_until = begun + 2 * waited
