"""Memory that a training frees stays with its process while the training is timed: steps then take
nearly equally long.

By default glibc gives the gradients of a large network back to the system in every step, and the
system has to find and clear pages for them in the next. How long that takes depends on everything
else that the machine does, and it differs from step to step by more than a save adds. Allocators
that people train with (jemalloc, tcmalloc) keep such memory too. Writers that copy in the
training's thread gain by it as the training does; what other threads allocate is hardly touched.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # the parameters' numbers in malloc.h
_KEPT = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
# The weights of a layer (16 MiB) get fresh memory, as in a new process that loads them to go on;
# smaller blocks are reused.
_FRESH = {_MMAP_MAX: 1 << 16, _TRIM_THRESHOLD: 1 << 25, _MMAP_THRESHOLD: 1 << 24}


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Keep what is freed in the block, and give it back at the end: large blocks are fresh from
    then on, always.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):  # not glibc
        yield
        return
    try:
        _set(library, _KEPT)
        yield
    finally:
        _set(library, _FRESH)
        library.malloc_trim(0)


def _set(library: ctypes.CDLL, parameters: dict[int, int]) -> None:
    for parameter, value in parameters.items():
        if not library.mallopt(parameter, value):
            raise RuntimeError(f"the allocator does not take {value} for its parameter {parameter}")
