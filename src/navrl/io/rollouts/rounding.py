"""Opt-in and lossy: floats rounded within a bound, so that they compress further. What is not
finite stays as it is.

A number becomes the nearest multiple of a power of two that is at most twice the bound, so that its
last bits are zero. That is exact arithmetic, and checked besides: a number that would move by more
than the bound is left alone.
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
    """Return floats, given as bytes, each at most `bound` away from what it was; NaN and infinity
    bit for bit.
    """
    given = torch.from_numpy(data).view(TORCH_DTYPES[element])
    wide: Any = given.to(torch.float64).numpy() if element != "float32" else given.numpy()
    step = wide.dtype.type(2.0 ** max(math.floor(math.log2(2 * bound)), -126))
    with np.errstate(all="ignore"):
        # a negative zero becomes a positive one
        rounded = np.rint(wide / step) * step + wide.dtype.type(0)
    narrow = torch.from_numpy(rounded).to(given.dtype)
    with np.errstate(all="ignore"):
        moved = np.abs(narrow.to(torch.float64).numpy() - given.to(torch.float64).numpy())
    fits = torch.from_numpy(moved <= bound)  # false for NaN and infinity
    return torch.where(fits, narrow, given).view(torch.uint8).numpy()
