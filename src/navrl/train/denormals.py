"""Numbers next to zero are taken for zero while a training runs: processors are many times slower
with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["flushed_denormals"]


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Have this thread, and those that it starts, take them for zero; afterwards this thread does
    as it did before.
    """
    before = not np.float64(5e-324) * np.float64(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
