"""What docs/checkpoints.md and the benchmark say is run, or it rots."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from io_states import TinyTraining

ROOT = Path(__file__).parents[2]


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


@pytest.mark.slow
def test_the_benchmark_still_runs():
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "navrl.cli",
        "bench",
        "checkpoint",
        "--smoke",
        "--check",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical at 1 MB" in done.stdout
