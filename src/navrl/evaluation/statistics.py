"""Means with 95 % intervals from a bootstrap over worlds, and tests of paired episodes.

Episodes of one world share its obstacles, so they are not independent: worlds are resampled, not
episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Estimate", "Paired", "estimate", "mcnemar", "paired"]

RESAMPLES = 4000
NORMAL = 1.959963984540054  # the normal quantile of a 95 % interval


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval; the bounds are NaN where one world gives no interval."""

    mean: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return the three numbers by name."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Paired:
    """How a policy B differs from A on equal episodes."""

    difference: Estimate  # mean of B - A
    only_a: int  # episodes where only A succeeds
    only_b: int
    p: float  # McNemar's exact test, two-sided


def estimate(values: ArrayLike, world: ArrayLike, *, share: bool = False) -> Estimate:
    """Return the mean over episodes with a 95 % interval from a bootstrap over worlds.

    NaN values are left out. The quantiles are widened for the number of worlds (Hesterberg's
    expanded percentile interval), since resampling few worlds understates the spread.

    Args:
        values: one number for each episode, (N,).
        world: the world of each episode, (N,).
        share: values are 0 or 1. An outcome of no episode, or of all, then has Wilson's interval:
            its bootstrap would have no width.
    """
    numbers = np.asarray(values, np.float64)
    known = ~np.isnan(numbers)
    if not known.any():
        return Estimate(math.nan, math.nan, math.nan)
    _, groups = np.unique(np.asarray(world), return_inverse=True)
    count = int(groups.max()) + 1
    sums = np.bincount(groups[known], numbers[known], count)
    sizes = np.bincount(groups[known], minlength=count).astype(np.float64)
    mean = float(sums.sum() / sizes.sum())
    if count == 1:
        return Estimate(mean, math.nan, math.nan)
    if share and mean in (0.0, 1.0):
        return _wilson(mean, int(sizes.sum()))
    drawn = _resamples(count)
    totals = drawn @ sizes
    means = (drawn @ sums)[totals > 0] / totals[totals > 0]
    low, high = np.quantile(means, [_tail(count), 1 - _tail(count)])
    return Estimate(mean, float(low), float(high))


@lru_cache(maxsize=8)
def _resamples(worlds: int) -> NDArray[np.float64]:
    """Return how often each world is drawn in each resample, (RESAMPLES, worlds)."""
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(worlds, np.full(worlds, 1 / worlds), RESAMPLES)
    return drawn.astype(np.float64)


def _tail(worlds: int) -> float:
    """Return the tail of the expanded percentile interval for a number of worlds."""
    freedom = worlds - 1
    quantile = _student(freedom) * math.sqrt(worlds / freedom)
    return 0.5 * math.erfc(quantile / math.sqrt(2))


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's distribution."""
    exact = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}
    if freedom in exact:
        return exact[freedom]
    z, n = NORMAL, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _wilson(share: float, number: int) -> Estimate:
    """Return Wilson's interval of a share of independent trials."""
    z = NORMAL**2 / number
    middle = (share + z / 2) / (1 + z)
    reach = math.sqrt(z * share * (1 - share) + z**2 / 4) / (1 + z)
    return Estimate(share, max(middle - reach, 0.0), min(middle + reach, 1.0))


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided p of McNemar's exact test for two numbers of discordant pairs."""
    number, smaller = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(number, k) for k in range(smaller + 1))
    return min(1.0, 2 * tail / 2**number)


def paired(a: ArrayLike, b: ArrayLike, world: ArrayLike) -> Paired:
    """Return how the successes of B differ from those of A, episode by episode.

    Args:
        a: 1 for each episode where A succeeds, else 0, (N,).
        b: the same for B, on the same episodes.
        world: the world of each episode, (N,).
    """
    first, second = np.asarray(a, bool), np.asarray(b, bool)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    difference = estimate(second.astype(float) - first, world)
    return Paired(difference, only_a, only_b, mcnemar(only_a, only_b))


def differing(a: dict[str, Any], b: dict[str, Any]) -> NDArray[np.int64]:
    """Return the numbers of the episodes in which exactly one of two policies succeeds."""
    first, second = (np.asarray(flown["success_100"]) > 0 for flown in (a, b))
    return np.flatnonzero(first != second)
