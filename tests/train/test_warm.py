"""The first training after an installation compiles, and ends with the same bits as those after it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from navrl.io.checkpoint import load_checkpoint

SMALL = (
    "preset=smoke", "headless=true", "env.num_envs=32", "env.num_worlds=2", "env.num_obstacles=10", "max_frame_num=1024",
    "eval_interval=0", "flight.episodes=4", "flight.interim_episodes=4", "flight.worlds=1", "flight.recorded=0",
    "flight.animation=false", "processes=1",
)  # fmt: skip


@pytest.mark.slow
def test_a_training_that_has_to_compile_first_ends_as_one_that_has_not(tmp_path):
    for name in ("first", "second"):
        command = [sys.executable, "-m", "navrl.cli", "train", *SMALL, f"run_folder={tmp_path / name}"]
        subprocess.run(
            command, check=True, capture_output=True, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
        )
    first, second = (load_checkpoint(tmp_path / name / "checkpoints" / "latest")["network"] for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
