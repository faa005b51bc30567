"""Topics through rclpy, where ROS 2 is installed and sourced."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any

from navrl.deploy.node_messages import INPUTS, OUTPUTS, Message
from navrl.deploy.ros.cdr import decode, encode
from navrl.deploy.ros.ros_conversion import RosConversion
from navrl.errors import MessageError, TransportError

DEPTH = 10  # of the queues


class RclpyTransport:
    """A ROS 2 node `navrl` under whatever middleware ROS 2 uses.

    Messages pass as CDR bytes, so that rclpy and zenoh share all conversions.

    Raises:
        TransportError: rclpy cannot be imported.
    """

    def __init__(self, conversion: RosConversion | None = None) -> None:
        self.conversion = conversion or RosConversion()
        self.unreadable = 0
        self._arrived: list[Message] = []
        try:
            self._rclpy: Any = importlib.import_module("rclpy")
            self._serialization: Any = importlib.import_module("rclpy.serialization")
        except ImportError as error:
            raise TransportError(
                "rclpy cannot be imported; install ROS 2 and source its setup file, or use "
                "--transport zenoh, which needs no ROS"
            ) from error
        self._rclpy.init()
        self._node = self._rclpy.create_node("navrl")
        self._publishers = {kind.topic: self._publisher(kind.topic) for kind in OUTPUTS}
        for kind in INPUTS:
            self._subscribe(kind.topic)

    @property
    def address(self) -> str:
        """The transport's name for people."""
        return "ROS 2 node navrl"

    def receive(self, timeout: float) -> list[Message]:
        """Return what has arrived, waiting up to `timeout` s for the first."""
        self._rclpy.spin_once(self._node, timeout_sec=max(timeout, 0.0))
        for _ in range(len(INPUTS) * DEPTH):  # the rest of what waits
            before = len(self._arrived)
            self._rclpy.spin_once(self._node, timeout_sec=0.0)
            if len(self._arrived) == before:
                break
        found, self._arrived = self._arrived, []
        return found

    def send(self, message: Message) -> None:
        """Publish a message."""
        publisher, kind = self._publishers[message.topic]
        name = self.conversion.topics[message.topic].type
        data = encode(name, self.conversion.to_ros(message))
        publisher.publish(self._serialization.deserialize_message(data, kind))

    def close(self) -> None:
        """End the ROS 2 node."""
        self._node.destroy_node()
        self._rclpy.shutdown()

    def _publisher(self, topic: str) -> tuple[Any, Any]:
        ros = self.conversion.topics[topic]
        kind = _class_of(ros.type)
        return self._node.create_publisher(kind, ros.name, DEPTH), kind

    def _subscribe(self, topic: str) -> None:
        ros = self.conversion.topics[topic]
        kind = _class_of(ros.type)

        def arrived(message: Any) -> None:
            try:
                data = self._serialization.serialize_message(message)
                values: Mapping[str, Any] = decode(ros.type, bytes(data))
                self._arrived.append(self.conversion.from_ros(topic, dict(values), time.time()))
            except MessageError:
                self.unreadable += 1

        self._node.create_subscription(kind, ros.name, arrived, DEPTH)


def _class_of(name: str) -> Any:
    """Return the Python class of an interface, `geometry_msgs/msg/Twist`."""
    package, kind, short = name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), short)
    except (ImportError, AttributeError) as error:
        raise TransportError(
            f"{name} is not installed in this ROS 2; install the package {package}"
        ) from error
