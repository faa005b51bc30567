"""Files written by a process of their own, so that coding them and training do not share an
interpreter.

The process is started with the first large save and ends with the saver, or when the training dies,
however it dies. It gets descriptions of the arrays, whose bytes lie in memory that both see, and
answers when the file is on the disk. It may begin while the copy of the state is still being made:
it is told which arrays are there, and at the end whether the copy can be trusted; a file gets its
name after that. Should the training be killed after it said so, the file is still finished.

The process imports no torch, and nothing of the script that it works for.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from navrl.errors import CheckpointError
from navrl.io.checkpoint.channel import Channel, Message
from navrl.io.checkpoint.pace import Pace
from navrl.io.checkpoint.shared_memory import SharedMemory
from navrl.io.container.codecs import Bytes
from navrl.io.container.container_file import ArraySource, Written, write_container
from navrl.io.container.priority import give_way
from navrl.io.container.thread_pool import TaskThreads

__all__ = ["ProcessGoneError", "WriterProcess", "can_start", "serve"]

# bytes that were copied since the process was last told how many arrays are there
_TELL_EVERY = 8 << 20
_END_SECONDS = 10.0


class ProcessGoneError(Exception):
    """The process that was to write a file has died. Perhaps the file is there: to write it again
    does no harm.
    """


def can_start() -> bool:
    """Tell whether this interpreter can be started again; in an application that embeds Python its
    name is another's.
    """
    return hasattr(os, "memfd_create") and os.path.basename(sys.executable or "").startswith(
        ("python", "pypy")
    )


class WriterProcess:
    """The training's end: starts the process, hands files over, waits for them.

    Args:
        threads: that encode there, beside the one that writes.
        niceness: how far the process gives way to others.
        pace: how hard it may work, which it looks up all the time.

    Raises:
        Exception: of whatever kind, it cannot be started.
    """

    def __init__(self, threads: int, niceness: int, pace: Pace) -> None:
        if pace.descriptor is None:
            raise OSError("this system has no memory that two processes can see")
        mine, theirs = socket.socketpair()
        descriptors = (theirs.fileno(), pace.descriptor)
        arguments = f"{descriptors}, {os.getpid()}, {threads}, {niceness}"
        call = f"from navrl.io.checkpoint import writer_process as w; w.serve({arguments})"
        path = os.pathsep.join(place for place in sys.path if isinstance(place, str) and place)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-X", f"utf8={sys.flags.utf8_mode}", "-c", call],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # an inherited one would keep who reads it waiting
                    # Ctrl+C is for the training, which then waits for its files
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
                )
            except BaseException:
                mine.close()
                raise
        process = self._process
        self._channel = Channel(mine, lambda: process.poll() is None)
        self._is_up = False

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def end(self) -> str:
        """How the process ended."""
        code = self._process.poll()
        if code is None or code >= 0:
            return "running" if code is None else f"exit code {code}"
        return f"killed by {signal.strsignal(-code) or 'a signal'} ({-code})"

    def is_up(self) -> bool:
        """Tell whether the process takes files yet.

        Raises:
            ProcessGoneError: it has ended.
        """
        if not self._is_up and self._channel.has_news():
            self._receive()  # its greeting
            self._is_up = True
        return self._is_up

    def write(
        self,
        path: Path,
        memory: SharedMemory,
        sources: Sequence[ArraySource],
        places: Sequence[int | None],
        document: dict[str, Any],
        *,
        codec: str,
        level: int | None,
        check: Callable[[], None],
    ) -> Written:
        """Have a container written, as `write_container` does.

        Args:
            path: the file.
            memory: in which the sources lie.
            sources: none of them cut.
            places: of the sources in the memory; those that lie elsewhere are sent.
            document: stored in the index.
            codec: of the file.
            level: of the codec.
            check: called when everything was copied; should it raise, the file never appears.

        Raises:
            ProcessGoneError: it died.
            CheckpointError, OSError: what went wrong there, or what a source or `check` raised
            here.
        """
        described = [
            [source.name, source.element, source.shape, source.codec, source.data.size, place]
            for source, place in zip(sources, places, strict=True)
        ]
        job = {
            "path": str(path),
            "memory": memory.serial,
            "arrays": described,
            "document": document,
            "codec": codec,
            "level": level,
        }
        sent = [source.data for source, place in zip(sources, places, strict=True) if place is None]
        self._send(job, sent, memory.descriptor)
        try:
            self._follow_copy(sources, check)
        except ProcessGoneError:
            raise
        except BaseException:
            self._send({"abandon": True})
            self._receive()
            raise
        answer = self._receive().value
        if "written" in answer:
            return Written(path, *answer["written"])
        raise _error(**answer)

    def _follow_copy(self, sources: Sequence[ArraySource], check: Callable[[], None]) -> None:
        """Tell the process which arrays are there, as they come, and that the copy can be
        trusted.
        """
        untold = 0
        for number, source in enumerate(sources):
            source.ready()
            untold += source.data.size
            if untold >= _TELL_EVERY:
                self._send({"ready": number + 1})
                untold = 0
        check()
        self._send({"ready": len(sources), "trusted": True})

    def _send(self, *message: Any) -> None:
        try:
            self._channel.send(*message)
        except (OSError, EOFError) as error:
            raise ProcessGoneError(str(error)) from error

    def _receive(self) -> Message:
        try:
            return self._channel.receive()
        except (OSError, EOFError) as error:
            raise ProcessGoneError(str(error)) from error

    def close(self) -> None:
        """Let the process end, and wait until it has; it must not be writing any more."""
        self._channel.close()
        if not self._is_up:
            self._process.kill()  # it is still importing
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _error(kind: str, text: str, errno: int | None, files: Sequence[str | None]) -> Exception:
    """Return what was raised in the other process, as nearly as it matters."""
    if errno is not None:
        return OSError(errno, os.strerror(errno), files[0], None, files[1])
    return CheckpointError(text if kind == "CheckpointError" else f"{kind}: {text}")


def _told(error: Exception) -> dict[str, Any]:
    """Return an error as `_error` takes it."""
    system = error if isinstance(error, OSError) else OSError()
    files = [
        file if file is None else os.fsdecode(file) for file in (system.filename, system.filename2)
    ]
    return {"kind": type(error).__name__, "text": str(error), "errno": system.errno, "files": files}


# In the process.


def serve(descriptors: tuple[int, int], parent: int, threads: int, niceness: int) -> None:
    """Write files until the training ends.

    Args:
        descriptors: of the channel, and of the memory that says how hard to work.
        parent: the training's process.
        threads: that encode, beside the one that writes.
        niceness: how far to give way to others.
    """
    # it has a session of its own, whose niceness is what counts beside the training's
    give_way(os.getpid(), niceness)
    channel = Channel(socket.socket(fileno=descriptors[0]), lambda: os.getppid() == parent)
    pace = Pace.behind(descriptors[1])
    encoders = TaskThreads(threads, "navrl-encode", resting=lambda: pace.resting)
    memory = _Mapped()
    try:
        channel.send({"up": True})
        while True:
            message = channel.receive()
            if "path" in message.value:  # else: news of the copy for a file that has failed already
                channel.send(_Order(channel, message).carry_out(memory, encoders))
            del message  # with what was sent along
    except (OSError, EOFError):
        pass  # the training is over


class _Mapped:
    """The memory of the last save: most use that of the one before, which then need not be mapped
    page by page again.

    It is kept until the next save, also when the training has no more use for it.
    """

    def __init__(self) -> None:
        self._serial = -1
        self._bytes = np.empty(0, np.uint8)

    def of(self, serial: int, descriptor: int | None) -> Bytes:
        """Return the memory behind a descriptor, to be read, and close the descriptor."""
        if descriptor is None:
            raise CheckpointError(
                "the memory of the state did not reach the process that writes it; may it open "
                "more files?"
            )
        try:
            if serial != self._serial:
                self._bytes = np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
                self._serial = serial
        finally:
            os.close(descriptor)
        return self._bytes


class _Order:
    """One file to be written."""

    def __init__(self, channel: Channel, message: Message) -> None:
        self._channel = channel
        self._job, self._sent, self._descriptor = message
        self._path = Path(self._job["path"])
        self._before = _identity(self._path)
        self._ready = 0
        self._trusted = False

    def carry_out(self, memory: _Mapped, encoders: TaskThreads) -> dict[str, Any]:
        """Write the file, and return what to answer."""
        try:
            written = write_container(
                self._path,
                self._sources(memory),
                self._job["document"],
                codec=self._job["codec"],
                level=self._job["level"],
                threads=encoders,
                check=self._check,
            )
        except EOFError:
            raise
        except Exception as error:
            return _told(error)
        return {"written": [written.raw_bytes, written.stored_bytes]}

    def _sources(self, memory: _Mapped) -> list[ArraySource]:
        shared = memory.of(self._job["memory"], self._descriptor)
        sent = np.frombuffer(self._sent, np.uint8)
        sources = []
        for number, (name, element, shape, codec, size, place) in enumerate(self._job["arrays"]):
            if place is None:
                data, sent = sent[:size], sent[size:]
            else:
                data = shared[place : place + size]
            sources.append(
                ArraySource(
                    name, element, tuple(shape), data, partial(self._wait_for, number), codec
                )
            )
        return sources

    def _wait_for(self, number: int) -> None:
        while self._ready <= number:
            self._hear()

    def _hear(self) -> None:
        news = self._channel.receive().value
        if "abandon" in news:
            raise CheckpointError("the copy of the state cannot be trusted")
        self._ready, self._trusted = news["ready"], "trusted" in news

    def _check(self) -> None:
        """Return when the file may have its name. If nobody is there any more, it must not replace
        what came later.
        """
        while not self._trusted:
            self._hear()
        if (self._channel.has_news() or not self._channel.is_alive()) and _identity(
            self._path
        ) != self._before:
            raise EOFError("the training was killed, and another has written a file of this name")


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file from another of the same name."""
    try:
        found = os.stat(path)
    except (
        OSError,
        ValueError,
    ):  # ValueError: no file can have this name, as its writer will find out
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
