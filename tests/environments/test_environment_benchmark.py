"""`navrl bench environments`: its table is the results, and its cases run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from navrl.benchmark import find_suite

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import _environment_page
import _page


def test_the_measured_table_is_that_of_the_results():
    results = json.loads(_environment_page.RESULTS.read_text())
    page = _page.written(_environment_page.PAGE.read_text(), _environment_page.WRITER)
    assert page == _environment_page.generated(results), "run benchmarks/_environment_page.py"
    assert all(gate["holds"] for gate in results["gates"] if not gate["stretch"])


@pytest.mark.slow
def test_a_case_of_every_trainer_runs():
    cases = {case.name: case for case in find_suite("environments", smoke=True).cases}
    names = ("Catch, pixels: navrl", "CartPole-v1: Stable-Baselines3")
    for name in (*names, *(name for name in cases if "carts" in name)):
        assert cases[name].measure()["frames"] > 0
