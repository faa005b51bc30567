"""ROS 2 topics and services over zenoh, as rmw_zenoh speaks it; no ROS needed.

A node that runs under `RMW_IMPLEMENTATION=rmw_zenoh_cpp` sees an ordinary node with ordinary
topics. Both connect to the zenoh router, `tcp/localhost:7447` by default.
"""

from __future__ import annotations

import itertools
import json
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from navrl.deploy.node_messages import INPUTS, OUTPUTS, Message
from navrl.deploy.ros.cdr import decode, encode
from navrl.deploy.ros.ros_conversion import RosConversion, RosTopic
from navrl.deploy.transports.rmw_zenoh import (
    Attachment,
    attachment_style,
    gid_of,
    token_key,
    topic_key,
)
from navrl.deploy.transports.transport import Service
from navrl.errors import MessageError, NavrlError, TransportError, missing_extra

ROUTER = "tcp/localhost:7447"
WAITING = 4096  # messages that are kept for a slow reader; further ones are dropped, oldest first


class ZenohTransport:
    """Publishes and subscribes a node's topics, or a robot's, and serves services.

    Args:
        conversion: names and types of the topics.
        role: `node`, or `robot`: the other end, for rehearsals.
        connect: zenoh endpoints to connect to.
        listen: zenoh endpoints to listen at.
        domain: ROS_DOMAIN_ID.
        distribution: of the ROS 2 nodes to talk to, for the attachment.
        services: by name and type: {("/get_safe_action", "pkg/srv/Type"): answer}.
        now: the clock that stamps messages without a stamp of their own.

    Raises:
        MissingExtraError: zenoh is not installed.
        TransportError: no session can be opened.
    """

    def __init__(
        self,
        conversion: RosConversion | None = None,
        *,
        role: str = "node",
        connect: Sequence[str] = (ROUTER,),
        listen: Sequence[str] = (),
        domain: int = 0,
        distribution: str = "jazzy",
        services: Mapping[tuple[str, str], Service] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        try:
            import zenoh
        except ImportError as error:
            raise missing_extra("the zenoh transport", "zenoh") from error
        self._zenoh: Any = zenoh
        self.conversion, self.domain = conversion or RosConversion(), domain
        self.unreadable = self.dropped = 0
        self._style, self._now = attachment_style(distribution), now
        self._name = "navrl" if role == "node" else "navrl_robot"
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._sequences: dict[str, itertools.count[int]] = {}
        try:
            self._session: Any = zenoh.open(_config(zenoh, connect, listen))
        except zenoh.ZError as error:
            raise TransportError(f"no zenoh session with {[*connect, *listen]}: {error}") from error
        self._entities = itertools.count()
        self._held: list[Any] = [self._token("NN")]
        self._publishers: dict[str, tuple[Any, bytes]] = {}
        incoming, outgoing = (INPUTS, OUTPUTS) if role == "node" else (OUTPUTS, INPUTS)
        for kind in incoming:
            self._subscribe(kind.topic)
        for kind in outgoing:
            self._publish(kind.topic)
        for (name, kind_name), service in (services or {}).items():
            self._serve(name, kind_name, service)

    @property
    def address(self) -> str:
        """The transport's name for people."""
        return f"zenoh domain {self.domain}"

    # ------------------------------------------------------------------ messages

    def receive(self, timeout: float) -> list[Message]:
        """Return what has arrived, waiting up to `timeout` s for the first; answer services."""
        messages: list[Message] = []
        try:
            item = self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait()
            while True:
                message = self._taken(*item)
                if message is not None:
                    messages.append(message)
                item = self._queue.get_nowait()
        except queue.Empty:
            return messages

    def send(self, message: Message) -> None:
        """Publish a message."""
        publisher, gid = self._publishers[message.topic]
        kind = self.conversion.topics[message.topic].type
        data = encode(kind, self.conversion.to_ros(message))
        attached = Attachment.now(next(self._sequences[message.topic]), gid)
        publisher.put(data, attachment=attached.encode(self._style))

    def wait_for_peer(self, timeout: float) -> None:
        """Wait until every topic published here has a subscriber.

        Raises:
            TransportError: some have none after `timeout` s.
        """
        end = time.monotonic() + timeout
        while not all(one.matching_status.matching for one, _ in self._publishers.values()):
            if time.monotonic() > end:
                raise TransportError(
                    f"no subscriber within {timeout:g} s; check that the robot runs"
                )
            time.sleep(0.02)

    def close(self) -> None:
        """Withdraw from the network."""
        for one in reversed(self._held):
            one.undeclare()
        self._session.close()

    def _taken(self, topic: str, item: Any) -> Message | None:
        if topic == "":
            item()  # a service's answer, given in the thread that reads
            return None
        try:
            kind = self.conversion.topics[topic].type
            return self.conversion.from_ros(topic, decode(kind, item), self._now())
        except MessageError:
            self.unreadable += 1
            return None

    # ------------------------------------------------------------------ declarations

    def _token(self, entity: str, topic: str = "", kind: str = "") -> Any:
        session = str(self._session.info.zid())
        number = next(self._entities)
        self._last_token = token_key(self.domain, session, number, entity, self._name, topic, kind)
        return self._session.liveliness().declare_token(self._last_token)

    def _subscribe(self, topic: str) -> None:
        ros: RosTopic = self.conversion.topics[topic]

        def arrived(sample: Any) -> None:
            if self._queue.qsize() >= WAITING:
                self._queue.get()
                self.dropped += 1
            self._queue.put((topic, sample.payload.to_bytes()))

        key = topic_key(self.domain, ros.name, ros.type, any_hash=True)
        self._held.append(self._session.declare_subscriber(key, arrived))
        self._held.append(self._token("MS", ros.name, ros.type))

    def _publish(self, topic: str) -> None:
        ros: RosTopic = self.conversion.topics[topic]
        publisher = self._session.declare_publisher(
            topic_key(self.domain, ros.name, ros.type),
            congestion_control=self._zenoh.CongestionControl.BLOCK,
            express=True,
        )
        self._held += [publisher, self._token("MP", ros.name, ros.type)]
        self._publishers[topic] = publisher, gid_of(self._last_token)
        self._sequences[topic] = itertools.count(1)

    def _serve(self, name: str, kind: str, service: Service) -> None:
        key = topic_key(self.domain, name, kind)

        def asked(query: Any) -> None:
            self._queue.put(("", lambda: self._answer(query, key, kind, service)))

        self._held.append(self._session.declare_queryable(key, asked, complete=True))
        self._held.append(self._token("SS", name, kind))

    def _answer(self, query: Any, key: str, kind: str, service: Service) -> None:
        try:
            asked = Attachment.decode(query.attachment.to_bytes())
            request = decode(f"{kind}_Request", query.payload.to_bytes())
            answer = encode(f"{kind}_Response", service(request))
        except (NavrlError, AttributeError, KeyError, TypeError, ValueError) as error:
            self.unreadable += 1
            query.reply_err(str(error)[:500].encode())
        else:
            attached = Attachment.now(asked.sequence, asked.gid).encode(self._style)
            query.reply(key, answer, attachment=attached)
        query.drop()


def _config(zenoh: Any, connect: Sequence[str], listen: Sequence[str]) -> Any:
    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("connect/endpoints", json.dumps([*connect]))
    config.insert_json5("listen/endpoints", json.dumps([*listen]))
    return config
