"""`navrl eval REF ...`: fly policies through scenarios in unseen worlds; tables, JSON, pictures."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from navrl.config import Config
    from navrl.deploy.shielded_pilot import ShieldedPilot
    from navrl.evaluation import Policy
    from navrl.evaluation.run import Flown

EPILOG = """examples:
  navrl eval pretrained                              2048 episodes in 32 unseen worlds, random trips and crossing
  navrl eval runs/mine                               the model of a run
  navrl eval policy:best                             a model of the registry, by its name (navrl models)
  navrl eval pretrained orca                         two policies on the same episodes
  navrl eval pretrained --scenario grid,static       other scenarios
  navrl eval pretrained --shield                     the policy, and the policy behind the shield
  navrl eval pretrained --card                       robustness: noise, missed detections, delay, wind, traffic
  navrl eval pretrained env.num_obstacles=500        more obstacles
  navrl eval scripted --episodes 64 --worlds 4 --no-animation --json
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    from navrl.evaluation.names import POLICIES, SCENARIOS, listed

    scenarios = listed({name: scenario.about for name, scenario in SCENARIOS.items()})
    parser = subparsers.add_parser(
        "eval",
        help="fly policies over unseen worlds and print how their episodes ended",
        description="Fly policies, deterministic, one episode a drone, in worlds that they have "
        "not seen. Several policies fly the same episodes and are compared pair by pair. A "
        "success comes within 1.0 m of its goal, in time and before any collision.",
        epilog=f"scenarios:\n{scenarios}\n\npolicies by name:\n{listed(POLICIES)}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="REF | key=value",
        help="policies: a model file, a run's folder, NAME:ALIAS, a checkpoint of the original, or "
        "a name from the list below; settings, such as env.num_obstacles=200",
    )
    parser.add_argument(
        "--scenario",
        metavar="NAME,...",
        help="what is flown (default: standard,crossing; own with env.world_files)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/eval"),
        help="folder for the results (default: %(default)s)",
    )
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="episodes of each scenario (flight.episodes)"
    )
    parser.add_argument("--worlds", type=int, metavar="N", help="unseen worlds (flight.worlds)")
    parser.add_argument(
        "--shield",
        action="store_true",
        help="fly every policy behind the shield too, and compare: what it rescues and spoils",
    )
    parser.add_argument(
        "--card",
        action="store_true",
        help="robustness card of one policy: success under noise, missed detections, delay, wind, "
        "mass, speed limits and other traffic, in one scenario (default: standard)",
    )
    parser.add_argument("--no-animation", action="store_true", help="leave flights.gif out")
    parser.add_argument(
        "--json", action="store_true", help="print what goes into evaluation.json, and nothing else"
    )
    parser.set_defaults(run=run, overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Fly the scenarios, print the tables, write the numbers and the pictures."""
    from rich.console import Console

    from navrl.commands.card import make_card
    from navrl.config import NAVIGATION
    from navrl.errors import ConfigError
    from navrl.evaluation import load_policy
    from navrl.evaluation.scenarios import parse_scenarios
    from navrl.training.run_folder import make_folder

    references, overrides = _split([*arguments.words, *arguments.overrides])
    if not references:
        raise ConfigError(
            "navrl eval needs a policy: a model file, a run's folder, a name in the registry, or "
            "pretrained"
        )
    config, typed = _configuration(arguments, overrides)
    if arguments.card:
        return make_card(arguments, references, config, typed)
    names = parse_scenarios(arguments.scenario) if arguments.scenario is not None else None
    network = config.network.target or None
    policies = [load_policy(reference, config.task, network=network) for reference in references]
    pilots: list[tuple[str, ShieldedPilot]] = []
    if arguments.shield:
        policies, references, pilots = _with_shields(policies, references)
    make_folder(arguments.out, "--out")
    if config.env.name != NAVIGATION or any(policy.environment for policy in policies):
        return _play(policies, references, config, typed, arguments)
    fly_and_report(
        policies,
        references,
        config,
        typed,
        arguments.out,
        Console(stderr=arguments.json),
        names=names,
        print_json=arguments.json,
    )
    if not arguments.json:
        for name, pilot in pilots:
            print(f"{name}: {pilot.counts.told()}")
    return 0


def _with_shields(
    policies: Sequence[Policy], references: Sequence[str]
) -> tuple[list[Policy], list[str], list[tuple[str, ShieldedPilot]]]:
    """Return each policy with and without a shield, what they are called, and the shields."""
    from navrl.deploy.shielded_pilot import shielded

    both: list[Policy] = []
    names: list[str] = []
    pilots: list[tuple[str, ShieldedPilot]] = []
    for policy, reference in zip(policies, references, strict=True):
        behind, pilot = shielded(policy)
        both += [policy, behind]
        names += [reference, f"{reference} + shield"]
        pilots.append((behind.name, pilot))
    return both, names, pilots


def _play(
    policies: Sequence[Policy],
    references: Sequence[str],
    config: Config,
    typed: set[str],
    arguments: argparse.Namespace,
) -> int:
    """Play episodes of another environment than the navigation task, one policy after another."""
    from rich.console import Console

    from navrl.environments.judging import task_for
    from navrl.errors import ConfigError
    from navrl.training.foreign_evaluation import evaluate_foreign

    if arguments.scenario is not None or arguments.shield:
        raise ConfigError("--scenario and --shield are of the navigation task; leave them out")
    problems: list[str] = []
    for policy, reference in zip(policies, references, strict=True):
        evaluate_foreign(
            policy,
            reference,
            task_for(policy, config, typed),
            arguments.out,
            Console(stderr=arguments.json),
            problems,
            print_json=arguments.json,
        )
    if problems:
        raise ConfigError("; ".join(problems))
    return 0


_OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@]*=")


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return references to policies, and settings; a file whose name looks like one is a file."""
    settings = [word for word in words if _OVERRIDE.match(word) and not Path(word).exists()]
    return [word for word in words if word not in settings], settings


def fly_and_report(
    policies: Sequence[Policy],
    references: Sequence[str],
    config: Config,
    typed: set[str],
    folder: Path,
    console: Console,
    *,
    names: Sequence[str] | None = None,
    print_json: bool = False,
    problems: list[str] | None = None,
) -> dict[str, Any]:
    """Fly policies through scenarios, print and write the results; return the first's conditions.

    Args:
        policies: to be flown on the same episodes.
        references: how the user calls them.
        config: task and flights.
        typed: dotted keys that the user typed.
        folder: for `evaluation.json`, recordings and pictures.
        console: for tables and progress.
        names: of scenarios; None: `own` for worlds of the user, else the default ones.
        print_json: print the JSON instead of tables.
        problems: takes messages about files that could not be written.

    Raises:
        ConfigError: a file could not be written, and there is no list of `problems`.
    """
    from navrl.commands.progress_bars import watching
    from navrl.errors import ConfigError
    from navrl.evaluation.names import DEFAULT_SCENARIOS
    from navrl.evaluation.run import fly_scenarios
    from navrl.training.run_folder import as_json

    chosen = names or (("own",) if config.env.world_files else DEFAULT_SCENARIOS)
    start = time.perf_counter()
    with watching(console) as watch:
        flown = [fly_scenarios(policy, chosen, config, typed, watch) for policy in policies]
    failed = problems if problems is not None else list[str]()
    recordings, paths = _write_recordings(folder, flown, references, failed)
    report = _report(references, config, flown, recordings, time.perf_counter() - start)
    if print_json:
        print(as_json(report), end="")
    else:
        _print_tables(console, flown, references)
    paths += _write_report(folder, report, flown, config, console, failed)
    told = ", ".join(str(path) for path in paths)
    console.print(f"written: {told or 'nothing'}", markup=False, highlight=False, soft_wrap=True)
    if failed and problems is None:
        raise ConfigError("; ".join(failed))
    return dict(report["conditions"])


def _print_tables(console: Console, flown: Sequence[Flown], references: Sequence[str]) -> None:
    from navrl.evaluation.comparison import comparison_table
    from navrl.evaluation.report import DEFINITIONS, cell_table, cells_of, outcome_table

    for one in flown:
        plain = {label: flights for label, flights in one.flights.items() if " " not in label}
        if plain:
            console.print(
                outcome_table(
                    plain, one.policy.name, subtitles=one.subtitles, latency_ms=one.latency_ms
                )
            )
        for name, cells in cells_of(one.flights).items():
            console.print(cell_table(name, cells, one.policy.name))
    if len(flown) > 1:
        keys = _keys(references)
        console.print(
            comparison_table({key: one.flights for key, one in zip(keys, flown, strict=True)})
        )
    console.print(DEFINITIONS, style="dim", highlight=False)


def _keys(references: Sequence[str]) -> list[str]:
    """Return the references, a repeated one with its number."""
    return [
        reference if reference not in references[:place] else f"{reference} ({place + 1})"
        for place, reference in enumerate(references)
    ]


def _write_recordings(
    folder: Path, flown: Sequence[Flown], references: Sequence[str], failed: list[str]
) -> tuple[list[dict[str, str]], list[Path]]:
    """Write `recordings/SCENARIO[.POLICY].npz`; return their names by policy and label, paths."""
    names: list[dict[str, str]] = []
    paths: list[Path] = []
    for one, key in zip(flown, _keys(references), strict=True):
        written: dict[str, str] = {}
        suffix = "" if len(flown) == 1 else "." + re.sub(r"[^A-Za-z0-9-]+", "-", key).strip("-")
        for label, flights in one.flights.items():
            if flights.recording is None:
                continue
            path = folder / "recordings" / f"{label}{suffix}.npz"
            with _noted(path, failed):
                path.parent.mkdir(exist_ok=True)
                flights.recording.save(path)
                written[label] = str(path.relative_to(folder))
        names.append(written)
    if any(names):
        paths.append(folder / "recordings")
    return names, paths


def _write_report(
    folder: Path,
    report: dict[str, Any],
    flown: Sequence[Flown],
    config: Config,
    console: Console,
    failed: list[str],
) -> list[Path]:
    """Write `evaluation.json`, the replay and pictures of the last scenario; return paths."""
    from navrl.errors import MissingExtraError
    from navrl.training.run_folder import as_json, write_text
    from navrl.view.flight_pictures import draw_flights
    from navrl.view.replay import write_replay

    paths: list[Path] = []
    with _noted(folder / "evaluation.json", failed):
        write_text(folder / "evaluation.json", as_json(report))
        paths.append(folder / "evaluation.json")
    recorded = [f.recording for f in flown[0].flights.values() if f.recording is not None]
    every = [f.recording for one in flown for f in one.flights.values() if f.recording is not None]
    if recorded:
        with _noted(folder / "replay.html", failed):
            write_replay(every, folder / "replay.html")
            paths.append(folder / "replay.html")
        try:
            with console.status("drawing"), _noted(folder / "flights.png", failed):
                paths += draw_flights(folder, recorded[-1], animation=config.flight.animation)
        except MissingExtraError as error:
            console.print(f"no pictures: {error}", markup=False)
    return paths


@contextmanager
def _noted(path: Path, problems: list[str]) -> Iterator[None]:
    """Note a result that cannot be written and go on: the table is on the screen."""
    try:
        yield
    except OSError as error:
        problems.append(f"{path} was not written: {error.strerror or error}")


def _configuration(
    arguments: argparse.Namespace, settings: Sequence[str]
) -> tuple[Config, set[str]]:
    """Return the configuration, and the keys that the user typed."""
    from navrl.config import load_config, our_overrides

    options = {"episodes": arguments.episodes, "worlds": arguments.worlds}
    typed = [
        *settings,
        *(f"flight.{name}={value}" for name, value in options.items() if value is not None),
    ]
    overrides = our_overrides(typed)
    if arguments.no_animation:
        overrides.append("flight.animation=false")
    return load_config(overrides), {override.split("=", 1)[0] for override in overrides}


def _report(
    references: Sequence[str],
    config: Config,
    flown: Sequence[Flown],
    recordings: Sequence[dict[str, str]],
    seconds: float,
) -> dict[str, Any]:
    """Return everything that goes into `evaluation.json`: the first policy, then the others."""
    from navrl import __version__
    from navrl.evaluation.run import results_of

    rows = []
    for place, (reference, one, files) in enumerate(
        zip(references, flown, recordings, strict=True)
    ):
        results = results_of(one, flown[0] if place else None)
        for label, file in files.items():
            results["conditions"][label]["recording"] = file
        rows.append({"model": reference, **results})
    first, *others = rows
    return {
        "navrl": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "seed": config.flight.seed,
        **first,
        **({"compared": others} if others else {}),
    }
