"""What docs/collectors.md and its benchmark say is run, or it rots."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_code_on_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "collectors.md").read_text(), re.S)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    told = capsys.readouterr().out
    assert "frames/s" in told
    assert "collected by version 0" in told
    assert "CompressedTensorDict((64, 32)" in told


@pytest.mark.slow
def test_the_benchmark_still_runs():
    command = [sys.executable, "-W", "ignore", "-m", "navrl.cli", "bench", "collectors", "--smoke", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept: compressed" in done.stdout
