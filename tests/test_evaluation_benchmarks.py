"""The benchmarks of evaluation: they run, and their pages are what the results say."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from navrl import benchmark as bench
from navrl.evaluation import OUTCOMES, PRETRAINED, load_policy


@pytest.mark.slow
def test_judging_and_looking_are_measured():
    report = bench.run(bench.find_suite("eval", smoke=True), smoke=True)
    found = {name: set(case["metrics"]) for name, case in report.as_dict()["cases"].items()}
    assert found["evaluation"] == {"seconds", "flights"}
    assert found["replay page, 64 flights"] == {"seconds", "bytes"}
    assert found["live view, 16 drones"] == {"core_share"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baselines", "card"])
def test_every_row_of_the_page_is_flown(name):
    report = bench.run(bench.find_suite(name, smoke=True), smoke=True).as_dict()
    text = sys.modules[f"navrl_benchmark_{name}"].page(report)
    for case in report["cases"]:
        assert case.partition(":")[0].partition(",")[0] in text
    assert "nan" not in text


def helper(name: str):
    """Return a module of benchmarks/ that is no benchmark itself."""
    sys.path.insert(0, str(bench.benchmark_folder()))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_an_interrupted_benchmark_goes_on_with_the_cases_that_are_missing(tmp_path):
    flown = []

    def measure(name: str):
        flown.append(name)
        return {"success": 0.5}

    def run(*names: str, settings=16):
        kept = helper("_kept").Kept(tmp_path / "kept.json")
        return kept, [kept.measured(name, settings, lambda n=name: measure(n)) for name in names]

    run("a", "b")
    kept, results = run("a", "b", "c")
    assert flown == ["a", "b", "c"]
    assert results == [{"success": 0.5}] * 3
    run("a", settings=32)  # other settings are flown anew
    assert flown[-1] == "a"
    kept.clear()
    run("b")
    assert flown[-1] == "b"
    assert len(flown) == 5


def test_the_card_of_the_package_leads_with_its_held_out_evaluation():
    shipping, row = helper("_ship_policy"), {"episodes": 2048, "worlds": 32, "spl": {"mean": 0.8}}
    outcomes = {name: {"share": 0.876, "low": 0.85, "high": 0.9} for name in OUTCOMES}
    conditions = {name: row | {"outcomes": outcomes} for name in shipping.SCENARIOS}
    command = "navrl train preset=best run_folder=/home/ada/runs/best"
    card = shipping.card(load_policy("pretrained"), {"conditions": conditions}, "best", command)
    title, first, table, *_ = card.split("\n\n")
    assert title.startswith("# ")
    assert first.startswith("Held-out evaluation: 2048 episodes")
    assert "**87.6 %** (85.0 - 90.0)" in table
    assert "`navrl train preset=best`" in card
    assert "/home" not in card
    assert PRETRAINED.with_suffix(".md").read_text().split("\n\n")[1].startswith("Held-out")


PAGES = {
    "baselines": "learning.md",
    "card": "evaluation.md",
    "eval": "evaluation.md",
    "learning": "learning.md",
    "robots": "robots.md",
}
RESULTS = bench.benchmark_folder() / "results"


@pytest.mark.parametrize("name", [n for n in PAGES if (RESULTS / f"{n}.json").exists()])
def test_the_page_shows_the_results_that_are_kept(name):
    bench.find_suite(name, smoke=True).close()
    results = json.loads((RESULTS / f"{name}.json").read_text())
    text = (RESULTS.parents[1] / "docs" / PAGES[name]).read_text()
    assert sys.modules[f"navrl_benchmark_{name}"].page(results) in text
