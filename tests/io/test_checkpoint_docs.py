"""The code of docs/checkpoints.md runs, its tables are the results, and the benchmark runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from io_states import TinyTraining

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _checkpoint_page  # noqa: E402


def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training = TinyTraining()
    names = {"model": training.model, "optimizer": training.adam, "train": training.step, "step": 7}
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "checkpoints.md").read_text(), re.S
    )
    assert len(blocks) == 2
    for block in blocks:
        # the same with less patience
        exec(block.replace("range(1, 1001)", "range(900, 1001)"), names)
    assert names["state"]["iteration"] == 1000
    assert (tmp_path / "runs" / "a" / "checkpoints" / "v1.0").exists()


def results():
    return json.loads(_checkpoint_page.RESULTS.read_text())


def test_the_measured_tables_are_those_of_the_results():
    page, readme = (path.read_text() for path in (_checkpoint_page.PAGE, _checkpoint_page.README))
    told = "run `python benchmarks/_checkpoint_page.py`"
    assert _checkpoint_page.written(page) == _checkpoint_page.generated(results()), told
    assert _checkpoint_page.written(readme) == _checkpoint_page.summary(results()), told
    for size in ("1 MB", "20 MB", "200 MB"):
        assert f"| {size} | stall ms |" in page


@pytest.mark.parametrize("name", ["PAGE", "README"])
def test_writing_the_tables_leaves_the_rest_of_a_page_alone(tmp_path, monkeypatch, name):
    pages = {one: getattr(_checkpoint_page, one).read_text() for one in ("PAGE", "README")}
    for one, page in pages.items():
        monkeypatch.setattr(_checkpoint_page, one, tmp_path / one)
        (tmp_path / one).write_text(page.replace(_checkpoint_page.written(page), "old"))
    _checkpoint_page.write_pages(results())
    assert (tmp_path / name).read_text() == pages[name]


@pytest.mark.slow
def test_the_benchmark_still_runs(run_benchmark):
    assert "identical at 1 MB" in run_benchmark("checkpoint", "--check")
