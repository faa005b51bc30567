"""Flush denormals to zero while training: processors compute many times slower with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["flushed_denormals"]


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormals in this thread and those that it starts; restore this thread's mode after."""
    before = not np.float64(5e-324) * np.float64(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
