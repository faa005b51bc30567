"""kill -9 while rollouts are written: what is visible is whole, and the next start cleans up. And
docs/rollouts.md runs.
"""

from __future__ import annotations

import os
import random
import re
import signal
import textwrap
import time
from pathlib import Path

import pytest
import torch

import forked
from injected import ROUNDS
from navrl.io.container.atomic_files import TEMPORARY_PATTERN
from navrl.io.rollouts.storage import RolloutStorage

ROOT = Path(__file__).parents[2]

ENDLESS = """
    import os, sys, torch
    from navrl.io.rollouts.storage import RolloutStorage
    torch.set_num_threads(1)
    for line in sys.stdin:  # one folder a line: a fresh process for each, without importing everything again
        child = os.fork()
        if child == 0:
            storage = RolloutStorage(line.strip(), keep_last_n=3, workers=1)
            iteration = 0
            while True:
                iteration += 1
                storage.save({"lidar": torch.full((64, 32, 50), float(iteration)), "noise": torch.rand(64, 32, 9)}, iteration)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)
"""


@pytest.mark.slow
def test_a_training_killed_at_random_moments_leaves_whole_rollouts_only(tmp_path, injected):
    generator, seen = random.Random(0), 0
    with forked.start(textwrap.dedent(ENDLESS)) as server:
        for number in range(8 * ROUNDS):
            injected.add()
            folder = tmp_path / str(number % 2)  # each is gone on with, over what a killed one left
            print(folder, file=server.stdin, flush=True)
            child = int(server.stdout.readline())
            deadline = time.monotonic() + 60
            while not [*folder.glob("rollout_*")] and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(generator.uniform(0.0, 0.1))
            os.kill(child, signal.SIGKILL)
            assert server.stdout.readline() == "gone\n"
            storage = RolloutStorage(folder)
            for iteration in storage.list():
                assert torch.equal(
                    storage.load(iteration, keys="lidar")["lidar"],
                    torch.full((64, 32, 50), float(iteration)),
                )
                assert storage.load(iteration)["noise"].shape == (64, 32, 9)
                seen += 1
        server.stdin.close()
    assert seen >= 8
    with RolloutStorage(tmp_path / "0") as storage:
        storage.save({"lidar": torch.zeros(64, 32, 50)}, 1, wait=True)
    assert [*(tmp_path / "0").glob(TEMPORARY_PATTERN)] == []


def test_the_code_on_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "rollouts.md").read_text(), re.S)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["scans"]["observation"]["lidar"].shape == (8, 10, 36, 4)
    assert names["drone"]["observation"]["lidar"].shape == (32, 36, 4)
    assert torch.equal(names["whole"]["reward"], names["data"]["reward"] - 1)
    assert capsys.readouterr().out.startswith("[2, 3] ")


@pytest.mark.slow
def test_the_benchmark_still_runs(run_benchmark):
    assert "pickle + LZ4-9" in run_benchmark("rollouts", "--check")
