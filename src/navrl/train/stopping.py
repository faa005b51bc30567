"""Ctrl+C and SIGTERM: the first asks training to stop after its iteration, a second Ctrl+C ends the process at once."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = "\x1b[?25h"


class StopRequest:
    """Notes the first signal while its block runs; `signal` is None until then.

    A second Ctrl+C is answered by a thread: Python's own handlers wait while the main thread waits for another process.
    Checkpoints appear whole or not at all, so ending at once loses nothing that was saved.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number

    @property
    def exit_code(self) -> int:
        """What the shell is told: 0, or 128 and the signal."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="navrl-signals", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._writes.close()  # ends the thread

    def _watch(self) -> None:
        """Count signals as the system delivers them, one byte each."""
        seen = 0
        with self._reads:
            while received := self._reads.recv(1):
                seen += received[0] in SIGNALS
                if seen > 1 and received[0] == signal.SIGINT:
                    if sys.stdout.isatty():
                        os.write(sys.stdout.fileno(), SHOW_CURSOR.encode())
                    os._exit(128 + signal.SIGINT)
