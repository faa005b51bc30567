"""The benchmark harness: interleaving, medians, ratios, gates, and what lands on disk."""

from __future__ import annotations

import json
import math

import pytest

from navrl import benchmark as bench
from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.cli import main
from navrl.errors import BenchmarkError


def two_case_suite(order, gates=()):
    def case(name, values):
        values = iter(values)

        def measure():
            order.append(name)
            return {"seconds": next(values)}

        return Case(name, measure)

    cases = [case("ours", [9.0, 1.0, 2.0, 3.0]), case("peer", [9.0, 10.0, 10.0, 60.0])]
    return Suite("demo", "A demonstration", cases, [Column("seconds", "s")], gates, repeats=3)


def test_the_cases_take_turns_after_one_warm_up_each():
    order = []
    bench.run(two_case_suite(order))
    assert order == ["ours", "peer"] * 4


def test_the_warm_up_does_not_count():
    report = bench.run(two_case_suite([]))
    assert report.results.median("ours", "seconds") == 2.0


def test_a_ratio_is_the_median_of_the_ratios_within_each_round():
    report = bench.run(two_case_suite([]))
    assert report.results.ratio("seconds", "peer", "ours") == pytest.approx(10.0)


def test_the_spread_is_half_the_quartile_range_over_the_median():
    results = Results()
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        results.add("case", {"metric": value})
    assert results.spread("case", "metric") == pytest.approx(1 / 3)


def test_a_metric_that_was_never_measured_is_not_a_number():
    assert math.isnan(Results().median("nobody", "nothing"))


@pytest.mark.parametrize(
    ("value", "holds"), [(1.0, False), (2.0, True), (3.0, True), (float("nan"), False)]
)
def test_a_gate_holds_at_its_limit_and_never_for_nan(value, holds):
    assert Gate("g", lambda _: 0.0, at_least=2.0).holds(value) is holds


def test_missed_names_each_enforced_gate_and_no_stretch():
    gates = [
        Gate("fast", lambda r: r.median("ours", "seconds"), at_most=1.5),
        Gate("small", lambda _: 0.0, at_most=1.0),
        Gate("dream", lambda _: 0.0, at_least=1.0, stretch=True),
    ]
    report = bench.run(two_case_suite([], gates))
    assert report.missed == ["fast: 2, expected <= 1.5"]


def test_the_suite_is_closed_even_when_a_case_fails():
    closed = []

    def fail():
        raise RuntimeError("boom")

    suite = Suite("demo", "", [Case("bad", fail)], [], close=lambda: closed.append(True))
    with pytest.raises(RuntimeError, match="boom"):
        bench.run(suite)
    assert closed == [True]


def test_the_json_has_rounds_machine_and_gates_and_null_for_nan(tmp_path):
    gates = [Gate("unknown", lambda r: r.median("nobody", "x"), at_least=1.0)]
    report = bench.run(two_case_suite([], gates))
    report.write(tmp_path / "deep" / "demo.json")
    whole = json.loads((tmp_path / "deep" / "demo.json").read_text())
    assert whole["cases"]["ours"]["metrics"]["seconds"]["rounds"] == [1.0, 2.0, 3.0]
    assert whole["gates"] == [
        {"name": "unknown", "value": None, "limit": ">= 1", "stretch": False, "holds": False}
    ]
    assert whole["machine"]["versions"]["torch"].startswith("2.")


BENCHMARK = """
from navrl.benchmark import Case, Column, Gate, Suite

def suite(smoke):
    gate = Gate("impossible", lambda r: r.median("one", "m"), at_least=100.0)
    return Suite("tiny", "Tiny", [Case("one", lambda: {"m": 1.0})], [Column("m", "m")], [gate], repeats=2)
"""


@pytest.fixture
def benchmark_in(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "tiny.py").write_text(BENCHMARK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_json_and_passes_without_check(benchmark_in):
    assert main(["bench", "tiny"]) == 0
    assert (benchmark_in / "benchmarks" / "results" / "tiny.json").exists()


def test_check_exits_one_and_names_the_gate(benchmark_in, capsys):
    assert main(["bench", "tiny", "--check", "--smoke"]) == 1
    assert "impossible: 1, expected >= 100" in capsys.readouterr().out


def test_smoke_leaves_no_file_behind(benchmark_in):
    assert main(["bench", "tiny", "--smoke"]) == 0
    assert not (benchmark_in / "benchmarks" / "results").exists()


def test_an_unknown_benchmark_names_the_nearest(benchmark_in, capsys):
    assert main(["bench", "tinny"]) == 2
    assert "Did you mean 'tiny'?" in capsys.readouterr().err


def test_outside_a_clone_the_error_says_where_benchmarks_live(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "a" / "b" / "bench.py"))
    with pytest.raises(BenchmarkError, match="inside a clone"):
        bench.find_suite("tiny", smoke=True)
