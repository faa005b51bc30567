"""`navrl node --policy DIR`: the robot-side node; a dry run unless told otherwise."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.deploy.flight_log import FlightLog
    from navrl.deploy.node.node_core import Decision, NodeCore
    from navrl.deploy.node.node_settings import NodeSettings
    from navrl.deploy.node.open_node import TransportOptions
    from navrl.deploy.transports.transport import Service

EPILOG = """examples:
  navrl node --policy out                                    UDP with JSON; decides, sends no command
  navrl node --policy out --no-dry-run --shield              fly; arm it with a message
  navrl node --policy out --no-dry-run --arm                 fly as soon as there is a goal
  navrl node --policy out --no-dry-run --actuation-delay 0.06   a robot that is 60 ms away
  navrl node --policy out --transport zenoh --log flight.mcap  as a ROS 2 node; keep the flight
  navrl node --policy out --bag flight.mcap                  does it send the same commands again?

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
    parser.add_argument(
        "--transport", default="udp", help="udp, zenoh or ros2 (default: %(default)s)"
    )
    _add_control(parser)
    _add_timing(parser)
    _add_surroundings(parser)
    _add_recordings(parser)
    _add_udp(parser.add_argument_group("udp"))
    _add_ros(parser.add_argument_group("zenoh and ros2"))
    parser.set_defaults(run=run)


def _add_control(parser: Any) -> None:
    """Add whether commands are sent and filtered, and their frame."""
    parser.add_argument(
        "--dry-run",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="decide and report, but send no command (default: on)",
    )
    parser.add_argument(
        "--arm", action="store_true", help="start armed (otherwise a message arms the node)"
    )
    parser.add_argument("--shield", action="store_true", help="filter commands with the shield")
    parser.add_argument("--frame", default="map", help="the world frame (default: %(default)s)")


def _add_timing(parser: Any) -> None:
    parser.add_argument(
        "--max-age",
        type=float,
        default=0.5,
        metavar="S",
        help="older inputs stop the robot (default: %(default)s)",
    )
    parser.add_argument(
        "--compensation",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="carry inputs forward to the time when the command acts (default: on)",
    )
    parser.add_argument(
        "--actuation-delay",
        type=float,
        default=0.0,
        metavar="S",
        help="time from sending a command until the robot receives it (default: 0)",
    )


def _add_surroundings(parser: Any) -> None:
    parser.add_argument(
        "--coast",
        type=float,
        default=0.5,
        metavar="S",
        help="keep moving obstacles that newer lists leave out for this long, at their last "
        "velocity (default: %(default)s; 0: drop them at once)",
    )
    parser.add_argument(
        "--stop-distance",
        type=float,
        default=1.0,
        metavar="M",
        help="stop within this distance of the goal (default: %(default)s)",
    )
    parser.add_argument(
        "--no-tracks", action="store_true", help="fly without a list of moving obstacles"
    )
    parser.add_argument("--sim-time", action="store_true", help="take the time from clock messages")
    parser.add_argument(
        "--world",
        type=Path,
        metavar="FILE",
        help="a world file that the ray-cast service casts rays into",
    )


def _add_recordings(parser: Any) -> None:
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the flight as MCAP")
    parser.add_argument(
        "--bag", type=Path, metavar="FILE", help="replay a recorded flight and compare the commands"
    )


def _add_udp(udp: Any) -> None:
    udp.add_argument(
        "--bind",
        default="127.0.0.1:9870",
        metavar="HOST:PORT",
        help="receive here (default: %(default)s)",
    )
    udp.add_argument("--peer", metavar="HOST:PORT", help="send here (default: 127.0.0.1:9871)")


def _add_ros(ros: Any) -> None:
    ros.add_argument(
        "--connect",
        default="tcp/localhost:7447",
        metavar="ENDPOINT",
        help="zenoh: the router (default: %(default)s)",
    )
    ros.add_argument("--listen", default="", metavar="ENDPOINT", help="zenoh: listen here too")
    ros.add_argument(
        "--domain", type=int, default=0, help="zenoh: ROS_DOMAIN_ID (default: %(default)s)"
    )
    ros.add_argument(
        "--distribution", default="jazzy", help="zenoh: of the ROS 2 nodes (default: %(default)s)"
    )
    ros.add_argument(
        "--command",
        default="twist",
        help="twist, twist_stamped or position_target (default: %(default)s)",
    )
    ros.add_argument(
        "--command-frame",
        default="world",
        metavar="FRAME",
        help="world or body (default: %(default)s)",
    )
    ros.add_argument(
        "--remap",
        action="append",
        default=[],
        metavar="NAME=/topic",
        help="another ROS topic, such as odometry=/state; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the node until a signal ends it."""
    from navrl.deploy.node.node_loop import NodeLoop
    from navrl.deploy.node.open_node import open_core, open_transport

    core = open_core(arguments.policy, _settings(arguments), shield=arguments.shield)
    if arguments.bag is not None:
        return _play(core, arguments.bag)
    transport = open_transport(arguments.transport, _options(arguments, core))
    log = _open_log(arguments) if arguments.log is not None else None
    ended = _until_signal()
    try:
        loop = NodeLoop(core, transport, sim_time=arguments.sim_time, log=log, tell=_tell)
        print(f"ready {getattr(transport, 'address', arguments.transport)}", flush=True)
        if arguments.dry_run:
            print("dry run: no command is sent; fly with --no-dry-run", flush=True)
        loop.run(lambda: bool(ended))
    finally:
        transport.close()
        if log is not None:
            log.close()
    return 0


def _open_log(arguments: argparse.Namespace) -> FlightLog:
    from navrl.deploy.flight_log import FlightLog

    said = {"policy": str(arguments.policy), "shield": str(arguments.shield).lower()}
    return FlightLog(arguments.log, said)


def _play(core: NodeCore, bag: Path) -> int:
    """Answer a recorded flight; return 1 if a command differs."""
    from navrl.deploy.flight_log import read_flight
    from navrl.deploy.node.playback import TOLERANCE, play

    found = play(core, read_flight(bag))
    if not found.commands:
        print(f"{bag} holds no commands to compare with", file=sys.stderr)
        return 1
    states = ", ".join(f"{state} {number}" for state, number in found.states.items())
    print(f"{found.commands} commands of {bag}; now: {states}")
    print(
        f"{found.differing} differ by more than {TOLERANCE:g} m/s, the largest by "
        f"{found.largest:.2g} m/s"
        + (f", the first at {found.first:.2f} s" if found.first is not None else "")
    )
    return 1 if found.differing else 0


def _settings(arguments: argparse.Namespace) -> NodeSettings:
    from navrl.deploy.node.node_settings import NodeSettings

    return NodeSettings(
        dry_run=arguments.dry_run,
        armed=arguments.arm,
        world_frame=arguments.frame,
        max_age=arguments.max_age,
        stop_distance=arguments.stop_distance,
        compensation=arguments.compensation,
        actuation_delay=arguments.actuation_delay,
        track_memory=arguments.coast,
        needs_tracks=not arguments.no_tracks,
    )


def _options(arguments: argparse.Namespace, core: NodeCore) -> TransportOptions:
    from navrl.deploy.node.open_node import ROBOT_ADDRESS, TransportOptions
    from navrl.errors import ConfigError

    wrong = [word for word in arguments.remap if "=/" not in word]
    if wrong:
        raise ConfigError(f"--remap is {wrong[0]!r}; expected NAME=/topic, like odometry=/state")
    return TransportOptions(
        bind=arguments.bind,
        peer=arguments.peer or ROBOT_ADDRESS,
        connect=[arguments.connect] if arguments.connect else [],
        listen=[arguments.listen] if arguments.listen else [],
        domain=arguments.domain,
        distribution=arguments.distribution,
        command=arguments.command,
        command_frame=arguments.command_frame,
        remap=dict(word.split("=", 1) for word in arguments.remap),
        services=_services(arguments, core),
    )


def _services(arguments: argparse.Namespace, core: NodeCore) -> dict[tuple[str, str], Service]:
    from navrl.deploy.original_services import OriginalServices

    world = None
    if arguments.world is not None:
        from navrl.sim.worlds.world_file import load_world

        world = load_world(arguments.world)
    return OriginalServices(core.policy, core.layout, world=world, tracks=core.inbox.tracks).table()


def _until_signal() -> list[int]:
    """Return a list that has an entry once the process was asked to end."""
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: ended.append(got))
    return ended


def _tell(decision: Decision) -> None:
    told = f": {decision.reason}" if decision.reason else ""
    print(f"{decision.stamp:.2f} {decision.state}{told}", file=sys.stderr, flush=True)
