"""Put a node together: an exported policy, its checks, a transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from navrl.deploy.exported_folder import read_contract
from navrl.deploy.node.node_core import NodeCore
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.transports.transport import Service, Transport
from navrl.errors import ConfigError

TRANSPORTS = ("udp", "zenoh", "ros2")
NODE_ADDRESS, ROBOT_ADDRESS = "127.0.0.1:9870", "127.0.0.1:9871"  # of UDP


def open_core(
    folder: str | Path, settings: NodeSettings | None = None, *, shield: bool = False
) -> NodeCore:
    """Return the core of a node that flies an exported policy.

    Raises:
        ConfigError: the folder holds no exported policy.
        MissingExtraError: onnxruntime is not installed.
    """
    contract = read_contract(folder)
    from navrl.deploy.runner import RobotRunner

    settings = settings or NodeSettings()
    runner = RobotRunner(str(folder), max_age=settings.max_age)  # type: ignore[no-untyped-call]
    core = NodeCore(runner, contract, settings, shield=shield)
    core.warm_up()
    return core


@dataclass(frozen=True)
class TransportOptions:
    """How a node reaches its robot; each transport reads what concerns it."""

    bind: str = NODE_ADDRESS  # UDP: receive here
    peer: str | None = ROBOT_ADDRESS  # UDP: send here
    connect: Sequence[str] = ("tcp/localhost:7447",)  # zenoh: the router
    listen: Sequence[str] = ()  # zenoh: endpoints of our own
    domain: int = 0  # ROS_DOMAIN_ID
    distribution: str = "jazzy"  # of the ROS 2 nodes that zenoh talks to
    command: str = "twist"  # the ROS message of commands
    command_frame: str = "world"  # or body
    remap: Mapping[str, str] = field(default_factory=dict)  # names of ROS topics
    services: Mapping[tuple[str, str], Service] = field(default_factory=dict)  # by name and type


def open_transport(name: str, options: TransportOptions) -> Transport:
    """Return a transport by name, as a node uses it.

    Raises:
        ConfigError: no such transport, or an option is impossible.
        MissingExtraError: what it needs is not installed.
        TransportError: it cannot be opened.
    """
    if name == "udp":
        from navrl.deploy.transports.udp import UdpTransport

        served = {path: service for (path, _), service in options.services.items()}
        return UdpTransport(options.bind, options.peer, served)
    if name not in TRANSPORTS:
        raise ConfigError(f"the transport is {name!r}; expected one of {', '.join(TRANSPORTS)}")
    from navrl.deploy.ros.ros_conversion import RosConversion

    conversion = RosConversion(options.command, options.command_frame, options.remap)
    if name == "ros2":
        from navrl.deploy.transports.rclpy_node import RclpyTransport

        return RclpyTransport(conversion)
    from navrl.deploy.transports.zenoh_ros import ZenohTransport

    return ZenohTransport(
        conversion,
        connect=options.connect,
        listen=options.listen,
        domain=options.domain,
        distribution=options.distribution,
        services=options.services,
    )
