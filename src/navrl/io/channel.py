"""Messages between two processes: a JSON value each, with bytes behind it and perhaps a descriptor."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Channel", "Message"]

_HEAD = struct.Struct("<IQ")  # bytes of the value, bytes behind it
_IDLE_SECONDS = 5.0  # after which a silent partner is asked for


class Message(NamedTuple):
    """What was received."""

    value: Any
    bytes: bytearray
    descriptor: int | None


class Channel:
    """One end of a stream of messages. The other end is gone when `receive` raises EOFError, or anything an OSError.

    Args:
        end: a connected socket, which belongs to the channel from now on.
        partner: the process at the other end, if it is the parent: forks of it may hold its end open when it is long dead.
    """

    def __init__(self, end: socket.socket, partner: int | None = None) -> None:
        self._socket = end
        self._partner = partner
        if partner is not None:
            end.settimeout(_IDLE_SECONDS)

    def send(self, value: Any, buffers: Sequence[Any] = (), descriptor: int | None = None) -> None:
        """Send a message; the buffers arrive as one."""
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        head = _HEAD.pack(len(text), sum(view.nbytes for view in views))
        if descriptor is None:
            self._socket.sendall(head + text)
        else:
            sent = socket.send_fds(self._socket, [head], [descriptor])
            self._socket.sendall(head[sent:] + text)
        for view in views:
            self._socket.sendall(view)

    def receive(self) -> Message:
        """Wait for a message and return it; its descriptor is the caller's to close."""
        head = bytearray()
        descriptors: list[int] = []
        try:
            while len(head) < _HEAD.size:
                head += self._next(_HEAD.size - len(head), descriptors)
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
        data = bytearray()
        while len(data) < size:
            data += self._next(min(size - len(data), 1 << 20), [])
        return data

    def _next(self, size: int, descriptors: list[int]) -> bytes:
        while True:
            with contextlib.suppress(TimeoutError):
                data, found, _, _ = socket.recv_fds(self._socket, size, 1, socket.MSG_CMSG_CLOEXEC)
                descriptors += found
                if not data:
                    raise EOFError("the other process has closed its end")
                return data
            if os.getppid() != self._partner:
                raise EOFError(f"process {self._partner} is gone")

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
