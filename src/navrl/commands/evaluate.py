"""`navrl eval REF ...`: fly policies through scenarios in unseen worlds; tables, JSON, pictures."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.config import Config
    from navrl.deploy.shielded_pilot import ShieldedPilot
    from navrl.evaluation import Policy
    from navrl.sim.robots import Robot
EPILOG = """examples:
  navrl eval pretrained                              2048 episodes in 32 unseen worlds, random trips and crossing
  navrl eval runs/mine                               the model of a run
  navrl eval policy:best                             a model of the registry, by its name (navrl models)
  navrl eval pretrained orca                         two policies on the same episodes
  navrl eval pretrained --scenario grid,static       other scenarios
  navrl eval pretrained --shield                     the policy, and the policy behind the shield
  navrl eval pretrained --coast sensor.detection_dropout=0.3   with a memory of moving obstacles, and without
  navrl eval pretrained --card                       robustness: noise, missed detections, delay, wind, traffic
  navrl eval pretrained env.num_obstacles=500        more obstacles
  navrl eval scripted robot=ground                   another robot; a trained policy flies on its own
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
    _add_flights(parser)
    _add_conditions(parser)
    parser.add_argument("--no-animation", action="store_true", help="do not write flights.gif")
    parser.add_argument(
        "--json", action="store_true", help="print what goes into evaluation.json, and nothing else"
    )
    parser.set_defaults(run=run, overrides=[])


def _add_flights(parser: Any) -> None:
    """Add who flies what, and where the results go."""
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


def _add_conditions(parser: Any) -> None:
    """Add how much is flown, and how."""
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="episodes of each scenario (flight.episodes)"
    )
    parser.add_argument("--worlds", type=int, metavar="N", help="unseen worlds (flight.worlds)")
    parser.add_argument(
        "--shield",
        action="store_true",
        help="fly every policy behind the shield too, and compare the outcomes",
    )
    parser.add_argument(
        "--coast",
        action="store_true",
        help="fly every policy also with a memory: moving obstacles that the detector misses fly "
        "on at their last velocity for half a second",
    )
    parser.add_argument(
        "--card",
        action="store_true",
        help="robustness card of one policy: success under noise, missed detections, delay, wind, "
        "mass, speed limits and other traffic, in one scenario (default: standard)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="fly on robot=... although a policy was trained for another robot",
    )


def run(arguments: argparse.Namespace) -> int:
    """Fly the scenarios, print the tables, write the numbers and the pictures."""
    from navrl.commands.card import make_card
    from navrl.conf.robot_overrides import named_robot
    from navrl.sim.robots import MEASURING

    references, words = _split_arguments(arguments)
    config, typed = _configuration(arguments, words)
    robot = named_robot(words)
    if robot is not None:
        typed |= set(MEASURING.values())  # the file of the user says how well it measures
    if arguments.card:
        return make_card(arguments, references, config, typed, robot)
    return _fly(arguments, references, config, typed, robot)


def _fly(
    arguments: argparse.Namespace,
    references: list[str],
    config: Config,
    typed: set[str],
    robot: Robot | None,
) -> int:
    from rich.console import Console

    from navrl.api.evaluate_policy import evaluate_policies
    from navrl.evaluation.scenarios import parse_scenarios
    from navrl.training.run_folder import make_folder

    names = parse_scenarios(arguments.scenario) if arguments.scenario is not None else None
    policies = _loaded(arguments, references, config, robot)
    pilots: list[tuple[str, ShieldedPilot]] = []
    if arguments.shield or arguments.coast:
        _check_navigation(arguments, policies, config)
        policies, references, pilots = _with_aids(arguments, policies, references)
    make_folder(arguments.out, "--out")
    evaluate_policies(
        policies,
        references,
        config,
        typed,
        Console(stderr=arguments.json),
        names=names,
        folder=arguments.out,
        print_json=arguments.json,
    )
    if not arguments.json:
        for name, pilot in pilots:
            print(f"{name}: {pilot.counts.told()}")
    return 0


def _split_arguments(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return what was typed as references to policies, at least one, and as settings."""
    from navrl.errors import ConfigError

    references, words = split_words([*arguments.words, *arguments.overrides])
    if not references:
        raise ConfigError(
            "navrl eval needs a policy: a model file, a run's folder, a name in the registry, or "
            "pretrained"
        )
    return references, words


def _loaded(
    arguments: argparse.Namespace, references: Sequence[str], config: Config, robot: Robot | None
) -> list[Policy]:
    """Return the policies, as they fly the robot that was named."""
    from navrl.evaluation import load_policy

    network = config.network.target or None
    policies = [load_policy(reference, config.task, network=network) for reference in references]
    if robot is None:
        return policies
    return [policy.on_robot(robot, force=arguments.force) for policy in policies]


def _check_navigation(
    arguments: argparse.Namespace, policies: Sequence[Policy], config: Config
) -> None:
    from navrl.config import NAVIGATION
    from navrl.errors import ConfigError

    if config.env.name != NAVIGATION or any(policy.environment for policy in policies):
        option = "--shield" if arguments.shield else "--coast"
        raise ConfigError(f"{option} works only with the navigation task")


def _with_aids(
    arguments: argparse.Namespace, policies: Sequence[Policy], references: Sequence[str]
) -> tuple[list[Policy], list[str], list[tuple[str, ShieldedPilot]]]:
    """Return each policy alone, with a memory, and behind a shield, as asked for; what they are
    called; and the shields.
    """
    from navrl.deploy.coasting_pilot import coasting
    from navrl.deploy.shielded_pilot import shielded

    flown: list[tuple[Policy, str]] = []
    pilots: list[tuple[str, ShieldedPilot]] = []
    for policy, reference in zip(policies, references, strict=True):
        flown.append((policy, reference))
        if arguments.coast:
            flown.append((coasting(policy), f"{reference} + memory"))
        if arguments.shield:
            behind, pilot = shielded(policy)
            name = f"{reference} + shield"
            if arguments.coast:
                behind, name = coasting(behind), f"{name} + memory"
            flown.append((behind, name))
            pilots.append((behind.name, pilot))
    return [policy for policy, _ in flown], [name for _, name in flown], pilots


_OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@]*=")


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return references to policies, and settings; a file whose name looks like one is a file."""
    settings = [word for word in words if _OVERRIDE.match(word) and not Path(word).exists()]
    return [word for word in words if word not in settings], settings


def _configuration(arguments: argparse.Namespace, words: Sequence[str]) -> tuple[Config, set[str]]:
    """Return the configuration, and the keys that the user typed; a robot's are not among them."""
    from navrl.conf.robot_overrides import without_robot
    from navrl.config import load_config, our_overrides

    options = {"episodes": arguments.episodes, "worlds": arguments.worlds}
    typed = [
        *without_robot(words),
        *(f"flight.{name}={value}" for name, value in options.items() if value is not None),
    ]
    overrides = our_overrides(typed)
    if arguments.no_animation:
        overrides.append("flight.animation=false")
    robot = [word for word in words if word not in without_robot(words)]
    config = load_config([*robot, *overrides])
    return config, {override.split("=", 1)[0] for override in overrides}
