"""Refuse saved states that were not made by this package, or were damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from navrl.errors import ConfigError, ContainerError, ReplayError, StateError

__all__ = ["refusing_malformed"]

# what reading a state raises that holds other values than a state does
_MALFORMED = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    MemoryError,
    RuntimeError,
    ConfigError,
    ContainerError,
    ReplayError,
)


@contextmanager
def refusing_malformed(subject: str) -> Iterator[None]:
    """Turn what a malformed state raises into `StateError`; `subject` is whose state it is not."""
    try:
        yield
    except StateError:
        raise
    except _MALFORMED as error:
        raise StateError(
            f"not the state of {subject}: {type(error).__name__}: {error}; nothing was loaded"
        ) from error
