"""`make torture` reports the faults that tests have counted, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import torture
from torture import (
    HERE,
    KEPT,
    PAGE,
    SCENARIOS,
    Counts,
    Result,
    count,
    failed_tests,
    is_done,
    keep,
    kept,
    page,
    run_failed,
)

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


@pytest.mark.slow
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
    assert failed_tests("test_some.py", report) == ["test_some.py::test_that_fails"]


@pytest.mark.slow
def test_a_test_that_failed_and_passes_again_is_taken_off_the_result(tmp_path, monkeypatch):
    (tmp_path / "test_some.py").write_text("def test_mended(): pass\ndef test_not(): assert False")
    monkeypatch.setattr(torture, "HERE", tmp_path)
    failures = ["test_some.py::test_mended", "test_some.py::test_not"]
    old = Result("kill", "what", 9, 200, 2, 0, 78.0, {}, "abc", failures)
    new = run_failed(old, tmp_path)
    assert (new.tests, new.injected, new.failed) == (9, 200, 1)
    assert new.failures == ["test_some.py::test_not"]


def test_what_is_done_at_this_commit_with_these_counts_is_not_run_again():
    asked = Counts().environment("kill")
    done = Result("kill", "what", 9, 200, 0, 0, 78.0, asked, "abc")
    assert is_done(done, asked, "abc")
    assert not is_done(done, asked, "another commit")
    assert not is_done(done, Counts(kills=20).environment("kill"), "abc")
    assert not is_done(replace(done, failed=1), asked, "abc")
    assert not is_done(None, asked, "abc")


def test_the_page_shows_the_results_that_are_kept():
    results = kept(KEPT)
    assert [*results] == [scenario.name for scenario in SCENARIOS]
    assert page([*results.values()]) in PAGE.read_text()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_the_tests_of_a_scenario_are_there(scenario):
    assert all((HERE / test).is_file() for test in scenario.tests)


def test_counts_reach_the_tests_that_read_them():
    counts = Counts(rounds=3, kills=200, files=1_000_000, hostile=100_000, saves=10_000)
    assert counts.environment("kill")["NAVRL_TORTURE"] == "20"
    assert counts.environment("disk")["NAVRL_TORTURE"] == "3"
    assert counts.environment("damage")["NAVRL_FUZZ"] == "1000000"
    assert counts.environment("hostile")["NAVRL_HOSTILE"] == "62500"


def test_results_are_kept_in_the_order_of_the_scenarios_and_come_back(tmp_path):
    results = {
        name: Result(name, "what", 1, 2, 0, 0, 0.1, {"NAVRL_SAVES": "5"}, "abc")
        for name in ("hostile", "kill")
    }
    assert [one.scenario for one in keep(tmp_path / "r.json", results)] == ["kill", "hostile"]
    assert kept(tmp_path / "r.json") == results
    assert kept(tmp_path / "nothing.json") == {}
