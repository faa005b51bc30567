"""`navrl eval MODEL`: fly a policy over unseen worlds, without and with moving obstacles; a table,
JSON, pictures.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from navrl.config import Config
    from navrl.evaluate import Flights, Policy
    from navrl.sim.env import NavigationEnv

FINAL_SEED = 1 << 40  # random streams that neither training nor the evaluations during it have seen
EPILOG = """examples:
  navrl eval scripted                                the scripted pilot: 1024 episodes over 16 unseen worlds, twice
  navrl eval runs/mine                               the model of a run
  navrl eval policy:best                             a model of the registry, by its name (navrl models)
  navrl eval pretrained env.num_obstacles=500        the policy in the package, among more obstacles
  navrl eval scripted --episodes 64 --worlds 4 --no-animation --json
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "eval",
        help="fly a policy over unseen worlds and print how its episodes ended",
        description="Fly a policy, deterministic, one episode a drone, in worlds that it has "
        "not seen: among static obstacles, "
        "then among moving ones too. A success comes within 1.0 m of its goal before any "
        "collision and in time.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a model file, a run's folder, NAME:ALIAS, `pretrained`, `scripted`, or a "
        "checkpoint of the original",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, such as env.num_obstacles=200"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/eval"),
        help="folder for the results (default: %(default)s)",
    )
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="episodes of each condition (flight.episodes)"
    )
    parser.add_argument("--worlds", type=int, metavar="N", help="unseen worlds (flight.worlds)")
    parser.add_argument("--no-animation", action="store_true", help="leave flights.gif out")
    parser.add_argument(
        "--json", action="store_true", help="print what goes into evaluation.json, and nothing else"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fly the conditions, print the table, write the numbers and the pictures."""
    from rich.console import Console

    from navrl.evaluate import load_policy
    from navrl.train.run_folder import make_folder

    config, typed = _configuration(arguments)
    policy = load_policy(arguments.model, config.task)
    make_folder(arguments.out, "--out")
    fly_and_report(
        policy,
        arguments.model,
        config,
        typed,
        arguments.out,
        Console(stderr=arguments.json),
        arguments.json,
    )
    return 0


def fly_and_report(
    policy: Policy,
    model: str,
    config: Config,
    typed: set[str],
    folder: Path,
    console: Console,
    print_json: bool = False,
    problems: list[str] | None = None,
) -> dict[str, Any]:
    """Fly all conditions; print the table or the JSON, leave the numbers and the pictures in a
    folder, return the numbers.

    Raises:
        ConfigError: a file could not be written, and there is no list of `problems` to put that
            into.
    """
    from navrl.errors import ConfigError, MissingExtraError
    from navrl.evaluate import conditions
    from navrl.evaluate.report import outcome_table
    from navrl.train.run_folder import as_json, write_text
    from navrl.view.flight_pictures import draw_flights

    settings = conditions(config.task, config.flight, policy, typed)
    known = config.env.same_map or config.env.world_files
    where = "the worlds of its training" if known else "unseen worlds"
    console.print(
        f"[bold]Flying {policy.name} over {where}[/bold] (the first run compiles the simulator)",
        highlight=False,
    )
    start = time.perf_counter()
    flown = {
        label: (env, _fly(console, label, env, policy, config.flight.recorded))
        for label, env in _environments(console, settings, FINAL_SEED + config.flight.seed)
    }
    flights = {label: flights for label, (_, flights) in flown.items()}
    report = _report(model, policy, config, flown, time.perf_counter() - start)
    if print_json:
        print(as_json(report), end="")
    else:
        console.print(outcome_table(flights, policy.name))
    failed = problems if problems is not None else list[str]()
    paths: list[Path] = []
    with _noted(folder / "evaluation.json", failed):
        write_text(folder / "evaluation.json", as_json(report))
        paths.append(folder / "evaluation.json")
    try:
        with console.status("drawing"), _noted(folder / "flights.png", failed):
            recording = list(flights.values())[-1].recording
            if recording is not None:
                paths += draw_flights(folder, recording, animation=config.flight.animation)
    except MissingExtraError as error:
        console.print(f"no pictures: {error}", markup=False)
    told = ", ".join(str(path) for path in paths)
    console.print(f"written: {told or 'nothing'}", markup=False, highlight=False, soft_wrap=True)
    if failed and problems is None:
        raise ConfigError("; ".join(failed))
    return dict(report["conditions"])


@contextmanager
def _noted(path: Path, problems: list[str]) -> Iterator[None]:
    """Note a result that cannot be written: the flights were flown, and the table is on the
    screen.
    """
    try:
        yield
    except OSError as error:
        problems.append(f"{path} was not written: {error.strerror or error}")


def _configuration(arguments: argparse.Namespace) -> tuple[Config, set[str]]:
    """Return the configuration, and the keys that the user typed."""
    from navrl.config import load_config, our_overrides

    options = {"episodes": arguments.episodes, "worlds": arguments.worlds}
    typed = [
        *arguments.overrides,
        *(f"flight.{name}={value}" for name, value in options.items() if value is not None),
    ]
    overrides = our_overrides(typed)
    if arguments.no_animation:
        overrides.append("flight.animation=false")
    return load_config(overrides), {override.split("=", 1)[0] for override in overrides}


def _environments(console: Console, settings: dict[str, Any], seed: int) -> Any:
    """Yield each condition's label and environment, built when it is its turn."""
    from navrl.sim.env import NavigationEnv

    for label, task in settings.items():
        with console.status(f"{label}: building worlds"):
            env = NavigationEnv(task, seed=seed, auto_reset=False)
        yield label, env


def _fly(
    console: Console, label: str, env: NavigationEnv, policy: Policy, recorded: int
) -> Flights:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from navrl.evaluate import evaluate

    columns = (
        TextColumn(f"{label}: episodes ended"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=env.num_envs)
        return evaluate(
            env,
            policy,
            recorded=recorded,
            progress=lambda done, of: progress.update(bar, completed=done),
        )


def _report(
    model: str,
    policy: Policy,
    config: Config,
    flown: dict[str, tuple[NavigationEnv, Flights]],
    seconds: float,
) -> dict[str, Any]:
    from navrl import __version__
    from navrl.evaluate.report import summary

    return {
        "model": model,
        "policy": policy.name,
        "navrl": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "seed": config.flight.seed,
        "conditions": {
            label: {**summary(flights), "settings": env.settings.as_dict()}
            for label, (env, flights) in flown.items()
        },
    }
