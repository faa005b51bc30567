"""Compiles everything that a training runs before it starts, in a process of its own.

Numba optimises a function again when it links it into its callers. The process that compiles finds both forms and runs one of
them, a process that loads the result from numba's cache runs the other, and their last bits may differ. So that a run that was
killed goes on as it began, none of its processes compiles: a child does, once, and all of them load what it has left.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import torch

from navrl.config import Config, as_yaml, from_dict
from navrl.rl.accelerate import accelerate
from navrl.rl.network import RowLayout, build_network
from navrl.sim.env import NavigationEnv


def compile_kernels(config: Config) -> None:
    """Have everything compiled that a training runs; a child that fails is no reason to stop: it is compiled here then."""
    if not compiled_before():
        subprocess.run([sys.executable, "-m", "navrl.train.warm"], input=as_yaml(config), text=True, check=False)
    run_kernels(config)


def compiled_before() -> bool:
    """Tell whether numba's cache holds the simulator's step."""
    place = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1])
    return any(place.rglob("kernel._step_chunk-*.nbi"))


def run_kernels(config: Config) -> None:
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


def main() -> None:
    """Compile for the settings that come as YAML."""
    import yaml

    run_kernels(from_dict(yaml.safe_load(sys.stdin.read())))


if __name__ == "__main__":
    main()
