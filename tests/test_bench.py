"""The benchmark harness: interleaving, medians, ratios, gates, and what lands on disk."""

from __future__ import annotations

import json
import math
import sys

import pytest

from navrl import benchmark as bench
from navrl.benchmark import Case, Column, Gate, Results, Suite, folder, peers, session
from navrl.benchmark.compare import compare, student_quantile
from navrl.benchmark.plain_progress import PlainProgress
from navrl.cli import main
from navrl.errors import BenchmarkError
from navrl.machine import machine


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


def test_without_a_terminal_every_finished_case_has_a_plain_line(benchmark_in, capsys):
    assert main(["bench", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    started = [line.partition(" took ")[0] for line in lines if " took " in line]
    assert started[:2] == ["warming up one", "round 1 of 2: one"]
    assert started[2].startswith("round 2 of 2, about ")
    assert started[2].endswith(" left: one")
    assert not any("\x1b" in line for line in lines)


def test_a_case_that_runs_for_minutes_is_mentioned_until_it_ends():
    now, lines = [0.0], []
    progress = PlainProgress(lines.append, clock=lambda: now[0])
    with progress:
        progress.remind()  # nothing runs yet
        progress.update("round 1 of 1: one")
        now[0] = 120.0
        progress.remind()
        now[0] = 150.0
    assert lines == ["round 1 of 1: one: running for 2 min", "round 1 of 1: one took 150.0 s"]


def test_a_case_that_fails_says_after_how_long():
    now, lines = [0.0], []

    def fail(progress):
        progress.update("round 1 of 1: one")
        now[0] = 3.0
        raise RuntimeError("boom")

    progress = PlainProgress(lines.append, clock=lambda: now[0])
    with pytest.raises(RuntimeError, match="boom"), progress:
        fail(progress)
    assert lines == ["round 1 of 1: one failed after 3.0 s"]


def test_smoke_leaves_no_file_behind(benchmark_in):
    assert main(["bench", "tiny", "--smoke"]) == 0
    assert not (benchmark_in / "benchmarks" / "results").exists()


def test_an_unknown_benchmark_names_the_nearest(benchmark_in, capsys):
    assert main(["bench", "tinny"]) == 2
    assert "Did you mean 'tiny'?" in capsys.readouterr().err


def test_outside_a_clone_the_error_says_where_benchmarks_live(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    with pytest.raises(BenchmarkError, match="inside a clone"):
        bench.find_suite("tiny", smoke=True)


# --------------------------------------------------------------------- all of them

COUNTED = """
from pathlib import Path
from navrl.benchmark import Case, Column, Suite

def measure():
    path = Path(__file__).with_suffix(".calls")
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    {extra}
    return {{"m": 1.0}}

def suite(smoke):
    return Suite("{name}", "", [Case("navrl", measure)], [Column("m", "m")], repeats=2, warm_up=False)
"""


@pytest.fixture
def two_benchmarks(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "good.py").write_text(COUNTED.format(name="good", extra=""))
    (folder / "bad.py").write_text(COUNTED.format(name="bad", extra="raise ValueError('boom')"))
    (folder / "plan.json").write_text('{"bad": {"minutes": 1}, "good": {"minutes": 1}}')
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.slow
def test_all_goes_on_after_a_failure_and_skips_what_this_commit_has(two_benchmarks, capfd):
    assert main(["bench", "all"]) == 1
    first = capfd.readouterr()
    assert "bad (1 of 2): about 1 min, 2 min left for all" in first.out
    assert "bad: failed, exit status 1" in first.out
    assert "boom" in first.err
    assert main(["bench", "all"]) == 1
    assert "good: already measured" in capfd.readouterr().out
    assert (two_benchmarks / "good.calls").read_text() == "xx"
    kept = json.loads((two_benchmarks / "results" / "good.json").read_text())
    assert kept["seconds"] >= 0


def test_all_starts_nothing_that_would_end_too_late(two_benchmarks, capsys):
    assert main(["bench", "all", "--minutes", "0.1"]) == 0
    assert "good: no time left, run the command again" in capsys.readouterr().out


def test_a_benchmark_that_takes_hours_is_left_to_its_own_command(two_benchmarks, capsys):
    plan = {"bad": {"minutes": 600, "alone": True}, "good": {"minutes": 1, "alone": True}}
    (two_benchmarks / "plan.json").write_text(json.dumps(plan))
    assert main(["bench", "all"]) == 0
    assert "good: takes too long to run with the others, navrl bench good" in (
        capsys.readouterr().out
    )
    assert not (two_benchmarks / "good.calls").exists()


@pytest.mark.parametrize(
    ("changed", "finished"),
    [
        ({}, True),
        ({"date": "2001-01-01"}, True),
        ({"commit": "0123456789"}, False),
        ({"processor": "another"}, False),
    ],
)
def test_results_of_another_commit_or_machine_are_measured_again(two_benchmarks, changed, finished):
    here = machine() | {"commit": "abcdef0123"}
    (two_benchmarks / "results").mkdir()
    content = {"machine": here | changed, "smoke": False, "cases": {}}
    (two_benchmarks / "results" / "good.json").write_text(json.dumps(content))
    assert session.is_finished("good", here) is finished


def test_a_run_with_a_time_limit_leaves_rounds_out_but_never_the_first():
    report = bench.run(two_case_suite([]), minutes=0.0)
    assert report.results.rounds["ours"]["seconds"] == [1.0]


def test_the_plan_names_every_benchmark_and_takes_less_than_an_hour():
    known = set(bench.known_benchmarks())
    listed = json.loads((bench.benchmark_folder() / "plan.json").read_text())
    assert set(listed) == known
    assert sum(entry.minutes for entry in bench.plan() if not entry.alone) <= 60


def test_a_plan_with_an_unknown_benchmark_is_refused(two_benchmarks):
    (two_benchmarks / "plan.json").write_text('{"ugly": {"minutes": 1}}')
    with pytest.raises(BenchmarkError, match=r"plan.json names 'ugly'; there are bad, good"):
        bench.plan()


def test_installed_packages_need_no_environment_of_their_own():
    assert peers.interpreter_with("any", ["numpy", "torch"]) == sys.executable


# ---------------------------------------------------------------------- two results


def result(metric="seconds", **cases):
    names = {name: {"metrics": {metric: {"rounds": rounds}}} for name, rounds in cases.items()}
    return {"benchmark": "demo", "machine": {"processor": "p", "cores": 2}, "cases": names}


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 1, 12.706205), (0.995, 2, 9.924843), (0.995, 10, 3.169273), (0.975, 1000, 1.962339)],
)
def test_quantiles_are_those_of_students_tables(probability, freedom, expected):
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-5)


def test_a_change_beyond_the_scatter_of_the_rounds_is_real():
    change = compare(
        result(navrl=[1.00, 1.01, 0.99, 1.0]), result(navrl=[1.20, 1.21, 1.19, 1.2])
    ).changes[0]
    assert change.verdict == "higher by 20 %"
    assert 1.1 < change.low < 1.2 < change.high < 1.3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1.0, 1.2, 0.9, 1.1], [1.1, 1.2, 1.0, 1.15]),  # within the scatter
        ([1.0], [2.0]),  # no scatter known
    ],
)
def test_a_change_within_the_scatter_cannot_be_told_from_noise(first, second):
    change = compare(result(navrl=first), result(navrl=second)).changes[0]
    assert change.verdict == "cannot be told from noise"


def test_a_change_that_the_peers_share_is_the_machines():
    steady, slower = [1.0, 1.01, 0.99], [1.2, 1.21, 1.19]
    comparison = compare(result(navrl=steady, peer=steady), result(navrl=slower, peer=slower))
    assert [change.real for change in comparison.changes] == [False, False]
    assert comparison.drift == pytest.approx(0.2, abs=0.01)


def test_equal_sizes_are_the_same_and_other_sizes_a_change():
    sizes = result("bytes", navrl=[90, 90], peer=[70, 70])
    other = result("bytes", navrl=[90, 90], peer=[75, 75])
    assert [c.verdict for c in compare(sizes, sizes).changes] == ["the same"] * 2
    assert compare(sizes, other).changes[0].verdict == "the same"


def test_the_command_compares_folders_and_warns_of_other_processors(tmp_path, capsys):
    for name, processor in (("old", "p"), ("new", "q")):
        (tmp_path / name).mkdir()
        content = result(navrl=[1.0, 1.1]) | {"machine": {"processor": processor, "cores": 2}}
        (tmp_path / name / "demo.json").write_text(json.dumps(content))
    assert main(["bench", "compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    told = capsys.readouterr().out
    assert "demo: unchanged, or not to be told from noise: 1 of 1 metrics" in told
    assert "99 % interval" not in told
    assert "different processors: p and q" in told


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), ("{", "not JSON"), ("{}", "no results"), ("[]", "no results")],
)
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path, capsys, content, words):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    assert main(["bench", "compare", str(path), str(path)]) == 2
    told = capsys.readouterr().err
    assert "a.json" in told
    assert words in told


def test_folders_show_only_what_changed_and_files_show_every_metric(tmp_path, capsys):
    for name, ours in (("old", [1.0, 1.01, 0.99]), ("new", [1.2, 1.21, 1.19])):
        (tmp_path / name).mkdir()
        content = result(navrl=ours, peer=[2.0, 2.01, 1.99])
        (tmp_path / name / "demo.json").write_text(json.dumps(content))
    old, new = tmp_path / "old", tmp_path / "new"
    assert main(["bench", "compare", str(old), str(new)]) == 0
    told = capsys.readouterr().out
    assert "higher by 20 %" in told
    assert "peer" not in told
    assert "noise: 1 of 2 metrics" in told
    assert main(["bench", "compare", str(old / "demo.json"), str(new / "demo.json")]) == 0
    assert "peer" in capsys.readouterr().out


def test_bench_alone_lists_the_benchmarks(capsys):
    assert main(["bench"]) == 2
    assert "name a benchmark: all, baselines," in capsys.readouterr().err


def test_only_compare_takes_files(capsys):
    assert main(["bench", "simulator", "x.json"]) == 2
    assert "only `navrl bench compare` takes files" in capsys.readouterr().err


# ------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def summary():
    sys.path.insert(0, str(bench.benchmark_folder()))
    import _summary_page

    return _summary_page


def test_page_and_charts_show_the_results_that_are_kept(summary):
    results = summary.load()
    assert summary.page(results) in summary.PAGE.read_text()
    for name, _, _, svg in summary.charts(results):
        assert (summary.CHARTS / name).read_text() == svg


@pytest.mark.parametrize("name", ["collectors", "tracking", "registry", "replay", "rollouts"])
def test_user_pages_show_the_results_that_are_kept(summary, name):
    import _measured_pages

    one = next(one for one in _measured_pages.PAGES if one.benchmark == name)
    page = (_measured_pages.ROOT / "docs" / one.page).read_text()
    assert _measured_pages.measured(one, summary.load()[name]) in page


def test_a_measured_page_has_a_row_for_every_case(summary):
    import _measured_pages

    for one in _measured_pages.PAGES:
        results = summary.load()[one.benchmark]
        told = _measured_pages.measured(one, results)
        assert all(f"| {name} |" in told.replace("**", "") for name in results["cases"])


def test_what_a_peer_does_better_is_listed_and_what_navrl_does_better_is_not(summary):
    told = summary.losses(summary.load())
    assert "| Replay: a batch, ms |" in told
    assert "Replay: bytes a frame" not in told


@pytest.mark.parametrize(
    ("value", "told"),
    [(1976665.7, "1.98 million"), (12287.6, "12.3 thousand"), (7038.6, "7,039"), (0.1096, "0.11")],
)
def test_numbers_have_three_digits(summary, value, told):
    assert summary.number(value) == told
