"""What `navrl replay` and `navrl video` share: which flights they show."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.evaluation.recording import Recording

__all__ = ["add_flights", "recordings_of"]


def add_flights(parser: Any) -> None:
    """Add the arguments that choose the flights."""
    parser.add_argument(
        "reference",
        metavar="REF",
        help="a policy as for `navrl eval`, which is flown; or the folder of an evaluation or of a "
        "run, whose recorded flights are shown",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, such as env.num_obstacles=200"
    )
    parser.add_argument(
        "--scenario",
        default="",
        metavar="NAMES",
        help="such as crossing,standard (default: those recorded, or standard and crossing)",
    )
    parser.add_argument(
        "--flights", type=int, default=64, metavar="N", help="drones to fly (default: %(default)s)"
    )
    parser.add_argument(
        "--world", type=int, default=0, metavar="N", help="unseen world to fly in (default: 0)"
    )
    parser.add_argument(
        "--fly", action="store_true", help="fly the model of a run instead of showing what it left"
    )


def recordings_of(arguments: argparse.Namespace) -> list[Recording]:
    """Return the recordings that the arguments ask for, flown now if there are none."""
    from rich.console import Console

    from navrl.arguments import whole_number
    from navrl.evaluation.scenarios import parse_scenarios
    from navrl.view.recordings import fly_recordings, saved_recordings

    whole_number("--flights", arguments.flights, 1)
    scenarios = parse_scenarios(arguments.scenario) if arguments.scenario else []
    anew = arguments.fly or arguments.overrides or arguments.world
    saved = [] if anew else saved_recordings(arguments.reference, scenarios)
    if saved:
        return saved
    with Console(stderr=True).status("flying (the first run compiles the simulator)"):
        return fly_recordings(
            arguments.reference,
            scenarios,
            arguments.overrides,
            flights=arguments.flights,
            world=arguments.world,
        )
