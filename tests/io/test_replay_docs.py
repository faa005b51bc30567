"""What docs/replay.md and the benchmark say is run, or it rots."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("torchrl")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "replay.md").read_text(), re.S)
    assert len(blocks) == 7
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["again"].nbytes() == names["store"].nbytes()
    assert names["slices"].shape == (64,)
    assert names["sampled"].shape == (64,)
    assert names["batch"]["grid"].shape == (64, 2, 84, 84)
    assert (names["episode"], names["place"]) == (1, 30)
    assert np.array_equal(names["one"], names["grids"][0])
    assert np.array_equal(names["all_five"], names["grids"])


@pytest.mark.slow
def test_the_benchmark_still_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_BENCHMARK_FOLDER", str(tmp_path))
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "navrl.cli",
        "bench",
        "replay",
        "--smoke",
        "--check",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "navrl, LiDAR, 1,600" in done.stdout
