"""The order of the tests, and what of them runs in one process, is about tests that are there."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def test_what_begins_first_and_what_runs_together_is_there(pytestconfig):
    table = pytestconfig.pluginmanager.get_plugin(str(HERE / "conftest.py"))
    places = {*table.TOGETHER, *table.LONG} - {*table.TOGETHER.values()}
    assert [place for place in sorted(places) if not (HERE.parent / place).exists()] == []
    assert {table.TRAINED, "tests/tracking", "tests/deploy"} <= {*table.TOGETHER.values()}
