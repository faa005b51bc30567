"""Stops a training whose weights are not finite any more, before they are saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from navrl.rl.ppo import DivergedError


class DivergenceGuard:
    """Names the iteration in which learning diverged, and then refuses to have the state saved."""

    def __init__(self) -> None:
        self._error: DivergedError | None = None

    @contextmanager
    def iteration(self, number: int) -> Iterator[None]:
        """Put the iteration in front of the message of a DivergedError from this block."""
        try:
            yield
        except DivergedError as error:
            self._error = DivergedError(f"iteration {number}: {error}")
            raise self._error from error

    def refuse_diverged(self) -> None:
        """Raise the error of an iteration that diverged, if one did."""
        if self._error is not None:
            raise self._error


def named(**states: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of several state dicts by name: `network.lidar.0.weight`."""
    tensors = {
        f"{part}.{name}": value for part, state in states.items() for name, value in state.items()
    }
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def checkpoint_name(state: Mapping[str, Any]) -> str:
    """Return what messages call a checkpoint that is loaded."""
    return f"checkpoint of iteration {state['iteration']}"
