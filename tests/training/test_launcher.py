"""Launching ranks on this machine: started again if killed, gone with the launcher, and an error
of any of them reaches the caller.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from navrl.training.distributed.launched import join, place_of_this_process
from navrl.training.distributed.launcher import launch
from navrl.training.signals import StopRequest

pytestmark = pytest.mark.slow

PATIENCE = 120.0  # s, on a machine that has more to do


def sum_after_a_death(who_dies: int) -> tuple[float, int]:
    """Sum the ranks plus one; one of them is killed before it does so for the first time."""
    place = place_of_this_process()
    with join(place) as team:
        if place.restarts == 0 and place.rank == who_dies:
            os.kill(os.getpid(), signal.SIGKILL)
        total = torch.tensor([team.rank + 1.0])
        team.all_reduce(total)
        return total.item(), place.restarts


def test_all_ranks_are_started_again_after_one_was_killed():
    assert launch(2, sum_after_a_death, (1,), StopRequest()) == (3.0, 1)


def fail_in(rank: int) -> None:
    with join(place_of_this_process()) as team:
        if team.rank == rank:
            raise ZeroDivisionError(f"a mistake of rank {rank}")
        team.broadcast(None)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_a_rank_is_raised_with_its_traceback(rank, capfd):
    with pytest.raises(ZeroDivisionError, match=f"a mistake of rank {rank}") as raised:
        launch(2, fail_in, (rank,), StopRequest())
    assert "in fail_in" in "".join(raised.value.__notes__)
    assert capfd.readouterr().err == ""  # nothing of torch's own reports


def tell_processes_and_sleep() -> None:
    with join(place_of_this_process()):
        os.write(1, f"{os.getpid()}\n".encode())
        time.sleep(600)


def test_no_rank_outlives_a_launcher_that_was_killed():
    code = "import test_launcher as t; t.launch(2, t.tell_processes_and_sleep, (), t.StopRequest())"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    ) as launcher:
        ranks = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.kill()
    end = time.monotonic() + PATIENCE
    while any(map(runs, ranks)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(runs, ranks))


JOIN_AS_A_CHILD_OF_PROCESS_1 = """
import os, sys
from navrl.training.distributed.launched import Place, join
assert os.getpid() == 1
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with join(Place(rank=0, size=1, local_rank=0, machines=1, restarts=0, store="")):
    os._exit(42)
"""
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


@pytest.mark.skipif(
    not shutil.which("unshare")
    or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode,
    reason="a process 1 of one's own needs root and unshare",
)
def test_a_launcher_may_be_process_1_as_in_a_container():
    command = [*NAMESPACE, sys.executable, "-c", JOIN_AS_A_CHILD_OF_PROCESS_1]
    assert subprocess.run(command, timeout=PATIENCE).returncode == 42


def runs(process: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
