"""Intervals cover what they promise, and the paired test is McNemar's exact one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from navrl.evaluation.statistics import estimate, mcnemar, paired


def coverage(worlds: int, episodes: int, mean: float, spread: float, trials: int) -> float:
    """Return how often the interval holds the true mean of synthetic worlds.

    Every world has a success rate of its own, drawn from a beta distribution; `spread` is its
    standard deviation between worlds.
    """
    generator = np.random.default_rng(7)
    concentration = mean * (1 - mean) / spread**2 - 1
    a, b = mean * concentration, (1 - mean) * concentration
    world = np.repeat(np.arange(worlds), episodes)
    held = 0
    for _ in range(trials):
        rates = generator.beta(a, b, worlds)
        success = generator.random((worlds, episodes)) < rates[:, None]
        found = estimate(success.ravel(), world, share=True)
        held += found.low <= mean <= found.high
    return held / trials


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "episodes", "mean", "spread"),
    [(32, 64, 0.85, 0.06), (32, 64, 0.5, 0.15), (16, 64, 0.85, 0.06), (16, 16, 0.7, 0.1)],
)
def test_95_percent_intervals_cover_93_to_97_percent(worlds, episodes, mean, spread):
    assert 0.93 <= coverage(worlds, episodes, mean, spread, trials=1500) <= 0.97


def test_episodes_of_one_world_are_not_taken_for_independent():
    generator = np.random.default_rng(0)
    rates = generator.uniform(0.2, 1.0, 16)
    success = generator.random((16, 64)) < rates[:, None]
    world = np.repeat(np.arange(16), 64)
    clustered, shuffled = estimate(success.ravel(), world), estimate(success.T.ravel(), world)
    assert clustered.mean == shuffled.mean
    assert clustered.high - clustered.low > 2 * (shuffled.high - shuffled.low)


def test_equal_flights_give_equal_intervals():
    values, world = np.arange(40) % 3, np.arange(40) % 5
    assert estimate(values, world) == estimate(values, world)


def test_one_world_has_a_mean_and_no_interval():
    found = estimate([1.0, 0.0], [3, 3])
    assert found.mean == 0.5
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_an_outcome_of_none_or_all_has_an_interval_with_a_width(outcome):
    found = estimate(np.full(300, outcome), np.arange(300) % 10, share=True)
    assert found.mean == outcome
    # Wilson: z² / (n + z²)
    assert found.high - found.low == pytest.approx(3.8415 / 303.8415, rel=1e-3)


def test_nan_is_left_out():
    found = estimate([1.0, math.nan, 3.0, math.nan], [0, 0, 1, 1])
    assert found.mean == 2.0
    assert math.isnan(estimate([math.nan], [0]).mean)


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_is_the_probability_of_as_uneven_a_split(only_a, only_b):
    number = only_a + only_b
    uneven = abs(only_a - only_b)
    splits = [math.comb(number, k) for k in range(number + 1) if abs(number - 2 * k) >= uneven]
    assert mcnemar(only_a, only_b) == pytest.approx(sum(splits) / 2**number)


def test_mcnemar_of_a_known_small_case():
    # 1 against 7 discordant pairs: 2 (1 + 8) / 256
    assert mcnemar(1, 7) == 0.0703125
    assert mcnemar(0, 0) == 1.0


def test_mcnemar_of_thousands_of_pairs_is_finite():
    assert mcnemar(500, 1500) < 1e-100
    assert mcnemar(1000, 1000) == 1.0


def test_a_paired_difference_counts_pair_by_pair():
    a = np.array([1, 1, 1, 0, 0, 1, 1, 0])
    b = np.array([1, 0, 1, 1, 1, 1, 1, 1])
    found = paired(a, b, np.arange(8) % 4)
    assert (found.only_a, found.only_b) == (1, 3)
    assert found.difference.mean == pytest.approx(0.25)
    assert found.p == mcnemar(1, 3)


def test_pairs_are_compared_more_sharply_than_two_separate_samples():
    generator = np.random.default_rng(1)
    world = np.repeat(np.arange(32), 32)
    a = generator.random(1024) < generator.uniform(0.4, 1.0, 32)[world]
    b = a | (generator.random(1024) < 0.1)
    difference = paired(a, b, world).difference
    alone = estimate(a, world)
    assert difference.low > 0
    assert difference.high - difference.low < (alone.high - alone.low) / 2
