"""SAC that learns from pictures: a local map of 42 x 42 cells around the drone instead of a LiDAR.

The memory holds every picture once, compressed: the last line says what that saves.

    python examples/sac_from_grids.py --minutes 10
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from navrl import FrameStore, NavigationEnv, NavigationSettings
from navrl.rl.accelerate import PlainNetwork
from navrl.rl.distributions import gaussian
from navrl.rl.networks.grid_networks import GridActor, GridCritic
from navrl.rl.policy import to_velocity
from navrl.rl.sac import SAC, SACSettings
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.grid import LocalGrids

CELLS, RESOLUTION = 42, 0.2
SUCCESS = STATISTICS.index("success_100")


def observe(batch: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, Tensor]:
    """Return what actor and critic look at."""
    return batch[f"{prefix}grid"], batch[f"{prefix}state"]


def main() -> None:
    """Fly, remember, learn, until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--transitions",
        type=float,
        default=float("inf"),
        help="end after so many, if that is earlier",
    )
    parser.add_argument("--drones", type=int, default=64)
    parser.add_argument("--obstacles", type=int, default=50)
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()

    task = NavigationSettings()
    task.env.num_envs, task.env.num_worlds, task.env.action_repeat = arguments.drones, 16, 6
    task.env.num_obstacles = arguments.obstacles
    task.env_dyn.num_obstacles = 8
    task.env.action_frame = "goal"
    # so that the last picture of an episode can be taken
    env = NavigationEnv(task, auto_reset=False)
    grids = LocalGrids(env, cells=CELLS, resolution=RESOLUTION)
    settings = SACSettings(batch_size=arguments.batch, capacity=200_000)
    torch.manual_seed(0)
    actor = GridActor(CELLS)
    applied = PlainNetwork(actor)
    sac = SAC(
        actor, applied, GridCritic(CELLS), settings, torch.Generator().manual_seed(1), observe
    )
    memory = FrameStore(settings.capacity, streams=arguments.drones)
    random = torch.Generator().manual_seed(2)

    state, grid = env.reset()["state"].clone(), grids.observe()
    start = told = time.perf_counter()
    reached, ended, frames = 0.0, 0, 0
    while (
        spent := time.perf_counter() - start
    ) < 60 * arguments.minutes and frames < arguments.transitions:
        noise = torch.randn(arguments.drones, 3, generator=random)
        with torch.no_grad():
            action, _ = gaussian.sample(applied.infer((grid, state)), noise)
        step = env.step(to_velocity(action, task.env.action_limit))
        next_state, next_grid, done = step.observation["state"].clone(), grids.observe(), step.done
        memory.extend(
            {
                "grid": grid,
                "state": state,
                "action": action,
                "reward": step.reward,
                "discount": settings.gamma * (~step.terminated),
                "next/grid": next_grid,
                "next/state": next_state,
            }
        )
        frames += arguments.drones
        ended = ended + int(done.sum())
        reached = reached + float(step.statistics[done, SUCCESS].sum())
        state, grid = next_state, next_grid
        if done.any():
            state, grid = env.reset(mask=done)["state"].clone(), grids.observe()
        if frames >= 10 * arguments.batch:
            sac.update(memory.sample(arguments.batch, random), spent / (60 * arguments.minutes))
        if time.perf_counter() - told > 10:
            told = time.perf_counter()
            share = (
                f"{100 * reached / ended:.0f} % of {ended} episodes reached the goal"
                if ended
                else "no episode ended"
            )
            print(f"{spent:4.0f} s  {frames} frames  {sac.updates} updates  {share}", flush=True)
            reached, ended = 0.0, 0
    plain = len(memory) * (2 * 2 * CELLS * CELLS + 2 * 8 * 4 + 3 * 4 + 4 + 1)
    print(
        f"{len(memory)} transitions in {memory.nbytes() / 1e6:.1f} MB; uncompressed "
        f"{plain / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
