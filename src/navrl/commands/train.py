"""`navrl train`: the main job. For now it flies the scripted pilot over unseen worlds, with statistics and pictures."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from navrl.config import Config
    from navrl.evaluate import Flights

EPILOG = """examples:
  navrl train                                          1024 flights over 16 unseen worlds
  navrl train env_dyn.num_obstacles=0                  without moving obstacles
  navrl train env=navrl_exact flight.episodes=256      the original's task
  navrl train --cfg                                    print every setting and its value
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "train",
        help="fly many worlds, print the statistics, leave a picture and an animation",
        description="Learning is not there yet: this flies the scripted pilot, the baseline that learning has to beat.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, such as env.num_obstacles=200")
    parser.add_argument("--out", type=Path, default=Path("runs/flight"), help="folder for the pictures (default: %(default)s)")
    parser.add_argument("--cfg", action="store_true", help="print the configuration and stop")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fly, print the table, write the pictures."""
    from rich.console import Console

    from navrl.config import as_yaml, load_config

    config = load_config(arguments.overrides)
    if arguments.cfg:
        print(as_yaml(config), end="")
        return 0
    _make_folder(arguments.out)
    console = Console()
    console.print("[bold]Flying the scripted pilot over unseen worlds[/bold] (the first run compiles the simulator)")
    start = time.perf_counter()
    env, flights, simulated = _fly(config, console)
    seconds = time.perf_counter() - start
    console.print(_table(config, flights))
    console.print(f"{simulated:,.0f} simulated steps in {seconds:.1f} s, pilot included")
    _draw(arguments.out, env, flights, config, console)
    return 0


def _make_folder(folder: Path) -> None:
    """Make the folder before flying, so that a mistake in its name costs no time."""
    from navrl.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be made a folder: {error.strerror}; name another") from error


def _fly(config: Config, console: Console) -> tuple[Any, Flights, float]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from navrl.evaluate import evaluate
    from navrl.rl.scripted import scripted_pilot
    from navrl.sim.env import NavigationEnv

    task = config.task
    task.env.num_envs, task.env.action_frame = config.flight.episodes, "goal"
    if not task.env.same_map:
        task.env.num_worlds, task.env.map_seed = config.flight.worlds, config.flight.map_seed
    with console.status("building worlds, compiling kernels"):
        env = NavigationEnv(task, seed=config.seed, auto_reset=False)
        env.reset()
    columns = (TextColumn("episodes ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=env.num_envs)
        flights = evaluate(
            env,
            lambda observation: scripted_pilot(observation, task.env.action_limit, task.sensor.lidar_range),
            recorded=config.flight.recorded,
            progress=lambda done, of: progress.update(bar, completed=done),
        )
    return env, flights, float(flights.statistics["length"].sum())


def _table(config: Config, flights: Flights) -> Table:
    from rich.table import Table

    from navrl.evaluate import OUTCOMES

    worlds = len(flights.world.unique())
    counts = f"{config.env.num_obstacles} static and {config.env_dyn.num_obstacles} moving obstacles"
    title = f"{len(flights.world)} episodes in {worlds} worlds, {counts}"
    table = Table(title=title)
    for heading in ("outcome", "share", "± between worlds"):
        table.add_column(heading, justify="left" if heading == "outcome" else "right")
    for name, label in OUTCOMES.items():
        mean, error = flights.rate(name)
        table.add_row(label, f"{100 * mean:.1f} %", f"{100 * error:.1f}" if error == error else "")
    for label, name, unit in (
        ("speed", "mean_speed", "m/s"),
        ("time to goal", "time_to_goal", "s"),
        ("least clearance", "min_clearance", "m"),
    ):
        table.add_row(f"{label} of successes", f"{flights.of_successes(name):.2f} {unit}", "")
    return table


def _draw(folder: Path, env: Any, flights: Flights, config: Config, console: Console) -> None:
    from navrl.view.topdown import save_animation, save_flights

    with console.status("drawing"):
        save_flights(env, flights, folder / "flights.png")
        if config.flight.animation:
            save_animation(env, flights, folder / "flights.gif")
    console.print(
        f"look at [bold]{folder / 'flights.png'}[/bold]"
        + (f" and [bold]{folder / 'flights.gif'}[/bold]" if config.flight.animation else "")
    )
