"""Messages as JSON, one in each UDP datagram: for scripts, and for rehearsals.

    {"topic": "odometry", "stamp": 12.5, "position": [0, 0, 1], "velocity": [0, 0, 0]}

A service is called with {"service": NAME, "id": ANYTHING, "request": {...}} and answers the sender
with {"service": NAME, "id": ANYTHING, "response": {...}}, or "error" instead of "response".
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from typing import Any

from navrl.deploy.node_messages import Message, from_values, to_values
from navrl.deploy.transports.transport import Service
from navrl.errors import ConfigError, MessageError, NavrlError, TransportError

LARGEST = 65_507  # bytes of a datagram
BUFFER = 1 << 20  # bytes that the system keeps for us


class UdpTransport:
    """Sends to one address, and receives what arrives at another.

    Args:
        bind: HOST:PORT to receive at; port 0 takes a free one.
        peer: HOST:PORT to send to; None: wherever the first message comes from.
        services: answered while receiving.
    """

    def __init__(
        self, bind: str, peer: str | None = None, services: Mapping[str, Service] | None = None
    ) -> None:
        self.services = dict(services or {})
        self.unreadable = 0
        self._peer = parse_address(peer) if peer else None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        try:
            self._socket.bind(parse_address(bind))
        except OSError as error:
            self._socket.close()
            raise TransportError(f"cannot receive at {bind}: {error.strerror or error}") from error
        self._socket.setblocking(False)

    @property
    def address(self) -> str:
        """Where messages are received, HOST:PORT."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def connect(self, peer: str) -> None:
        """Send to this HOST:PORT from now on."""
        self._peer = parse_address(peer)

    def receive(self, timeout: float) -> list[Message]:
        """Return what has arrived, waiting up to `timeout` s for the first; answer services."""
        select.select([self._socket], [], [], max(timeout, 0.0))
        messages: list[Message] = []
        while True:
            try:
                data, sender = self._socket.recvfrom(LARGEST + 1)
            except BlockingIOError:
                return messages
            except ConnectionError:  # an earlier datagram was refused: the peer is not there
                continue
            self._peer = self._peer or sender
            message = self._read(data, sender)
            if message is not None:
                messages.append(message)

    def send(self, message: Message) -> None:
        """Send a message; without a receiver it is lost."""
        if self._peer is not None:
            self._put(to_values(message), self._peer)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _read(self, data: bytes, sender: Any) -> Message | None:
        try:
            values = json.loads(data)
            if not isinstance(values, dict):
                raise MessageError("expected a JSON object")
            if "service" in values:
                self._answer(values, sender)
                return None
            return from_values(values)
        except (ValueError, RecursionError):  # JSON, UTF-8 and MessageError
            self.unreadable += 1
            return None

    def _answer(self, values: Mapping[str, Any], sender: Any) -> None:
        name, request = str(values["service"]), values.get("request", {})
        answer: dict[str, Any] = {"service": name, "id": values.get("id")}
        service = self.services.get(name)
        if service is None:
            known = ", ".join(self.services) or "none"
            answer["error"] = f"no service {name[:60]!r}; expected one of: {known}"
        else:
            try:
                answer["response"] = dict(service(request))
            except (NavrlError, TypeError, ValueError, KeyError) as error:
                answer["error"] = str(error)[:500]
        self._put(answer, sender)

    def _put(self, values: Mapping[str, Any], address: Any) -> None:
        data = json.dumps(values).encode()
        if len(data) > LARGEST:
            raise TransportError(
                f"a message has {len(data):,} bytes; a datagram carries {LARGEST:,}: send fewer "
                "points, or use another transport"
            )
        try:
            self._socket.sendto(data, address)
        except (ConnectionError, BlockingIOError):
            return  # no receiver, or no room: lost, as a datagram may be


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"the address is {text!r}; expected HOST:PORT, like 127.0.0.1:9870")
    return host or "127.0.0.1", int(port)
