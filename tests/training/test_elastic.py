"""torchrun --nnodes 1:2 on loopback: machines join a training and leave it, and it goes on."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from machines import PATIENCE, Machine, machines, saved, wait_for

from navrl.io.checkpoint.listing import list_entries
from training_runs import learning

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")]

FRAMES = 256  # of an iteration
ENDLESS = f"max_frame_num={FRAMES * 1_000_000}"
HIGHER, LOWER = "127.0.0.2", "127.0.0.1"  # the machine with the lower address gets rank 0


def ranks(folder: Path) -> int:
    """Return how many ranks wrote the newest checkpoint; 0 without one."""
    entries = list_entries(folder / "checkpoints") if folder.exists() else []
    newest = max(entries, key=lambda entry: entry.age, default=None)
    return 0 if newest is None else 1 + len(newest.parts)


def wait_for_ranks(folder: Path, number: int, *watched: Machine) -> None:
    """Return when so many ranks have trained for a while."""
    wait_for(lambda: ranks(folder) == number, *watched)
    reached = saved(folder)
    wait_for(lambda: saved(folder) >= reached + 8, *watched)
    assert ranks(folder) == number


def test_a_training_goes_on_while_machines_join_leave_and_are_lost_and_ends(tmp_path):
    folder = tmp_path / "run"
    with machines(folder, "1:2", ENDLESS) as start:
        first = start(HIGHER)
        wait_for_ranks(folder, 1, first)
        second = start(LOWER)  # becomes rank 0
        wait_for_ranks(folder, 2, first, second)
        second.process.send_signal(signal.SIGTERM)  # the first machine is not told
        wait_for_ranks(folder, 1, first, second)
        third = start(LOWER)
        wait_for_ranks(folder, 2, first, third)
        third.process.kill()
        wait_for_ranks(folder, 1, first, third)
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(PATIENCE)
    last = saved(folder) + 8
    with machines(folder, "1:2", f"max_frame_num={FRAMES * last}") as start:
        again = start()
        assert again.process.wait(PATIENCE) == 0, again.output.read_text()
    assert saved(folder) == last
    assert [record["iteration"] for record in learning(folder)] == [*range(1, last + 1)]
