"""A slow link between the ranks of a team: all their connections pass through a process that delays
them.

gloo publishes in the store on which address a rank listens, and of two ranks the one whose address
is greater connects to the other. `LinkedStore` tells it the address of a forwarder instead, which
passes bytes on after the time that the link would take.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from torch.distributed import Store

# New processes are forked from one that has imported what they need, which takes seconds, and has
# done nothing else.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["navrl.training.loop", "navrl.training.ppo_trainer"])

CHUNK = 1 << 16  # bytes that are forwarded at once
_ADDRESS = re.compile(rb"\x02\x00(..)\x7f\x00\x00\x01", re.DOTALL)  # a sockaddr_in of 127.0.0.1


@dataclass(frozen=True)
class Link:
    """A link of a network card: how long a byte is under way, and how many leave in a second."""

    name: str
    delay: float = 0.0  # s, in one direction
    rate: float = 0.0  # bit/s, of each direction of each connection; 0: as fast as it can


class LinkedStore(Store):
    """A store through which this rank finds forwarders instead of the ranks that it connects to.

    Args:
        inner: the store of the team.
        forwarder: this rank's end of a pipe to a `forwarding` process.
    """

    def __init__(self, inner: Store, forwarder: Any) -> None:
        super().__init__()
        self._inner, self._forwarder, self._own = inner, forwarder, b""

    def set(self, key: str, value: Any) -> None:
        """Store a value; the address of this rank is among them."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        if found := _ADDRESS.search(content):
            self._own = found[1]
        self._inner.set(key, content)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        """Return a value, once it is there; an address to connect to is that of a forwarder."""
        return _ADDRESS.sub(self._redirected, self._inner.get(key))

    def _redirected(self, found: re.Match[bytes]) -> bytes:
        if _order(found[1]) >= _order(self._own):  # the other rank connects to this one
            return found[0]
        self._forwarder.send(int.from_bytes(found[1], "big"))
        port: int = self._forwarder.recv()
        return found[0][:2] + port.to_bytes(2, "big") + found[0][4:]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter."""
        return self._inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Tell whether all keys are there."""
        return self._inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are there."""
        self._inner.wait(keys, timeout or timedelta(minutes=5))

    def delete_key(self, key: str) -> bool:
        """Remove a key."""
        return self._inner.delete_key(key)


def _order(port: bytes) -> int:
    """Return what gloo compares of two addresses of one machine: the port, its bytes swapped."""
    return int.from_bytes(port, "little")


@contextmanager
def forwarding(size: int) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield a pipe for each rank's `LinkedStore`, and one that takes a `Link` and answers with the
    bytes forwarded so far.
    """
    ours, theirs = zip(*(PROCESSES.Pipe() for _ in range(size + 1)), strict=True)
    process = PROCESSES.Process(target=_forward, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours[:size], ours[size]
    finally:
        process.kill()
        process.join()


class _Wires:
    """The connections of all ranks, and the link that they share the properties of."""

    def __init__(self) -> None:
        self.link = Link("free")
        self.passed = 0  # bytes

    def listen(self, port: int) -> int:
        """Return a new port whose connections lead to another one."""
        listener = _listener()
        _start(self._accept, listener, port)
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            incoming, _ = listener.accept()
            outgoing = socket.create_connection(("127.0.0.1", port))
            for one in (incoming, outgoing):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((incoming, outgoing), (outgoing, incoming)):
                queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                _start(self._read, pair[0], queue)
                _start(self._write, pair[1], queue)

    def _read(self, source: socket.socket, queue: SimpleQueue[tuple[float, bytes]]) -> None:
        """Note when each chunk would be through: chunks leave one after the other."""
        free = 0.0
        while chunk := _received(source):
            now, link = time.monotonic(), self.link
            free = max(now, free) + (8 * len(chunk) / link.rate if link.rate else 0.0)
            queue.put((free + link.delay, chunk))
            self.passed += len(chunk)
        queue.put((0.0, b""))

    def _write(self, target: socket.socket, queue: SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, chunk = queue.get()
            if not chunk:
                target.close()
                return
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            target.sendall(chunk)


def _listener() -> socket.socket:
    """Listen on a port that is lower, in gloo's order, than any that the system chooses."""
    for port in range(0x2000, 0x8000, 0x100):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise OSError("no free port between 8192 and 32512 for a forwarder")


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(CHUNK)
    except OSError:
        return b""


def _start(target: Any, *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def end_with_parent() -> None:
    """End this process when the one that started it has ended, however that was."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _start(lambda: (parent.join(), os._exit(1)))


def _forward(pipes: Sequence[Any]) -> None:
    """Serve the stores of all ranks, and changes of the link, until the process is killed."""
    end_with_parent()
    wires = _Wires()
    *ranks, control = pipes
    for pipe in ranks:
        _start(_answer, pipe, wires)
    while True:
        wires.link = control.recv()
        control.send(wires.passed)


def _answer(pipe: Any, wires: _Wires) -> None:
    while True:
        pipe.send(wires.listen(pipe.recv()))
