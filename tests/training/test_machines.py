"""Two machines on loopback: two torchrun agents train together, lose a rank and a whole machine, and
end like a training that lost nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from machines import ITERATIONS, LONG, PATIENCE, machines, saved, wait_for

from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from training_runs import checkpoints, learning, same

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")]


def test_two_machines_lose_a_rank_and_a_machine_and_end_like_two_processes_that_lost_none(
    server, tmp_path
):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    server.train(whole, "processes=2", *LONG)
    with machines(folder, "2") as start:
        first, second = start(), start()
        wait_for(lambda: saved(folder) >= 8, first, second)
        os.kill(second.rank(), signal.SIGKILL)
        wait_for(lambda: saved(folder) >= 24, first, second)
        second.process.kill()
        third = start()
        for machine in (first, third):
            assert machine.process.wait(PATIENCE) == 0, machine.output.read_text()
    assert [record["iteration"] for record in learning(folder)] == [*range(1, ITERATIONS + 1)]
    assert same(*(final_state(run) for run in (folder, whole)))


def final_state(run: Path) -> dict[str, object]:
    state = load_checkpoint(checkpoints(run)[-1])
    state["config"].pop("run_folder")
    return state
