"""Messages between two processes: a JSON value each, with bytes behind it and perhaps a
descriptor.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Channel", "Message"]

_HEAD = struct.Struct("<IQ")  # bytes of the value, bytes behind it
_PATIENCE = 5.0  # seconds of silence after which it is asked whether the other process lives


class Message(NamedTuple):
    """What was received."""

    value: Any
    bytes: bytearray
    descriptor: int | None


class Channel:
    """One end of a stream of messages.

    When the other process is gone, `receive` raises EOFError, and `send` that or an OSError.

    Args:
        end: a connected socket, which belongs to the channel from now on.
        is_alive: tells whether the other process lives. Its end alone does not: a fork of it may
            hold that open for long.
    """

    def __init__(self, end: socket.socket, is_alive: Callable[[], bool] = lambda: True) -> None:
        end.settimeout(_PATIENCE)
        self._socket = end
        self.is_alive = is_alive

    def send(self, value: Any, buffers: Sequence[Any] = (), descriptor: int | None = None) -> None:
        """Send a message; the buffers arrive as one."""
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        head = _HEAD.pack(len(text), sum(view.nbytes for view in views))
        sent = 0
        if descriptor is not None:
            sent = self._patiently(socket.send_fds, self._socket, [head], [descriptor])
        for view in (memoryview(head)[sent:], memoryview(text), *views):
            while view.nbytes:
                view = view[self._patiently(self._socket.send, view) :]

    def receive(self) -> Message:
        """Wait for a message and return it; its descriptor is the caller's to close."""
        head, descriptors = bytearray(), list[int]()
        try:
            while len(head) < _HEAD.size:
                data, found, _, _ = self._patiently(
                    socket.recv_fds, self._socket, _HEAD.size - len(head), 1
                )
                descriptors += found
                head += _something(data)
            length, behind = _HEAD.unpack(head)
            value = json.loads(self._exactly(length))
            return Message(value, self._exactly(behind), descriptors[0] if descriptors else None)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def has_news(self) -> bool:
        """Tell whether something has arrived, or the other end was closed."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        left = memoryview(data)
        while left.nbytes:
            left = left[_something(self._patiently(self._socket.recv_into, left)) :]
        return data

    def _patiently(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function again when it took too long, as long as the other process lives."""
        while True:
            try:
                return function(*arguments)
            except TimeoutError:
                if not self.is_alive():
                    raise EOFError("the other process is gone") from None

    def close(self) -> None:
        """End the connection, whoever else holds this end open."""
        with contextlib.suppress(OSError):  # the other end did it first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _something(received: Any) -> Any:
    if not received:
        raise EOFError("the other process has closed its end")
    return received
