"""Output that survives a closed terminal, a broken pipe and a full disk."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

__all__ = ["Output", "leave_terminal", "open_terminals", "surviving_output"]

STANDARD = (0, 1, 2)
# errors that may pass
TEMPORARY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN, errno.EINTR)


def open_terminals() -> list[int]:
    """Return the standard descriptors that are terminals; ask before the terminal is closed."""
    return [descriptor for descriptor in STANDARD if os.isatty(descriptor)]


def leave_terminal(terminals: Sequence[int]) -> bool:
    """Redirect descriptors to the null device; return whether output was among them."""
    for descriptor in terminals:
        _silence(descriptor)
    return bool({1, 2} & set(terminals))


def _silence(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, descriptor)
    os.close(null)


class Output:
    """A text stream whose writes never raise OSError: text that cannot be written is dropped.

    After a permanent error (closed terminal, broken pipe) the stream's descriptor is redirected to
    the null device; after a full disk the next write is tried again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop what is buffered."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _drop(self, error: OSError) -> None:
        """Discard the stream's buffer, which would raise the same error again at exit."""
        with suppress(OSError, ValueError):
            descriptor = self._stream.fileno()
            kept = os.dup(descriptor)
            try:
                _silence(descriptor)
                self._stream.flush()
                if error.errno in TEMPORARY:
                    os.dup2(kept, descriptor)
            finally:
                os.close(kept)


@contextmanager
def surviving_output() -> Iterator[Output]:
    """Yield standard output as an `Output`; flush both standard streams at the end."""
    output = Output(sys.stdout)
    try:
        yield output
    finally:
        output.flush()
        Output(sys.stderr).flush()
