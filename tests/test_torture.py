"""`make torture` reports the faults that tests have counted, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from torture import SCENARIOS, count

TESTS = """
import pytest
from injected import injected, one_fault

def test_that_counts(injected):
    injected.add(41)

@pytest.mark.usefixtures("one_fault")
def test_with_one():
    pass

def test_without_any():
    pass

def test_that_is_skipped(injected):
    pytest.skip("not here")

def test_that_fails(injected):
    injected.add()
    assert False
"""


def test_only_faults_that_were_counted_are_reported(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
        "test_some.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120)
    assert count(report) == (5, 43, 1, 1)


def test_the_page_shows_the_results_that_are_kept():
    root = Path(__file__).parents[1]
    kept = json.loads((root / "benchmarks" / "results" / "reliability.json").read_text())
    page = (root / "docs" / "reliability.md").read_text()
    assert [result["scenario"] for result in kept["results"]] == [
        scenario.name for scenario in SCENARIOS
    ]
    assert f"--rounds {kept['rounds']}" in page
    for result in kept["results"]:
        row = (
            f"| {result['what']} | {result['injected']:,} | {result['tests']} | "
            f"{result['failed']} |"
        )
        assert row in page
