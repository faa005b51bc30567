"""The code of docs/checkpoints.md runs, its tables are the results, and the benchmark runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _checkpoint_page  # noqa: E402
import _page  # noqa: E402


def test_each_snippet_of_the_page_runs_as_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "checkpoints.md").read_text(), re.S
    )
    assert len(blocks) == 2
    saver, directory = ({}, {})
    exec(blocks[0].replace("range(1, 1001)", "range(995, 1001)"), saver)  # with less patience
    exec(blocks[1], directory)
    assert saver["state"]["iteration"] == 1000
    assert directory["state"]["model"].keys() == {"weight", "bias"}
    assert (tmp_path / "runs" / "a" / "checkpoints" / "v1.0").exists()


def results():
    return json.loads(_checkpoint_page.RESULTS.read_text())


def test_the_measured_tables_are_those_of_the_results():
    page = _checkpoint_page.PAGE.read_text()
    shown = _page.written(page, _checkpoint_page.WRITER)
    assert shown == _checkpoint_page.generated(results()), f"run `python {_checkpoint_page.WRITER}`"
    for size in ("1 MB", "20 MB", "200 MB"):
        assert f"| {size} | stall ms |" in page


def test_writing_the_tables_leaves_the_rest_of_the_page_alone(tmp_path, monkeypatch):
    page = _checkpoint_page.PAGE.read_text()
    monkeypatch.setattr(_checkpoint_page, "PAGE", tmp_path / "page")
    shown = _page.written(page, _checkpoint_page.WRITER)
    (tmp_path / "page").write_text(page.replace(shown, "old"))
    _checkpoint_page.write_pages(results())
    assert (tmp_path / "page").read_text() == page


@pytest.mark.slow
def test_the_benchmark_still_runs(run_benchmark):
    assert "identical at 1 MB" in run_benchmark("checkpoint", "--check")
