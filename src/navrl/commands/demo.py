"""`navrl demo`: fly the policy in the package and leave a page to watch it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.commands.replay import write_page

if TYPE_CHECKING:
    from navrl.evaluation.recording import Recording

EPILOG = """examples:
  navrl demo                      64 drones cross a field of 350 boxes and 80 moving obstacles
  navrl demo --open               and open the page in a browser
  navrl demo runs/mine            your own policy
  navrl demo --scenario dense     more obstacles
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "demo",
        help="fly the policy in the package and write a page to watch it",
        description="Fly a policy through one unseen world and write the flights as a page that "
        "plays in any browser.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "reference",
        nargs="?",
        default="pretrained",
        metavar="REF",
        help="a policy as for `navrl eval`: a model file, a run's folder, NAME:ALIAS, or a name "
        "(default: pretrained)",
    )
    _add_flight(parser)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("demo.html"), help="the page (default: %(default)s)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=run, overrides=[], world=0, fly=False)


def _add_flight(parser: Any) -> None:
    parser.add_argument(
        "--scenario",
        default="crossing",
        metavar="NAME",
        help="what is flown; `navrl eval --help` lists all (default: %(default)s)",
    )
    parser.add_argument(
        "--flights", type=int, default=64, metavar="N", help="drones (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fly, write the page, and say how it went and where it is."""
    from navrl.evaluation import simulator_compiler

    simulator_compiler.start()  # before torch is imported
    for recording in write_page(arguments):
        print(_summary(recording))
    if arguments.open:
        import webbrowser

        webbrowser.open(arguments.out.resolve().as_uri())
    return 0


def _summary(recording: Recording) -> str:
    reached = recording.outcome.count("success_100")
    hit = sum(ending.endswith("_collision") for ending in recording.outcome)
    return (
        f"{recording.policy}, {recording.scenario}: {reached} of {recording.flights} drones "
        f"reached their goal, {hit} collided"
    )
