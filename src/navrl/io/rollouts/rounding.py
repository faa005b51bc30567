"""Opt-in lossy storage: floats rounded within a bound, so that they compress further.

A number becomes the nearest multiple of a power of two that is at most twice the bound, so that
its last bits are zero. The arithmetic is exact, and checked: a number that would move by more than
the bound is left as it is, and so are NaN and infinity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from navrl.io.container.codecs import Bytes
from navrl.io.container.tensor_types import TORCH_DTYPES

__all__ = ["FLOATS", "round_within"]

FLOATS = ("float16", "bfloat16", "float32", "float64")


def round_within(data: Bytes, element: str, bound: float) -> Bytes:
    """Return floats, as bytes, each at most `bound` away from what it was.

    NaN and infinity stay bit for bit.
    """
    exact = torch.from_numpy(data).view(TORCH_DTYPES[element])
    wide: Any = exact.to(torch.float64).numpy() if element != "float32" else exact.numpy()
    step = wide.dtype.type(2.0 ** max(math.floor(math.log2(2 * bound)), -126))
    with np.errstate(all="ignore"):
        # a negative zero becomes a positive one
        rounded = np.rint(wide / step) * step + wide.dtype.type(0)
    narrow = torch.from_numpy(rounded).to(exact.dtype)
    with np.errstate(all="ignore"):
        moved = np.abs(narrow.to(torch.float64).numpy() - exact.to(torch.float64).numpy())
    fits = torch.from_numpy(moved <= bound)  # false for NaN and infinity
    return torch.where(fits, narrow, exact).view(torch.uint8).numpy()
