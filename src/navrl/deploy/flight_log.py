"""Flights in MCAP files: everything a node received and sent, as ROS 2 messages.

Foxglove, rosbag2 and mcap-ros2-support read them. `read_flight` returns a node's messages again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from navrl.deploy.node_messages import Message
from navrl.deploy.ros.cdr import decode, encode
from navrl.deploy.ros.interfaces import whole_definition
from navrl.deploy.ros.ros_conversion import RosConversion
from navrl.errors import ConfigError, MessageError, missing_extra

NANO = 1_000_000_000
PROFILE = "ros2"


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * NANO))


class FlightLog:
    """Writes messages into an MCAP file; use it in a `with` block, which completes the file.

    Args:
        path: of the file; it must not exist.
        metadata: text by name, kept in the file.

    Raises:
        ConfigError: the file exists.
        MissingExtraError: mcap is not installed.
    """

    def __init__(self, path: str | Path, metadata: dict[str, str] | None = None) -> None:
        try:
            from mcap.writer import Writer
        except ImportError as error:
            raise missing_extra("a flight log", "deploy", "mcap") from error
        path = Path(path)
        try:
            self._file = path.open("xb")
        except FileExistsError as error:
            raise ConfigError(f"{path} exists; a flight log is never overwritten") from error
        self._writer = Writer(self._file)
        self._writer.start(PROFILE, library="navrl")
        self._writer.add_metadata("navrl", metadata or {})
        self._conversion = RosConversion("twist_stamped")
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}

    def write(self, message: Message, now: float) -> None:
        """Keep a message, at the time it arrived or was sent."""
        ros = self._conversion.topics[message.topic]
        channel = self._channels.get(message.topic)
        if channel is None:
            channel = self._channels[message.topic] = self._channel(message.topic, ros.type)
        self._writer.add_message(
            channel_id=channel,
            log_time=_nanoseconds(now),
            publish_time=_nanoseconds(message.stamp),
            data=encode(ros.type, self._conversion.to_ros(message)),
        )

    def _channel(self, topic: str, kind: str) -> int:
        if kind not in self._schemas:
            self._schemas[kind] = self._writer.register_schema(
                name=kind, encoding="ros2msg", data=whole_definition(kind).encode()
            )
        name = self._conversion.topics[topic].name
        return int(
            self._writer.register_channel(
                topic=name,
                message_encoding="cdr",
                schema_id=self._schemas[kind],
                metadata={"navrl_topic": topic},
            )
        )

    def close(self) -> None:
        """Complete the file."""
        if not self._file.closed:
            self._writer.finish()
            self._file.close()

    def __enter__(self) -> FlightLog:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete the file."""
        self.close()


def read_flight(path: str | Path) -> Iterator[tuple[float, Message]]:
    """Yield the time, s, and every message of a flight, in the order they were logged.

    Topics that a node does not know are passed over, so a bag of a whole robot can be read.

    Raises:
        ConfigError: the file is no MCAP file, or damaged.
        MissingExtraError: mcap is not installed.
    """
    try:
        from mcap.exceptions import McapError
        from mcap.reader import make_reader
    except ImportError as error:
        raise missing_extra("reading a flight log", "deploy", "mcap") from error
    conversion = RosConversion("twist_stamped")
    names = {(topic.name, topic.type): own for own, topic in conversion.topics.items()}
    with Path(path).open("rb") as file:
        try:
            for schema, channel, record in make_reader(file).iter_messages(log_time_order=True):
                own = names.get((channel.topic, schema.name if schema else ""))
                if own is not None:
                    yield _message(conversion, own, record)
        except (McapError, MessageError) as error:
            raise ConfigError(f"{path} cannot be read as a flight: {error}") from error


def _message(conversion: RosConversion, own: str, record: Any) -> tuple[float, Message]:
    now = record.log_time / NANO
    kind = conversion.topics[own].type
    return now, conversion.from_ros(own, decode(kind, record.data), now)
