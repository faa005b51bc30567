"""`navrl rehearse --policy DIR`: the simulator plays the robot, over the node's own transport."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from navrl.deploy.rehearsal.paired_rehearsal import Plan, Stage

EPILOG = """examples:
  navrl rehearse --policy out --scenario crossing --shield       32 episodes in lock-step
  navrl rehearse --policy out --latency-ms 60 --jitter-ms 20     a slow link
  navrl rehearse --policy out --loss 0.2                         every fifth message is lost
  navrl rehearse --policy out --speed 1 --episodes 3             in real time
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "rehearse",
        help="fly a node against the simulator, as if it were the robot",
        description="Start `navrl node` in a process of its own, let the simulator play the robot, "
        "and compare with the same episodes flown in the simulator alone.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--policy", type=Path, required=True, metavar="DIR", help="what `navrl export` wrote"
    )
    parser.add_argument(
        "--scenario",
        default="crossing",
        metavar="NAME",
        help="what is flown (default: %(default)s)",
    )
    parser.add_argument(
        "--episodes", type=int, default=32, metavar="N", help="flights (default: %(default)s)"
    )
    parser.add_argument("--shield", action="store_true", help="the node filters its commands")
    _add_link(parser)
    _add_play(parser)
    _add_output(parser)
    parser.set_defaults(run=run)


def _add_link(parser: Any) -> None:
    """Add how bad the link between node and robot is."""
    parser.add_argument(
        "--latency-ms", type=float, default=0.0, metavar="MS", help="delay each way"
    )
    parser.add_argument(
        "--jitter-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="standard deviation of a further delay",
    )
    parser.add_argument(
        "--loss", type=float, default=0.0, metavar="P", help="fraction of messages lost each way"
    )
    parser.add_argument(
        "--skew-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="how far the robot's clock is ahead",
    )


def _add_play(parser: Any) -> None:
    parser.add_argument(
        "--compensation",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the node compensates for the delay (default: on)",
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=0.0,
        metavar="X",
        help="1: real time; 0: lock-step (default: 0)",
    )
    parser.add_argument("--transport", default="udp", help="udp or zenoh (default: %(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=7,
        metavar="N",
        help="of the episodes and the link (default: %(default)s)",
    )
    parser.add_argument(
        "--no-sweep", action="store_true", help="do not measure how much delay the policy tolerates"
    )


def _add_output(parser: Any) -> None:
    parser.add_argument("--log", type=Path, metavar="FILE", help="the node's flight as MCAP")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the numbers as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Rehearse, print the comparison, write the numbers."""
    from rich.console import Console

    from navrl.deploy.rehearsal.delays import DELAYS_MS
    from navrl.deploy.rehearsal.ends import ends_of
    from navrl.deploy.rehearsal.paired_rehearsal import rehearse

    console = Console(stderr=arguments.json)
    plan = _plan(arguments)
    open_robot, options = ends_of(arguments.transport)
    if arguments.log is not None:
        options += ["--log", str(arguments.log)]
    sweep = () if arguments.no_sweep else DELAYS_MS
    with _watching(console) as stage:
        found = rehearse(plan, open_robot, options, sweep=sweep, stage=stage).as_dict()
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        _print(console, found)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
        console.print(f"written: {arguments.out}", markup=False, highlight=False)
    return 0


def _plan(arguments: argparse.Namespace) -> Plan:
    from navrl.deploy.rehearsal.link import LinkSettings
    from navrl.deploy.rehearsal.paired_rehearsal import Plan

    link = LinkSettings(
        latency=1e-3 * arguments.latency_ms,
        jitter=1e-3 * arguments.jitter_ms,
        loss=arguments.loss,
        skew=1e-3 * arguments.skew_ms,
    )
    return Plan(
        arguments.policy,
        arguments.scenario,
        arguments.episodes,
        arguments.shield,
        link,
        arguments.speed,
        arguments.seed,
        arguments.transport,
        arguments.compensation,
    )


def _print(console: Console, found: dict[str, Any]) -> None:
    console.print(_endings(found))
    console.print(
        f"episodes that only the simulation won: {found['only_simulated']}, only the rehearsal: "
        f"{found['only_rehearsed']} (p {found['mcnemar_p']:.2g})",
        highlight=False,
    )
    if found["answer_ms"] is not None:
        console.print(f"from question to command: {found['answer_ms']:.1f} ms", highlight=False)
    if found["delays"]:
        told = ", ".join(
            f"{d['delay_ms']:g} ms {100 * d['success']:.1f} %" for d in found["delays"]
        )
        console.print(f"success by delay each way: {told}", highlight=False)
        console.print(
            f"tolerated delay each way (2 points lost at most): {found['tolerated_delay_ms']:g} ms",
            highlight=False,
        )


def _endings(found: dict[str, Any]) -> Table:
    """Return how the episodes ended, in the simulation and in the rehearsal."""
    from rich.table import Table

    behind = " behind the shield" if found["shield"] else ""
    table = Table(
        title=f"{found['policy']}{behind}: {found['episodes']} episodes of {found['scenario']}",
        title_justify="left",
    )
    headings = ("", "success %", "static %", "moving %", "bounds %", "time-out %")
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    for name in ("simulated", "rehearsed"):
        table.add_row(name, *(f"{100 * value:.1f}" for value in found[name].values()))
    return table


@contextmanager
def _watching(console: Console) -> Iterator[Stage]:
    """Show a bar for each stage; without a terminal, a line when a stage begins."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from navrl.deploy.rehearsal.paired_rehearsal import Stage

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:

        class Bars(Stage):
            def begin(self, name: str, steps: int) -> None:
                if not console.is_terminal:
                    console.print(f"{name} ...", highlight=False)
                self.bar = bars.add_task(name, total=max(steps, 1))

            def done(self, told: str = "") -> None:
                bars.advance(self.bar)

        yield Bars()
