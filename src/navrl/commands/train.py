"""`navrl train`: the main job. Train a policy, watch it learn, evaluate it on unseen worlds, leave
a model and pictures.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from navrl.errors import NavrlError

if TYPE_CHECKING:
    from rich.console import Console

    from navrl.config import Config
    from navrl.training.loop import Ending
    from navrl.training.resume.open_run import Opened
    from navrl.training.run_folder import RunFolder
    from navrl.training.saving.publisher import Publisher
    from navrl.training.signals import StopRequest
    from navrl.training.terminal import Output

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
  navrl train resume=auto                              go on with the newest unfinished run, bit for bit
  navrl train resume_checkpoint=runs/mine run_folder=runs/longer max_frame_num=48e6
  navrl train resume_checkpoint=policy:best            goes on from a checkpoint, starts anew from a model
  navrl train resume_checkpoint=ada/drones/policy:best fetched from W&B if it is not here
  navrl train network=vit algo.actor.learning_rate=5e-4
  navrl train --config-path cfg --config-name mine     settings of cfg/mine.yaml, overrides on top
  navrl train --cfg job                                print every setting and its value
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "train",
        help="train a policy, evaluate it on unseen worlds, leave a model and pictures",
        description="Train a policy to fly to its goal. Everything goes into a folder below "
        "runs/: settings, metrics, "
        "checkpoints, evaluations, the best model, pictures. Ctrl+C saves and stops; "
        "resume=auto goes on. "
        "Closing the terminal saves too, and the training goes on.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, such as env.num_obstacles=200"
    )
    parser.add_argument(
        "--cfg", nargs="?", const="job", metavar="job", help="print the configuration and stop"
    )
    parser.add_argument(
        "--config-path",
        metavar="DIR",
        help="folder of a configuration file of your own (default: here)",
    )
    parser.add_argument(
        "--config-name",
        metavar="NAME",
        help="its name without .yaml (default: config); overrides go on top of it",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, evaluate, draw.

    Returns:
        0: finished; 1: something could not be saved; 128 and the signal that stopped it.
    """
    from navrl.training.signals import Stopped, StopRequest
    from navrl.training.terminal import surviving_output

    with surviving_output() as output, StopRequest() as stop:
        try:
            return _run(arguments, output, stop)
        except Stopped:
            output.write(
                f"\nnavrl: stopped by {signal.Signals(stop.signal or signal.SIGINT).name}\n"
            )
            return stop.exit_code


def _run(arguments: argparse.Namespace, output: Output, stop: StopRequest) -> int:
    from rich.console import Console

    from navrl.config import as_dict, as_yaml, load_config, our_overrides, with_default_preset
    from navrl.tracking.tracker import Tracking, check_trackers
    from navrl.training.resume.open_run import open_run
    from navrl.training.saving.publisher import Publisher
    from navrl.training.signals import Stopped

    typed = our_overrides(_typed(arguments))
    config = load_config(with_default_preset(typed))
    if arguments.cfg:
        print(as_yaml(config), end="")
        return 0
    console = Console(file=cast(IO[str], output), force_terminal=False if config.headless else None)
    check_trackers(config.tracking)
    opened = open_run(config, typed)
    if opened.folder is None:
        console.print(opened.note, markup=False, highlight=False, soft_wrap=True)
        return 0
    folder, config = opened.folder, opened.config
    with (
        folder,
        Tracking(config.tracking, as_dict(config), folder.path) as tracking,
        Publisher(config.registry, tracking, folder.origin().get("version", "")) as publisher,
    ):
        ending = _train(opened, folder, publisher, console, stop)
        problems = [ending.problem] if ending.problem else []
        if ending.finished:
            try:
                problems += _finish(config, folder, publisher, console)
            except Stopped:
                told = (
                    "the last evaluation is missing; `navrl train resume=auto "
                    f"run_folder={folder.path}` makes it"
                )
                console.print(told, markup=False, highlight=False, soft_wrap=True)
                raise
    for problem in problems:
        console.print(
            f"navrl: {problem}", style="bold red", markup=False, highlight=False, soft_wrap=True
        )
    if problems:
        return 1
    return 0 if ending.finished else stop.exit_code


def _typed(arguments: argparse.Namespace) -> list[str]:
    """Return all overrides: those of the user's configuration file first."""
    from navrl.conf.user_file import file_overrides

    words = [*arguments.overrides, *([arguments.cfg] if arguments.cfg not in (None, "job") else [])]
    if arguments.config_path is None and arguments.config_name is None:
        return words
    return [
        *file_overrides(arguments.config_path or ".", arguments.config_name or "config"),
        *words,
    ]


def _train(
    opened: Opened, folder: RunFolder, publisher: Publisher, console: Console, stop: StopRequest
) -> Ending:
    from navrl.environments.table import find_task
    from navrl.training.compile_kernels import compile_kernels
    from navrl.training.display import open_display
    from navrl.training.distributed.team import assemble
    from navrl.training.loop import Start, follow, lead

    config, start = opened.config, Start(opened.config, opened.state, opened.weights)
    opened.state = opened.weights = None  # their memory is not needed twice
    with open_display(console, f"navrl train: {folder.path}") as display:
        if opened.note:
            display.note(opened.note)
        task = find_task(config)
        compiles = "; the first run compiles for about a minute" if task.compiles else ""
        processes = f"{config.processes} process{'es' if config.processes > 1 else ''}"
        display.note(f"{processes}, {config.env.num_envs} {task.units}{compiles}")
        if task.compiles:
            compile_kernels(config)
        with assemble(config.processes, follow, start) as team:
            ending = lead(team, start, folder, display, stop, publisher)
        if not ending.finished and stop.signal is not None:
            display.note(
                f"stopped by a signal; `navrl train resume=auto run_folder={folder.path}` goes on"
            )
        return ending


def _finish(config: Config, folder: RunFolder, publisher: Publisher, console: Console) -> list[str]:
    """Evaluate the model of the run, tell the registry and the trackers, say where everything is;
    return what failed.
    """
    from navrl.commands.evaluate import fly_and_report
    from navrl.environments.foreign import ForeignTask
    from navrl.environments.table import find_task
    from navrl.evaluation import load_policy
    from navrl.training.foreign_evaluation import evaluate_foreign
    from navrl.training.progress import total_iterations
    from navrl.training.saving.checkpoints import reason_of

    path, problems = folder.path, list[str]()
    if not folder.model_path.is_file():
        return [f"{folder.model_path} was not written; there is nothing to evaluate"]
    policy = load_policy(path, network=config.network.target or None)
    task = find_task(config)
    if isinstance(task, ForeignTask):
        rows = evaluate_foreign(policy, str(path), task, path, console, problems)
    else:
        rows = fly_and_report(
            [policy], [str(path)], config, set(), path, console, problems=problems
        )
    headlines = {label: task.headline(row) for label, row in rows.items()}
    label = publisher.tag_final_evaluation(folder.model_path, rows)
    publisher.tracking.summary(
        {f"judged/{label}": value for label, (_, value) in headlines.items()}
    )
    for name, take in (
        ("flights.png", publisher.tracking.image),
        ("flights.gif", publisher.tracking.video),
    ):
        if (path / name).is_file():
            take(policy.card["iteration"], name.replace(".", "_"), path / name)
    problems += _write_run_report(path, console)
    console.print(
        f"the model: [bold]{folder.model_path}[/bold]   fly it: [bold]navrl eval {path}[/bold]",
        soft_wrap=True,
    )
    if label:
        known = f"registered as [bold]{label}[/bold]   all models: [bold]navrl models ls[/bold]"
        console.print(known, soft_wrap=True)
    try:
        if not problems:
            folder.record_finish(total_iterations(config))
    except NavrlError as error:
        problems.append(f"{folder.record_path} was not updated: {reason_of(error)}")
    return problems


def _write_run_report(path: Path, console: Console) -> list[str]:
    """Write `report.html`, say where it and the replay are; return what failed."""
    from navrl.view.report import write_report

    report, replay = path / "report.html", path / "replay.html"
    try:
        write_report([path], report)
    except (OSError, NavrlError) as error:
        return [f"{report} was not written: {error}"]
    console.print(f"open in a browser: [bold]{report}[/bold]", soft_wrap=True, highlight=False)
    if replay.is_file():
        console.print(f"watch the flights: [bold]{replay}[/bold]", soft_wrap=True, highlight=False)
    return []
