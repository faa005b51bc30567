"""`navrl world`: look at a world from above."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.sim.env import NavigationEnv

EPILOG = """examples:
  navrl world --png world.png                                    a random world of the pool
  navrl world --png exact.png env=navrl_exact                    the original's one map
  navrl world --png mine.png env.world_files=[my_world.yaml]     a world of your own (YAML, PNG or NPZ)
  navrl world --png later.png --steps 500                        after 500 decisions of the scripted pilot
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "world",
        help="draw a world with drones, goals, rays and moving obstacles",
        description="Draw a world from above, and one drone with its LiDAR rays close up.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, such as env.num_obstacles=200"
    )
    parser.add_argument(
        "--png",
        type=Path,
        default=Path("world.png"),
        help="where the picture goes (default: %(default)s)",
    )
    _add_flight(parser)
    parser.set_defaults(run=run)


def _add_flight(parser: Any) -> None:
    parser.add_argument(
        "--world", type=int, default=0, help="which world of the pool (default: %(default)s)"
    )
    parser.add_argument(
        "--drones", type=int, default=8, help="drones in that world (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=300, help="decisions to fly first (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Build the worlds, fly a little, draw."""
    from navrl.config import load_config
    from navrl.errors import ConfigError
    from navrl.sim.env import NavigationEnv
    from navrl.view.topdown import save_world

    if arguments.png.suffix.lower() != ".png":
        raise ConfigError(f"--png is {arguments.png}; expected a name that ends in .png")
    config = load_config(arguments.overrides)
    task = config.task
    task.env.num_envs = arguments.drones
    task.env.change_world_at_reset = False
    task.env.action_frame = "goal"
    if not 0 <= arguments.world < task.env.num_worlds:
        raise ConfigError(
            f"--world is {arguments.world}; the pool has worlds 0 to {task.env.num_worlds - 1}"
        )
    env = NavigationEnv(task, seed=config.seed)
    env.set_all_worlds(arguments.world)
    _fly(env, arguments.steps)
    save_world(env, arguments.png, world=arguments.world)
    print(f"look at {arguments.png}")
    return 0


def _fly(env: NavigationEnv, steps: int) -> None:
    """Fly with the scripted pilot from a reset."""
    from navrl.rl.scripted import scripted_pilot

    limit, lidar_range = env.settings.env.action_limit, env.settings.sensor.lidar_range
    observation = env.reset()
    for _ in range(steps):
        observation = env.step(scripted_pilot(observation, limit, lidar_range)).observation
