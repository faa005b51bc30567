"""Python programs in processes of their own, without the seconds that importing torch takes.

    done = forked.run(program, "argument", cwd=folder)   as subprocess.run([sys.executable, "-c", program, ...])
    process = forked.start(program)                      as subprocess.Popen, with pipes
    process = forked.start(forked.NAVRL, "train", ...)   a `navrl` process

A process that has imported torch and navrl (or has run what a test gives as `warm`) forks a child for
each program. The child has a folder, an environment, arguments, streams and a `__main__` of its own,
and ends as an interpreter does, with its exit code or signal. A test of what a program imports needs
a real interpreter, and so does one of what is read before (options, warnings, `PYTHON...` but for
the path, `OMP_NUM_THREADS`, `NUMBA_...`).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import IO

WARM = "import navrl.api.train_policy, navrl.cli"  # what nearly every program imports
NAVRL = "import sys; from navrl.cli import main; sys.exit(main(sys.argv[1:]))"
PATIENCE = 300.0  # s, on a machine that has more to do
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def run(
    program: str,
    *arguments: object,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = PATIENCE,
    warm: str = WARM,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input; return what it wrote and how it ended."""
    with open(os.devnull) as nothing, _file() as output, _file() as errors:
        process = Process(program, arguments, cwd, env, warm, (nothing, output, errors))
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, _text(output), _text(errors))


def start(
    program: str,
    *arguments: object,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    warm: str = WARM,
) -> Piped:
    """Start a program that a test talks to."""
    return Piped(program, arguments, cwd, env, warm)


class Process:
    """A program that runs."""

    def __init__(self, program, arguments, cwd, env, warm, streams) -> None:
        self._server, self.returncode = _server(warm), None
        request = {
            "program": program,
            "arguments": [str(argument) for argument in arguments],
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        self.pid = self._server.ask(request, [stream.fileno() for stream in streams])["pid"]

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})["code"]
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked program", timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(Process):
    """A program whose input and output are pipes, with text in them."""

    def __init__(self, program, arguments, cwd, env, warm) -> None:
        (theirs, stdin), (stdout, its) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)
        self._errors = _file()
        with open(theirs) as input, open(its, "w") as output:
            super().__init__(program, arguments, cwd, env, warm, (input, output, self._errors))

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Close its input, wait until it ends, and return the rest of its output, and its errors."""
        self.stdin.close()
        timer = threading.Timer(timeout, os.kill, (self.pid, signal.SIGKILL))  # which ends the read
        timer.start()
        with self.stdout, self._errors:
            output = self.stdout.read()
            self.wait(timeout)
            timer.cancel()
            return output, _text(self._errors)

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdin.close()
        self.stdout.close()
        self.wait()
        self._errors.close()


def _file() -> IO[str]:
    return tempfile.TemporaryFile("w+")


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class _Server:
    """The process that forks, as its client sees it. It ends with the client."""

    def __init__(self, warm: str) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno()), warm]
        # not the folder and the settings of whichever test comes first
        environment = {name: text for name, text in os.environ.items() if name[:6] != "NUMBA_"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[1],
            env=environment,
        )
        theirs.close()
        self._answers, self._alone = self._socket.makefile(), threading.Lock()

    def ask(self, request: dict, descriptors: list[int] | None = None) -> dict:
        with self._alone:
            # the descriptors first, with one byte: a long request arrives in pieces
            socket.send_fds(self._socket, [b"."], descriptors or [])
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(self._answers.readline())


@functools.cache
def _server(warm: str) -> _Server:
    return _Server(warm)


# ---------------------------------------------------------------------- in the server


def serve(client: socket.socket) -> str:
    """Answer requests until there are no more; in each child, return the program that it is for."""
    while True:
        _, descriptors, *_ = socket.recv_fds(client, 1, 3)
        line = b""
        while not line.endswith(b"\n"):
            piece = client.recv(1 << 16)
            if not piece:
                sys.exit()
            line += piece
        request = json.loads(line)
        if "poll" in request:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = {"code": os.waitstatus_to_exitcode(status) if ended else None}
        else:
            pid = os.fork()
            if pid == 0:
                client.close()
                become(request, descriptors)
                return request["program"]
            answer = {"pid": pid}
        for descriptor in descriptors:
            os.close(descriptor)
        client.sendall(json.dumps(answer).encode() + b"\n")


def become(request: dict, descriptors: list[int]) -> None:
    """Have what belongs to a program: its streams, folder, environment and arguments."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = ["", *(each for each in added if each and each not in sys.path)]
    sys.argv[:] = ["-c", *request["arguments"]]


if __name__ == "__main__":
    exec(sys.argv[2], {})
    gc.collect()
    gc.freeze()  # so that looking for garbage copies none of it into a child
    _program = serve(socket.socket(fileno=int(sys.argv[1])))
    _server_module = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(_program, "<string>", "exec"), vars(sys.modules["__main__"]))
