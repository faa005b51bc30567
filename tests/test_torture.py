"""`make torture` reports the faults that tests have counted, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torture import count

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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", "test_some.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120)
    assert count(report) == (5, 43, 1, 1)
