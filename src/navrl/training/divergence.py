"""Stops a training whose weights are no longer finite, before they are saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from navrl.rl.finite import DivergedError


class DivergenceGuard:
    """Names the iteration in which training diverged, and refuses to save its state."""

    def __init__(self) -> None:
        self._error: DivergedError | None = None

    @contextmanager
    def iteration(self, number: int) -> Iterator[None]:
        """Prefix the message of a DivergedError from this block with the iteration."""
        try:
            yield
        except DivergedError as error:
            self._error = DivergedError(f"iteration {number}: {error}")
            raise self._error from error

    def refuse_diverged(self) -> None:
        """Raise the DivergedError of an earlier iteration, if there was one."""
        if self._error is not None:
            raise self._error


def named(**states: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of several state dicts by name: `network.lidar.0.weight`."""
    tensors = {
        f"{part}.{name}": value for part, state in states.items() for name, value in state.items()
    }
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def checkpoint_name(state: Mapping[str, Any]) -> str:
    """Return the name of a loaded checkpoint for messages."""
    return f"checkpoint of iteration {state['iteration']}"
