"""The simulator's threads are its own affair."""

from __future__ import annotations

import subprocess
import sys

import numba
import pytest
import torch

from navrl.sim.threads import one_thread

SCRIPT = """
import torch
torch.set_num_threads(1)
from navrl import NavigationEnv, NavigationSettings
from navrl.sim.grid import LocalGrids
settings = dict(env__num_envs=64, env__num_obstacles=5, env_dyn__num_obstacles=8, sim__num_threads={threads})
env = NavigationEnv(NavigationSettings.of(**settings))
env.reset()
env.step(torch.zeros(64, 3))
LocalGrids(env, cells=4).observe()
print(torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_torch_keeps_the_threads_that_it_was_told_to_use(threads):
    """Starting numba's threads sets the number of OpenMP threads, which torch uses too; training
    would then round differently.
    """
    command = [sys.executable, "-c", SCRIPT.format(threads=threads)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [
        "1"
    ]


def test_few_drones_fly_in_one_thread_and_the_numbers_of_threads_return():
    before = numba.get_num_threads(), torch.get_num_threads()
    with one_thread():
        assert (numba.get_num_threads(), torch.get_num_threads()) == (1, 1)
    assert (numba.get_num_threads(), torch.get_num_threads()) == before
