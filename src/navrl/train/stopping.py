"""Ctrl+C and SIGTERM: the first asks training to stop after its iteration, a second Ctrl+C ends the process at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Notes the first signal while its block runs; `signal` is None until then.

    Checkpoints appear whole or not at all, so ending at once loses nothing that was saved.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.signal = number

    @property
    def exit_code(self) -> int:
        """What the shell is told: 0, or 128 and the signal."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
