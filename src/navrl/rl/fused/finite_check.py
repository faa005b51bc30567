"""What keeps the fused network from giving finite results for weights or observations that are not
finite.

Its kernels are compiled with fast-math, which allows the compiler to assume that there is no NaN.
Here bits are compared as whole numbers: an exponent of all ones is NaN or infinite.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32, njit

from navrl.kernel_cache import kernel
from navrl.simd import floats_at, integers_at, longs_at

EXPONENT = np.int32(0x7F800000)


@njit(nogil=True)
def _is_finite(bits, number):
    """Return whether all of so many floats, given by their bits, are finite."""
    largest = int32(0)
    for i in range(number):
        largest = max(largest, int32(bits[i] & EXPONENT))
    return largest != EXPONENT


@kernel(nogil=True, error_model="numpy")
def all_finite(addresses, sizes):
    """Return whether all arrays, given by their addresses and sizes, hold finite numbers."""
    for number in range(len(sizes)):
        if not _is_finite(integers_at(addresses[number]), sizes[number]):
            return False
    return True


@kernel(nogil=True, error_model="numpy")
def spoil_bad_rows(rows, stride, index, used, samples, heads, width):
    """Write NaN over the heads of samples whose row is not finite; return how many there are.
    `index` may be 0.
    """
    listed, result, spoiled = longs_at(index), floats_at(heads), 0
    for sample in range(samples):
        row = listed[sample] if index != 0 else sample
        if not _is_finite(integers_at(rows + 4 * row * stride), used):
            spoiled += 1
            for head in range(width):
                result[sample * width + head] = float32(np.nan)
    return spoiled
