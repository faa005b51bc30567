"""`navrl eval REF --card`: the robustness card of a policy; table, JSON, picture."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from navrl.config import Config
    from navrl.evaluation import Policy
    from navrl.evaluation.card.card_rows import CardRow
    from navrl.sim.robots import Robot

__all__ = ["make_card"]


def make_card(
    arguments: argparse.Namespace,
    references: Sequence[str],
    config: Config,
    typed: set[str],
    robot: Robot | None = None,
) -> int:
    """Fly the card of a policy, print it, and write `card.json` and `card.png`."""
    from rich.console import Console

    from navrl.api.progress_bars import watching
    from navrl.evaluation.card.card_rows import fly_card
    from navrl.evaluation.card.conditions import CONDITIONS
    from navrl.training.run_folder import make_folder

    scenario = _scenario(arguments, references, config)
    policy = _policy(arguments, references[0], config, robot)
    make_folder(arguments.out, "--out")
    console = Console(stderr=arguments.json)
    start = time.perf_counter()
    with watching(console) as watch:
        rows = fly_card(policy, scenario, config, typed, watch, CONDITIONS)
    about = _about(config, time.perf_counter() - start)
    names = {"model": references[0], "policy": policy.name, "scenario": scenario}
    _report(arguments, {**about, **names}, rows, console)
    return 0


def _report(
    arguments: argparse.Namespace, about: dict[str, Any], rows: list[CardRow], console: Console
) -> None:
    """Print the card as a table or as JSON, and write it."""
    from navrl.evaluation.card.card_rows import (
        CARD_DEFINITIONS,
        card_results,
        card_table,
        card_title,
    )
    from navrl.training.run_folder import as_json

    world = rows[0].flights.world
    episodes, worlds = len(world), len(world.unique())
    report = {**about, "episodes": episodes, "worlds": worlds, "rows": card_results(rows)}
    title = card_title(about["policy"], about["scenario"], episodes, worlds)
    if arguments.json:
        print(as_json(report), end="")
    else:
        console.print(card_table(rows, title))
        console.print(CARD_DEFINITIONS, style="dim", highlight=False)
    _write(arguments.out, report, title, console)


def _scenario(arguments: argparse.Namespace, references: Sequence[str], config: Config) -> str:
    """Return the scenario of the card; refuse several policies or scenarios, and a shield."""
    from navrl.errors import ConfigError
    from navrl.evaluation.names import SCENARIOS
    from navrl.evaluation.scenarios import parse_scenarios

    if len(references) > 1 or arguments.shield:
        raise ConfigError(
            f"--card takes one policy, without --shield; found {', '.join(references)}"
            f"{' with --shield' if arguments.shield else ''}"
        )
    if arguments.scenario is None:
        return "own" if config.env.world_files else "standard"
    names = parse_scenarios(arguments.scenario)
    if len(names) > 1 or SCENARIOS[names[0]].cells:
        raise ConfigError(
            f"--scenario is {arguments.scenario}; a card has one scenario, without cells, such as "
            "standard or crossing"
        )
    return names[0]


def _policy(
    arguments: argparse.Namespace, reference: str, config: Config, robot: Robot | None
) -> Policy:
    """Return the policy of the navigation task, as it flies the robot that was named."""
    from navrl.config import NAVIGATION
    from navrl.deploy.coasting_pilot import coasting
    from navrl.errors import ConfigError
    from navrl.evaluation import load_policy

    policy = load_policy(reference, config.task, network=config.network.target or None)
    if robot is not None:
        policy = policy.on_robot(robot, force=arguments.force)
    if policy.environment is not None or config.env.name != NAVIGATION:
        raise ConfigError("--card works only with the navigation task")
    return coasting(policy) if arguments.coast else policy


def _about(config: Config, seconds: float) -> dict[str, Any]:
    from navrl import __version__

    return {
        "navrl": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "seed": config.flight.seed,
    }


def _write(folder: Path, report: dict[str, Any], title: str, console: Console) -> None:
    """Write the numbers and the picture, and say where they are."""
    from navrl.errors import ConfigError, MissingExtraError
    from navrl.training.run_folder import as_json, write_text
    from navrl.view.card_picture import save_card

    paths = [folder / "card.json"]
    try:
        write_text(paths[0], as_json(report))
        save_card(report["rows"], title, folder / "card.png")
        paths.append(folder / "card.png")
    except MissingExtraError as error:
        console.print(f"no picture: {error}", markup=False)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written: {error.strerror}") from error
    told = ", ".join(map(str, paths))
    console.print(f"written: {told}", markup=False, highlight=False, soft_wrap=True)
