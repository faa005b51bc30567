"""The benchmarks of evaluation: they run, and their pages are what the results say."""

from __future__ import annotations

import json
import sys

import pytest

from navrl import benchmark as bench


@pytest.mark.slow
def test_judging_and_looking_are_measured():
    report = bench.run(bench.find_suite("eval", smoke=True), smoke=True)
    found = {name: set(case["metrics"]) for name, case in report.as_dict()["cases"].items()}
    assert found["evaluation"] == {"seconds", "flights"}
    assert found["replay page, 64 flights"] == {"seconds", "bytes"}
    assert found["live view, 16 drones"] == {"core_share"}


PAGES = {"baselines": "learning.md", "eval": "evaluation.md"}
RESULTS = bench.benchmark_folder() / "results"


@pytest.mark.parametrize("name", [n for n in PAGES if (RESULTS / f"{n}.json").exists()])
def test_the_page_shows_the_results_that_are_kept(name):
    bench.find_suite(name, smoke=True).close()
    results = json.loads((RESULTS / f"{name}.json").read_text())
    text = (RESULTS.parents[1] / "docs" / PAGES[name]).read_text()
    assert sys.modules[f"navrl_benchmark_{name}"].page(results) in text
