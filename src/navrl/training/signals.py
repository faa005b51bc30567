"""Signals: Ctrl+C and SIGTERM stop a training; on SIGHUP (closed terminal) it only saves."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from navrl.training.terminal import leave_terminal, open_terminals

if TYPE_CHECKING:
    from typing_extensions import Self

STOPS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = "\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """A signal stopped the command before or after the training, where there is nothing to save."""


class StopRequest:
    """Handles signals inside its `with` block.

    SIGINT and SIGTERM raise `Stopped` in the main thread. Inside `deferring()` the first one is
    only stored in `signal`, so that the training can finish its iteration and save. A second SIGINT
    ends the process at once; a thread does that, because Python's handlers do not run while the
    main thread waits for another process. Checkpoints are written atomically, so nothing that was
    saved is lost.

    SIGHUP redirects the standard streams that are terminals to the null device and requests a
    checkpoint (`take_save_request`). Child processes started in the block have SIGHUP blocked, so
    they survive the terminal too. If SIGHUP is ignored at the start (`nohup`), it stays ignored.

    Args:
        launched: torchrun or `processes=N` started this process. One Ctrl+C then arrives twice,
            from the terminal and from the launcher, so a second SIGINT does not end the process;
            the launcher does.
    """

    def __init__(self, launched: bool = False) -> None:
        self.signal: int | None = None
        self.hung_up = False  # SIGHUP has arrived
        self.terminal_gone = False
        self._launched = launched
        # called by a thread at the first SIGINT or SIGTERM that is only stored; must not block
        self.on_stop: Callable[[], None] = lambda: None
        self._save_requested = False
        self._deferred = False
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit status: 0, or 128 plus the signal."""
        return 0 if self.signal is None else 128 + self.signal

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Store SIGINT and SIGTERM in `signal` instead of raising; the caller checks it."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def take_save_request(self) -> bool:
        """Return whether a checkpoint was requested since the last call."""
        requested, self._save_requested = self._save_requested, False
        return requested

    def __enter__(self) -> Self:
        self._terminals = open_terminals()
        self._previous = {number: signal.signal(number, self._stop) for number in STOPS}
        self._hears_hangup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
        if self._hears_hangup:
            self._previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, _handled_by_the_thread)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="navrl-signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        # ends the thread, even if a forked process holds the socket too
        self._writes.shutdown(socket.SHUT_RDWR)
        self._writes.close()
        self._thread.join()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        if not self._deferred:
            raise Stopped

    def _watch(self) -> None:
        """Handle signals as they arrive on the wakeup socket, one byte each."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # the only thread that takes it
        stops = 0
        with self._reads:
            while received := self._reads.recv(1):
                if received[0] == signal.SIGHUP:
                    self.terminal_gone = leave_terminal(self._terminals) or self.terminal_gone
                    self._save_requested = self.hung_up = True
                stops += received[0] in STOPS
                if stops == 1 and received[0] in STOPS and self._deferred:
                    self.on_stop()
                if stops > 1 and received[0] == signal.SIGINT and not self._launched:
                    if sys.stdout.isatty():
                        os.write(sys.stdout.fileno(), SHOW_CURSOR.encode())
                    os._exit(128 + signal.SIGINT)


class CallerStop(StopRequest):
    """Handles Ctrl+C and SIGTERM in a program that called `navrl.train`, and leaves the rest alone.

    Inside `deferring()` the first signal is only stored, so that the training saves; the second
    one raises `Stopped`. Outside the main thread no signal is handled.
    """

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._stop) for number in STOPS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

    def deliver(self) -> None:
        """Raise the stored signal again, for the handlers of the caller: KeyboardInterrupt, ..."""
        if self.signal is not None:
            signal.raise_signal(self.signal)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        first = self.signal is None
        self.signal = self.signal or number
        if not (first and self._deferred):
            raise Stopped
        self.on_stop()


def _handled_by_the_thread(number: int, frame: FrameType | None) -> None:
    """Do nothing: the main thread may be busy for seconds; see `StopRequest._watch`."""
