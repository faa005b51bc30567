"""An HTTP proxy in front of a tracker that misbehaves on purpose, one way at a time."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit


class FaultyProxy:
    """Forwards to `target`. `fault` is ok, refused (nobody listens), hang (accepts, never answers),
    error (HTTP 500), slow, or die (hangs up in the middle of an upload); `seen` counts what met
    each.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        self.target = urlsplit(target)
        self.seen: dict[str, int] = {}
        self._fault, self._port = "ok", port
        self._released = threading.Event()
        self._server: _Server | None = None
        self._listen()
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def fault(self) -> str:
        return self._fault

    @fault.setter
    def fault(self, fault: str) -> None:
        self._fault = fault
        self._released.set()  # those that hang are hung up on
        self._released = threading.Event()
        if fault == "refused":
            self._stop()
        elif self._server is None:
            self._listen()

    def _listen(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), _Forward)
        self._port = self._server.server_port
        self._server.proxy = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in list(self._server.connections):
                hang_up(connection)
            self._server = None

    def close(self) -> None:
        self.fault = "refused"


def hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    proxy: FaultyProxy

    def __init__(self, *arguments: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed hang up: nothing to tell."""


class _Forward(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def _forward(self) -> None:
        proxy = self.server.proxy
        fault = proxy.fault
        proxy.seen[fault] = proxy.seen.get(fault, 0) + 1
        size = int(self.headers.get("Content-Length") or 0)
        if fault == "hang":
            proxy._released.wait(30)
            self.close_connection = True
            return
        if fault == "die" and self.command == "PUT":
            self.rfile.read(size // 2)
            proxy.seen["died"] = proxy.seen.get("died", 0) + 1
            hang_up(self.connection)
            self.close_connection = True
            return
        body = (
            self._chunks()
            if self.headers.get("Transfer-Encoding") == "chunked"
            else self.rfile.read(size)
        )
        if fault == "error":
            self._answer(500, [], b"out of order")
            return
        if fault == "slow":
            time.sleep(0.3)
        headers = {
            k: v
            for k, v in self.headers.items()
            if k.lower() not in ("transfer-encoding", "content-length", "connection")
        }
        upstream = http.client.HTTPConnection(proxy.target.hostname, proxy.target.port, timeout=30)
        upstream.request(
            self.command, self.path, body, {**headers, "Content-Length": str(len(body))}
        )
        answer = upstream.getresponse()
        content = answer.read()
        kept = [
            (k, v)
            for k, v in answer.getheaders()
            if k.lower() not in ("transfer-encoding", "content-length", "connection")
        ]
        self._answer(answer.status, kept, content)
        upstream.close()

    def _chunks(self) -> bytes:
        pieces = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, code: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _forward
