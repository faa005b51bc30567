"""Decorators of compiled functions that use lanes, and their floating-point flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from navrl.kernel_cache import kernel

__all__ = ["FAST", "entry", "entry_for", "inner"]

# Infinities are not assumed away, but kernels use large finite numbers in their place.
FAST = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}

# For a function that only compiled functions call: without an entry point for Python, which would
# double its compile time.
inner = njit(
    nogil=True, fastmath=FAST, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
# For a function that Python calls; it is stored on disk together with everything it calls.
entry = kernel(nogil=True, fastmath=FAST, error_model="numpy")


def entry_for(variant: str) -> Callable[[Callable[..., Any]], Any]:
    """Return `entry` for a function that is defined several times with different constants.

    `variant` names the constants: two functions of the same name and variant must be equal.
    """
    return kernel(variant, nogil=True, fastmath=FAST, error_model="numpy")
