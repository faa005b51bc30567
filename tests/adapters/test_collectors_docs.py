"""What docs/collectors.md, docs/adapters.md and the benchmark say is run, or it rots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_page(name):
    """Run the snippets of a page one after another, and return how many there are."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.S)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    return len(blocks)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_code_on_the_page_of_adapters_runs(capsys):
    assert run_page("adapters.md") == 4
    told = capsys.readouterr().out
    assert "(1, 36, 4)" in told
    assert "success" in told
    assert "torch.Size([16, 60])" in told


@pytest.mark.slow
def test_the_code_on_the_page_of_collectors_runs(capsys):
    assert run_page("collectors.md") == 4
    told = capsys.readouterr().out
    assert "frames/s" in told
    assert "collected by version 0" in told
    assert "CompressedTensorDict((64, 32)" in told


@pytest.mark.slow
def test_the_benchmark_still_runs(run_benchmark):
    assert "kept: compressed" in run_benchmark("collectors", "--check")
