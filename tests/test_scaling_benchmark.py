"""The benchmark of many ranks: its teams, its slow links, its model, and its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from navrl.errors import BenchmarkError

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from _scaling_link import Link
from _scaling_model import DIRECT, LINKS, SMALL, Reduction, Training, fit_reduction, link_case
from _scaling_page import PAGE, RESULTS, page
from _scaling_team import in_team
from _scaling_work import reduce

GRADIENT = 700_000.0
KNOWN = Reduction(1e-4, 3e-4, 2.2, byte=1e-9, forwarder_byte=4e-9)
SLOW = Link("1 Gbit/s, 0.2 ms", delay=2e-4, rate=1e9)


def told(case: str, metric: str) -> float:
    """Return what a machine that obeys the model would measure."""
    name, _, ranks = case.rpartition(": ")
    link = next(link for link in (DIRECT, *LINKS) if link.name == name)
    size = {"small": 0.0, "gradient": GRADIENT}[metric]
    return KNOWN.seconds(int(ranks.split()[0]), size, link, forwarded=link is not DIRECT)


def training(**changes: float) -> Training:
    values = {"gradients": 32.0, "gradient": GRADIENT, "others": 2.0} | changes
    return Training(KNOWN, (8, 32, 2048), (0.04, 0.1, 6.0), 2048, 32, **values)


def test_the_fit_finds_the_numbers_that_the_measurements_were_made_with():
    found = fit_reduction(told, (2, 4), LINKS, GRADIENT, cores=2)
    for name in ("overhead", "forwarder_overhead", "hops", "byte", "forwarder_byte"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=1e-6), name


def test_a_team_without_a_core_for_each_rank_does_not_count_for_loopback():
    def crowded(case: str, metric: str) -> float:
        return told(case, metric) * (10 if case == link_case(DIRECT, 4) else 1)

    found = fit_reduction(crowded, (2, 4), LINKS, GRADIENT, cores=2)
    assert found.overhead == pytest.approx(KNOWN.overhead)


def test_an_all_reduce_over_a_network_takes_its_steps_and_its_bytes():
    steps, sent = 2 * 7, 2 * 7 / 8 * GRADIENT
    expected = steps * (1e-4 + 2.2 * 2e-4) + sent * 8 / 1e9
    assert KNOWN.seconds(8, GRADIENT, SLOW) == pytest.approx(expected)
    assert KNOWN.seconds(1, GRADIENT, SLOW) == 0


def test_compute_lies_on_the_line_between_measured_shares():
    assert training().compute_of(20) == pytest.approx(0.07)
    assert training().compute_of(2048) == pytest.approx(6.0)


def test_a_fixed_batch_is_fastest_where_its_speed_no_longer_grows():
    model = training()
    best = model.fastest(SLOW)
    speeds = [model.frames_per_second(n, SLOW, weak=False) for n in (best // 2, best, 2 * best)]
    assert max(speeds) == speeds[1]
    assert 1 < best < 2048


def test_more_drones_with_more_ranks_keep_more_of_the_speed_than_a_fixed_batch():
    model = training()
    weak, fixed = (model.efficiency(64, SLOW, weak=weak) for weak in (True, False))
    assert 0 < fixed < weak < 1
    assert model.half(SLOW, weak=True) > model.half(SLOW, weak=False)


def test_latency_and_bytes_are_all_of_the_communication():
    model = training()
    parts = model.parts(64, SLOW)
    assert sum(parts.values()) == pytest.approx(model.communication(64, SLOW))
    assert parts["bytes"] == pytest.approx(
        2 * 63 / 64 * (32 * GRADIENT + 2 * SMALL) * 8 / 1e9, rel=1e-6
    )


@pytest.mark.skipif(not RESULTS.exists(), reason="no results are kept")
def test_the_page_is_that_of_the_results():
    results = json.loads(RESULTS.read_text())
    assert page(results) in PAGE.read_text()


def fail(team: object) -> None:
    raise ValueError("a mistake of ours")


@pytest.mark.slow
def test_the_error_of_a_rank_is_raised_with_its_traceback():
    with pytest.raises(BenchmarkError, match=r"rank 0 of 1 failed: [\s\S]*a mistake of ours"):
        in_team(1, fail)


@pytest.mark.slow
def test_no_all_reduce_is_faster_than_its_link():
    delay, size = 0.02, 400_000
    links = [Link("slow", delay=delay), Link("thin", rate=1e8)]
    found, *_ = in_team(2, reduce, links, (size,), 3, linked=True)
    # two steps of a ring of two; each rank sends as many bytes as the tensor has
    assert found["slow"][size]["seconds"] >= 2 * delay
    assert found["thin"][size]["seconds"] >= 8 * size / 1e8
    assert size <= found["thin"][size]["sent"] < 1.5 * size


@pytest.mark.slow
def test_the_benchmark_runs(run_benchmark):
    told = run_benchmark("scaling")
    assert "save: 2 ranks" in told
    assert "1 ms: 2 ranks" in told
