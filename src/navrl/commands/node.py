"""`navrl node --policy DIR`: the robot-side node; a dry run unless told otherwise."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.deploy.node.node_core import Decision
    from navrl.deploy.node.node_settings import NodeSettings

EPILOG = """examples:
  navrl node --policy out                                    UDP with JSON; decides, sends no command
  navrl node --policy out --no-dry-run --shield              fly; arm it with a message
  navrl node --policy out --no-dry-run --arm                 fly as soon as there is a goal

Topics, messages and what stops the robot: docs/deploy.md.
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "node",
        help="fly an exported policy on a robot",
        description="Take odometry, goal, scan and tracks; send velocity commands at the rate of "
        "the policy's training. Stops on missing, old or impossible inputs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--policy", type=Path, required=True, metavar="DIR", help="what `navrl export` wrote"
    )
    parser.add_argument("--transport", default="udp", help="udp")
    parser.add_argument(
        "--dry-run",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="decide and report, but send no command (default: on)",
    )
    parser.add_argument("--arm", action="store_true", help="begin armed; else a message arms it")
    parser.add_argument("--shield", action="store_true", help="filter commands with the shield")
    parser.add_argument("--frame", default="map", help="the world frame (default: %(default)s)")
    parser.add_argument(
        "--max-age", type=float, default=0.5, metavar="S", help="older inputs stop the robot (0.5)"
    )
    parser.add_argument(
        "--stop-distance", type=float, default=1.0, metavar="M", help="stop so near the goal (1.0)"
    )
    parser.add_argument(
        "--no-tracks", action="store_true", help="fly without a list of moving obstacles"
    )
    parser.add_argument("--sim-time", action="store_true", help="take the time from clock messages")
    udp = parser.add_argument_group("udp")
    udp.add_argument("--bind", default="127.0.0.1:9870", metavar="HOST:PORT", help="receive here")
    udp.add_argument("--peer", metavar="HOST:PORT", help="send here (default: 127.0.0.1:9871)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the node until a signal ends it."""
    from navrl.deploy.node.node_loop import NodeLoop
    from navrl.deploy.node.open_node import ROBOT_ADDRESS, open_core, open_transport

    core = open_core(arguments.policy, _settings(arguments), shield=arguments.shield)
    transport = open_transport(
        arguments.transport, bind=arguments.bind, peer=arguments.peer or ROBOT_ADDRESS
    )
    ended = _until_signal()
    try:
        loop = NodeLoop(core, transport, sim_time=arguments.sim_time, tell=_tell)
        print(f"ready {getattr(transport, 'address', arguments.transport)}", flush=True)
        if arguments.dry_run:
            print("dry run: no command is sent; fly with --no-dry-run", flush=True)
        loop.run(lambda: bool(ended))
    finally:
        transport.close()
    return 0


def _settings(arguments: argparse.Namespace) -> NodeSettings:
    from navrl.deploy.node.node_settings import NodeSettings

    return NodeSettings(
        dry_run=arguments.dry_run,
        armed=arguments.arm,
        world_frame=arguments.frame,
        max_age=arguments.max_age,
        stop_distance=arguments.stop_distance,
        needs_tracks=not arguments.no_tracks,
    )


def _until_signal() -> list[int]:
    """Return a list that has an entry once the process was asked to end."""
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: ended.append(got))
    return ended


def _tell(decision: Decision) -> None:
    told = f": {decision.reason}" if decision.reason else ""
    print(f"{decision.stamp:.2f} {decision.state}{told}", file=sys.stderr, flush=True)
