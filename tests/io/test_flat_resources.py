"""Memory and open files stay flat over many saves.

The long mode saves as often as asked for: `NAVRL_SAVES=10000 pytest tests/io/test_flat_resources.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from navrl.io import CheckpointDirectory

SAVES = int(os.environ.get("NAVRL_SAVES", 60))
ALLOWED = 8_000_000  # bytes that allocators may keep


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_and_open_files_are_flat_over_many_saves(tmp_path, injected):
    state = {"weights": torch.randn(200, 200), "moments": [torch.rand(200, 200)], "step": 0}
    with CheckpointDirectory(tmp_path / "checkpoints", keep_last_n=3) as checkpoints:
        for step in range(SAVES):
            state["step"] = step
            checkpoints.save(step, state)
            if step % 10 == 9 or step == SAVES // 3:
                checkpoints.flush()
            if step == SAVES // 3:
                files, memory = open_files(), resident()
        checkpoints.flush()
        assert open_files() <= files
        assert resident() - memory < ALLOWED
        assert [entry.step for entry in checkpoints.entries()] == [*range(SAVES - 3, SAVES)]
    injected.add(SAVES)
