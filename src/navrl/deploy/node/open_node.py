"""Put a node together: an exported policy, its checks, a transport."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from navrl.deploy.exported_folder import read_contract
from navrl.deploy.node.node_core import NodeCore
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.transports.transport import Service, Transport
from navrl.errors import ConfigError

TRANSPORTS = ("udp",)
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
    return NodeCore(runner, contract, settings, shield=shield)


def open_transport(
    name: str,
    *,
    bind: str = NODE_ADDRESS,
    peer: str | None = ROBOT_ADDRESS,
    services: Mapping[str, Service] | None = None,
    **options: Any,
) -> Transport:
    """Return a transport by name, as a node uses it.

    Args:
        name: one of `TRANSPORTS`.
        bind: where UDP receives.
        peer: where UDP sends.
        services: that the transport answers.
        options: of the transport.
    """
    if name == "udp":
        from navrl.deploy.transports.udp import UdpTransport

        return UdpTransport(bind, peer, services)
    raise ConfigError(f"the transport is {name!r}; expected one of {', '.join(TRANSPORTS)}")
