"""Counts work instead of time."""

from __future__ import annotations

import sys


def count_calls(function) -> int:
    """Return how many functions, of Python and of C, a call makes in this thread."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
