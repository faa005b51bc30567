"""Compiles everything that a training runs before its processes start.

Numba's optimiser treats a kernel differently when the kernels it calls came from its cache, and the last bits of a result may
follow. Processes that compile at the same time meet such mixtures; one that compiles before the others start does not, and
what they load then is what it runs itself.
"""

from __future__ import annotations

import copy

import torch

from navrl.config import Config
from navrl.rl.accelerate import accelerate
from navrl.rl.network import RowLayout, build_network
from navrl.sim.env import NavigationEnv


def compile_kernels(config: Config) -> None:
    """Run every kernel of a training once, on the smallest task that it can have."""
    task = copy.deepcopy(config.task)
    task.env.num_envs, task.env.num_worlds, task.env.obstacles_per_world, task.env.world_files = 1, 1, [0], []
    task.env_dyn.num_obstacles, task.env_dyn.obstacles_per_world = 8, []
    env = NavigationEnv(task)
    rows = env.observe_packed()
    env.step(torch.zeros(1, 3))
    layout = RowLayout(env.layout.azimuths, env.layout.beams, env.layout.observed)
    with torch.random.fork_rng(devices=[]):
        network = accelerate(build_network(config.network, layout))
    network.forward(rows)
    network(rows).sum().backward()
