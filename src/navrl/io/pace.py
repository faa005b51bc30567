"""How hard the background may work: whether it is to leave the cores to training, and whether an optimiser steps just now.

A step of an optimiser goes through parameters, gradients and moments and does little with each number: it is as fast as the
memory lets it be, and whoever uses the memory beside it holds it up; forward and backward passes are mostly arithmetic. So
who codes beside a training on few cores waits while an optimiser steps. This is said in a few bytes of memory that
the process which writes files sees too.
"""

from __future__ import annotations

import mmap
import time
from typing import Any, Self

from navrl.io.shared_memory import SharedMemory

__all__ = ["Pace"]

_RESTING, _STEPS = 0, 1  # places of the bytes
_LONGEST_STEP = 1.0  # seconds; a step that takes longer, or never ends because it raised, is not waited for any more
_LOOK_EVERY = 0.001


class Pace:
    """Whether to rest and whether an optimiser steps; `give_way` waits while both is so.

    Args:
        memory: the bytes behind the `descriptor` of another process's pace; None is fresh ones.
    """

    def __init__(self, memory: Any = None) -> None:
        self.descriptor: int | None = None  # by which another process can see the bytes, where the system has such memory
        self._shared: SharedMemory | None = None
        if memory is None:
            try:
                self._shared = SharedMemory(mmap.PAGESIZE)
                self.descriptor, memory = self._shared.descriptor, self._shared.bytes.data
            except OSError:
                memory = bytearray(mmap.PAGESIZE)
        self._bytes = memory
        self._not_waited_for = 0  # the step, by its number, that took too long

    @classmethod
    def behind(cls, descriptor: int) -> Self:
        """Return the pace that another process sets."""
        return cls(mmap.mmap(descriptor, mmap.PAGESIZE))

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
        """Say that no optimiser steps any more."""
        self._bytes[_STEPS] = (self._bytes[_STEPS] + 1) & 0xFE

    def give_way(self) -> None:
        """Return when no optimiser steps, or there is a hurry, or the step takes too long."""
        step = self._bytes[_STEPS]
        if not step & 1 or step == self._not_waited_for:
            return
        end = time.monotonic() + _LONGEST_STEP
        while self.resting and self._bytes[_STEPS] == step:
            if time.monotonic() > end:
                self._not_waited_for = step
                return
            time.sleep(_LOOK_EVERY)
