"""`navrl train`: the main job. Train a policy, watch it learn, evaluate it on unseen worlds, leave a model and pictures."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.config import Config
    from navrl.train.folder import RunFolder
    from navrl.train.publish import Publisher

EPILOG = """presets:
  preset=quick         a good policy in about twelve minutes on two cores (the default)
  preset=best          the recipe of the policy in the package
  preset=sac           soft actor-critic among few obstacles (the default with algo=sac)
  preset=navrl_exact   the original's task, network and algorithm
  preset=smoke         seconds

examples:
  navrl train
  navrl train env.num_envs=1024 env.num_obstacles=350 env_dyn.num_obstacles=80 headless=True
  navrl train preset=best seed=3 run_folder=runs/mine
  navrl train resume=auto                              go on with the newest run, bit for bit
  navrl train resume_checkpoint=runs/mine/checkpoints/latest
  navrl train resume_checkpoint=policy:stable          from a checkpoint in the registry (navrl models)
  navrl train network=vit algo.actor.learning_rate=5e-4
  navrl train --cfg job                                print every setting and its value
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "train",
        help="train a policy, evaluate it on unseen worlds, leave a model and pictures",
        description="Train a policy to fly to its goal. Everything goes into a folder below runs/: settings, metrics, "
        "checkpoints, evaluations, the best model, pictures. Ctrl+C saves and stops; resume=auto goes on.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, such as env.num_obstacles=200")
    parser.add_argument("--cfg", nargs="?", const="job", metavar="job", help="print the configuration and stop")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, evaluate, draw; return 0, or 128 and the signal that stopped it."""
    from rich.console import Console

    from navrl.config import as_dict, as_yaml, load_config
    from navrl.tracking.recorder import Tracking, check_trackers
    from navrl.train.publish import Publisher

    typed = [*arguments.overrides, *([arguments.cfg] if arguments.cfg not in (None, "job") else [])]
    preset = "preset=sac" if "algo=sac" in typed else "preset=quick"
    overrides = typed if any(key.startswith("preset=") for key in typed) else [preset, *typed]
    config = load_config(overrides)
    if arguments.cfg:
        print(as_yaml(config), end="")
        return 0
    console = Console(force_terminal=False if config.headless else None)
    check_trackers(config.tracking)
    folder, config, state = _open_folder(config, typed)
    with (
        folder,
        Tracking(config.tracking, as_dict(config), folder.path) as tracking,
        Publisher(config.registry, tracking) as publisher,
    ):
        code = _train(config, state, folder, publisher, console)
        if code == 0:
            _finish(config, folder.path, publisher, console)
    return code


def _train(config: Config, state: dict[str, Any] | None, folder: RunFolder, publisher: Publisher, console: Any) -> int:
    from navrl.train.display import open_display
    from navrl.train.loop import Order, follow, lead
    from navrl.train.stopping import StopRequest
    from navrl.train.team import assemble
    from navrl.train.warm import compile_kernels

    order = Order(config, state)
    with StopRequest() as stop, open_display(console, f"navrl train: {folder.path}") as display:
        if state is not None:
            display.note(f"resumed after iteration {state['iteration']}")
        display.note(f"{config.processes} processes, {config.env.num_envs} drones; the first run compiles for about a minute")
        compile_kernels(config)
        with assemble(config.processes, follow, order) as team:
            finished = lead(team, order, folder, display, stop, publisher)
        return 0 if finished else stop.exit_code


def _open_folder(config: Config, overrides: list[str]) -> tuple[RunFolder, Config, dict[str, Any] | None]:
    """Return the folder of the run, locked, its settings, and the state to go on from."""
    from navrl.config import as_yaml
    from navrl.train.folder import RunFolder, default_name
    from navrl.train.resume import continued_config, find_run, load_state

    command = ["navrl", "train", *overrides]
    if not (config.resume or config.resume_checkpoint):
        _settle_processes(config)
        return RunFolder.create(config.run_folder or default_name(), as_yaml(config), command), config, None
    path = find_run(config)
    folder = RunFolder.open(path, lock=True) if (path / "run.json").exists() else None
    try:
        state = load_state(config, path)
        config = continued_config(state["config"], overrides)
        folder = folder or RunFolder.create(path, as_yaml(config), command)
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    folder.record_resume(command, state["iteration"])
    return folder, config, state


def _settle_processes(config: Config) -> None:
    """Choose the number of processes where none was asked for; refuse one that does not divide the work."""
    from navrl.errors import ConfigError

    config.processes = config.processes or _fitting_processes(config)
    for key, value in (("env.num_envs", config.env.num_envs), ("flight.interim_episodes", config.flight.interim_episodes)):
        if value % config.processes:
            raise ConfigError(f"{key} is {value}; expected a multiple of the {config.processes} processes (processes=N)")


def _fitting_processes(config: Config) -> int:
    """Return how many processes share the drones: as many as cores, if they divide them; one for SAC or a GPU."""
    if config.device != "cpu" or config.env.same_map or config.algorithm == "sac":
        return 1
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(n for n in range(1, cores + 1) if config.env.num_envs % n == 0 and config.flight.interim_episodes % n == 0)


def _finish(config: Config, folder: Path, publisher: Publisher, console: Any) -> None:
    """Evaluate the model of the run, tell the registry and the trackers, and say where everything is."""
    from navrl.commands.evaluate import fly_and_report
    from navrl.evaluate import load_policy

    policy = load_policy(folder)
    rows = fly_and_report(policy, str(folder), config, set(), folder, console)
    label = publisher.judged(folder / "model.pt", rows)
    shares = {label: row["outcomes"]["success_100"]["share"] for label, row in rows.items()}
    publisher.tracking.summary({f"judged/{label}": share for label, share in shares.items()})
    for name, take in (("flights.png", publisher.tracking.image), ("flights.gif", publisher.tracking.video)):
        if (folder / name).is_file():
            take(policy.card["iteration"], name.replace(".", "_"), folder / name)
    console.print(f"the model: [bold]{folder / 'model.pt'}[/bold]   fly it: [bold]navrl eval {folder}[/bold]", soft_wrap=True)
    if label:
        known = f"registered as [bold]{label}[/bold]   all models: [bold]navrl models ls[/bold]"
        console.print(known, soft_wrap=True)
