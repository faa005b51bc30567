"""Start numba's threads without changing the number of torch's; do without them for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch

__all__ = ["one_thread", "start_threads"]


def start_threads() -> int:
    """Return how many threads numba has, which run from now on; torch keeps the number that it was
    told to use.

    Where both use the same OpenMP, numba's start would set that number to its own.
    """
    of_torch = torch.get_num_threads()
    count: int = numba.get_num_threads()
    if torch.get_num_threads() != of_torch:
        torch.set_num_threads(of_torch)
    return count


@contextmanager
def one_thread() -> Iterator[None]:
    """Let numba and torch use one thread inside the block: for few drones that is faster.

    Threads that wait for each other spin, which beside other work takes longer than the flight.
    """
    before = start_threads(), torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])
