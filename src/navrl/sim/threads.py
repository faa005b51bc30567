"""Start numba's threads without changing the number of torch's."""

from __future__ import annotations

import numba
import torch

__all__ = ["start_threads"]


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
