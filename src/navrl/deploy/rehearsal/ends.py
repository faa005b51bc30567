"""Both ends of a rehearsal's transport: the robot's, and the options of the node."""

from __future__ import annotations

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
    raise ConfigError(f"the transport is {name!r}; expected udp")


def _udp() -> tuple[Callable[[str], Transport], list[str]]:
    from navrl.deploy.transports.udp import UdpTransport

    robot = UdpTransport("127.0.0.1:0")  # a free port, that the node is told

    def open_robot(address: str) -> Transport:
        robot.connect(address)
        return robot

    return open_robot, ["--bind", "127.0.0.1:0", "--peer", robot.address]
