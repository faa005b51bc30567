"""How many bits the bytes of a part carry: whether compressing it can pay."""

from __future__ import annotations

import math

import numpy as np

from navrl.io.container.codecs.codec import Bytes

__all__ = ["INCOMPRESSIBLE_BITS", "bits_per_byte"]

INCOMPRESSIBLE_BITS = 7.5  # parts whose bytes carry more than this are stored as they are
_SAMPLES = 2048


def bits_per_byte(part: Bytes) -> float:
    """Return the entropy of a sample: 8 is noise, 0 one value throughout, or too few bytes."""
    sample = part[:: max(1, part.size // _SAMPLES)]
    if sample.size < _SAMPLES // 4:
        return 0.0
    counts = np.bincount(sample)
    return math.log2(sample.size) - float(counts @ np.log2(np.maximum(counts, 1))) / sample.size
