"""PerformanceMonitor: statistics that are right, from any thread."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import navrl
from counting import count_calls
from navrl.errors import ConfigError
from navrl.monitor import KEPT, PerformanceMonitor


@pytest.fixture
def monitor():
    return PerformanceMonitor()


@pytest.fixture
def clock(monkeypatch):
    """The clock of the monitor, which the test moves on."""
    clock = SimpleNamespace(now=100.0)
    fake = SimpleNamespace(perf_counter=lambda: clock.now, time=time.time)
    monkeypatch.setattr("navrl.monitor.time", fake)
    return clock


def test_it_is_offered_at_the_top_of_the_package():
    assert navrl.PerformanceMonitor is PerformanceMonitor


def test_a_timer_measures_its_block(monitor, clock):
    with monitor.timer("block"):
        clock.now += 0.25
    assert monitor.get_stats()["block"]["mean"] == 0.25


def test_a_block_that_raises_is_measured_and_raises(monitor):
    with pytest.raises(KeyError), monitor.timer("broken"):
        raise KeyError
    assert monitor.get_stats()["broken"]["count"] == 1


def test_start_and_end_measure_and_return_the_same(monitor):
    monitor.start_timer("x")
    seconds = monitor.end_timer("x")
    assert monitor.get_stats()["x"]["total"] == seconds


def test_starting_again_starts_anew(monitor, clock):
    monitor.start_timer("x")
    clock.now += 0.25
    monitor.start_timer("x")
    clock.now += 0.5
    assert monitor.end_timer("x") == 0.5


def test_ending_what_was_not_started_names_what_runs(monitor):
    with pytest.raises(ConfigError, match="none is running"):
        monitor.end_timer("train")
    monitor.start_timer("training")
    with pytest.raises(ConfigError, match="Did you mean 'training'"):
        monitor.end_timer("trainin")


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_an_impossible_duration_is_refused_by_name(monitor, seconds):
    with pytest.raises(ConfigError, match="collect"):
        monitor.record("collect", seconds)
    assert monitor.get_stats() == {}


def test_statistics_agree_with_numpy(monitor):
    values = np.random.default_rng(0).exponential(size=257)
    for value in values:
        monitor.record("x", value)
    recent = values[-100:]
    stats = monitor.get_stats(window=100)["x"]
    expected = {
        "mean": recent.mean(),
        "std": recent.std(),
        "min": recent.min(),
        "max": recent.max(),
        "p50": np.quantile(recent, 0.5),
        "p99": np.quantile(recent, 0.99),
        "total": values.sum(),
        "count": 257,
    }
    assert stats.keys() == expected.keys()
    assert all(stats[key] == pytest.approx(expected[key]) for key in expected)


def test_totals_outlive_the_measurements_that_are_kept(monitor):
    for _ in range(KEPT + 5):
        monitor.record("x", 1.0)
    assert monitor.get_stats(window=None)["x"]["count"] == KEPT + 5
    assert monitor.get_stats()["x"]["total"] == KEPT + 5


def test_a_window_of_nothing_is_refused(monitor):
    with pytest.raises(ConfigError, match="window is 0"):
        monitor.get_stats(window=0)


def test_the_summary_is_a_table_with_the_slowest_first(monitor):
    monitor.record("quick", 0.002)
    monitor.record("slow", 3.0)
    monitor.record("nothing", 0.0)
    heading, *lines = monitor.get_summary(window=100).splitlines()
    assert heading == "=== Performance Summary ==="
    assert [line.split()[0] for line in lines] == ["count", "slow", "quick", "nothing"]
    assert "3.00 s" in lines[1]
    assert "2.00 ms" in lines[2]
    assert len({len(line) for line in lines}) == 1


def test_the_summary_of_nothing_says_so(monitor):
    assert monitor.get_summary() == "=== Performance Summary ===\nnothing measured yet"


def test_the_report_is_the_statistics_in_one_level(monitor):
    for seconds in (9.0, 0.5, 1.5):
        monitor.record("training", seconds)
    monitor.record("evaluation", 2.0)
    report = monitor.report(window=2)
    assert (report["training_mean"], report["training_std"]) == (1.0, 0.5)
    assert report["evaluation_mean"] == 2.0
    for name, one in monitor.get_stats(window=2).items():
        assert {key: report[f"{name}_{key}"] for key in one} == one


def test_reset_forgets_everything(monitor):
    monitor.record("x", 1.0)
    monitor.start_timer("y")
    monitor.reset()
    assert monitor.get_stats() == {}
    with pytest.raises(ConfigError):
        monitor.end_timer("y")


def test_threads_lose_no_measurement_and_share_no_clock(monitor):
    def measure():
        for _ in range(2000):
            monitor.start_timer("shared")
            monitor.end_timer("shared")
            with monitor.timer("shared"):
                pass

    threads = [threading.Thread(target=measure) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert monitor.get_stats()["shared"]["count"] == 16_000


def test_a_timer_makes_few_calls_however_much_was_measured(monitor):
    def measure():
        with monitor.timer("x"):
            pass

    measure()
    first = count_calls(measure)
    for _ in range(2 * KEPT):
        monitor.record("x", 1.0)
    assert count_calls(measure) == first <= 12
