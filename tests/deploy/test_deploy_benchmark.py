"""The benchmark of deployment: flights are kept between runs, and its tables follow the numbers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    for name in ("_deploy_flights", "_deploy_page"):
        sys.modules.pop(name, None)


def test_a_run_continues_with_the_flights_that_are_missing(benchmarks):
    from _deploy_flights import KeptFlights

    def never():
        raise AssertionError("flown again")

    first = KeptFlights("policy", 2048)
    assert first.flown("crossing: policy", lambda: {"success": 0.5}) == {"success": 0.5}
    again = KeptFlights("policy", 2048)
    assert again.flown("crossing: policy", never) == {"success": 0.5}
    other = KeptFlights("another policy", 2048)
    assert other.flown("crossing: policy", lambda: {"success": 0.7}) == {"success": 0.7}


def test_the_page_tells_the_longest_delay_that_costs_little(benchmarks):
    from _deploy_page import _delays

    shares = {"0 ms": 0.90, "80 ms": 0.89, "160 ms": 0.80, "240 ms": 0.895}
    cases = {f"delay: {name}": {"success": share} for name, share in shares.items()}
    for suffix in (" + compensation", " + shield", " + shield + compensation"):
        cases |= {f"delay: {name}{suffix}": {"success": 0.95} for name in shares}
    table = _delays(cases, list(cases)).splitlines()
    assert table[2] == "| as measured | 90.0 | 89.0 | 80.0 | 89.5 | 80 ms |"
    assert all(row.endswith("| 95.0 | 240 ms |") for row in table[3:6])
