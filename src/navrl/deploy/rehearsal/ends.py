"""Both ends of a rehearsal's transport: the robot's, and the options of the node."""

from __future__ import annotations

import socket
from collections.abc import Callable

from navrl.deploy.transports.transport import Transport
from navrl.errors import ConfigError


def ends_of(name: str) -> tuple[Callable[[str], Transport], list[str]]:
    """Return what opens the robot's end, given the node's address, and the node's options.

    Raises:
        ConfigError: no such transport.
    """
    if name == "udp":
        return _udp()
    if name == "zenoh":
        return _zenoh()
    raise ConfigError(f"the transport is {name!r}; expected udp or zenoh")


def _udp() -> tuple[Callable[[str], Transport], list[str]]:
    from navrl.deploy.transports.udp import UdpTransport

    robot = UdpTransport("127.0.0.1:0")  # a free port, that the node is told

    def open_robot(address: str) -> Transport:
        robot.connect(address)
        return robot

    return open_robot, ["--bind", "127.0.0.1:0", "--peer", robot.address]


def _zenoh() -> tuple[Callable[[str], Transport], list[str]]:
    from navrl.deploy.ros.ros_conversion import RosConversion
    from navrl.deploy.transports.zenoh_ros import ZenohTransport

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"tcp/127.0.0.1:{free.getsockname()[1]}"

    def open_robot(address: str) -> Transport:
        robot = ZenohTransport(
            RosConversion("twist_stamped"), role="robot", connect=[endpoint], listen=[]
        )
        robot.wait_for_peer(30.0)
        return robot

    stamped = ["--command", "twist_stamped"]  # lock-step needs to know which moment is answered
    return open_robot, ["--transport", "zenoh", "--listen", endpoint, "--connect", "", *stamped]
