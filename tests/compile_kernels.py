"""Compile the kernels that many tests need, so that no two test processes compile the same ones."""

from __future__ import annotations

import gc

import numpy as np

from navrl.config import load_config
from navrl.deploy.shield import Shield
from navrl.kernel_cache import compile_alone
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.training.compile_kernels import run_kernels


def main() -> None:
    """Compile what a training, a flight from a given start and the shield need."""
    gc.disable()  # compiling makes millions of objects, and nearly all of them stay
    with compile_alone():
        run_kernels(load_config(["preset=smoke"]))
        env = NavigationEnv(NavigationSettings.of(env__num_envs=1, env__num_worlds=1))
        env.place([0.0, 0.0, 2.0], [10.0, 0.0, 2.0])
        here = np.zeros((1, 3))
        Shield()(here, position=here, velocity=here, lidar=np.ones((1, 36, 4)))


if __name__ == "__main__":
    main()
