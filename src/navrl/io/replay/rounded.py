"""Opt-in lossy storage: floats as whole numbers of a step, which compress far better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.errors import ConfigError, ReplayError
from navrl.io.replay.frame_codec import Array

__all__ = ["Rounded"]


@dataclass(frozen=True)
class Rounded:
    """Floats rounded to multiples of `step`: an error of at most half a step.

    NaN and infinities are kept.

    >>> import torch, navrl
    >>> store = navrl.FrameStore(100, codecs={"lidar": navrl.Rounded(0.01)})
    >>> written = store.extend({"lidar": torch.full((4, 36), 0.123)})
    >>> round(store.get([0])["lidar"][0, 0].item(), 2)
    0.12
    """

    step: float

    def __post_init__(self) -> None:
        if not (isinstance(self.step, int | float) and 0 < self.step < math.inf):
            raise ConfigError(
                f"Rounded({self.step!r}): expected a positive step, such as Rounded(1e-3)"
            )

    _NAN, _PLUS, _MINUS = -(1 << 31), (1 << 31) - 1, -(1 << 31) + 1

    def to_steps(self, key: str, numbers: Array) -> Array:
        """Return floats as counts of steps.

        Raises:
            ReplayError: a value is 2**31 steps or more.
        """
        steps = np.rint(numbers.astype(np.float64) / self.step)
        finite = np.isfinite(steps)
        largest = np.abs(steps[finite]).max(initial=0)
        if largest >= -self._MINUS:
            raise ReplayError(
                f"{key}: {largest * self.step:g} is more than 2**31 steps of {self.step:g}; "
                "use a larger step"
            )
        counts = np.where(finite, steps, 0).astype(np.int32)
        for code, where in (
            (self._NAN, np.isnan),
            (self._PLUS, np.isposinf),
            (self._MINUS, np.isneginf),
        ):
            counts[where(numbers)] = code
        return counts.view(np.uint32)

    def from_steps(self, counts: Array, dtype: Any) -> Array:
        """Return counts of steps as floats."""
        signed = counts.view(np.int32)
        numbers = (signed * self.step).astype(dtype)
        for code, value in (
            (self._NAN, math.nan),
            (self._PLUS, math.inf),
            (self._MINUS, -math.inf),
        ):
            numbers[signed == code] = value
        return numbers
