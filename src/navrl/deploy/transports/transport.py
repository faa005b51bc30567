"""What a node asks of whatever carries its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from navrl.deploy.node_messages import Message

# A service by name: a request's fields -> the response's fields.
Service = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Transport(Protocol):
    """Carries messages between a node and a robot; used by one thread."""

    unreadable: int  # messages that could not be read

    def receive(self, timeout: float) -> list[Message]:
        """Return what has arrived, waiting up to `timeout` s for the first; answer services."""

    def send(self, message: Message) -> None:
        """Send a message; without a receiver it is lost."""

    def close(self) -> None:
        """Give sockets and threads back."""
