"""The interface of a pool of workers, and what comes from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

__all__ = ["Arrived", "Event", "Finished", "Lost", "Workers"]


@dataclass(frozen=True)
class Finished:
    """A worker has finished a batch, which is on its way; it can start the next."""

    worker: int


@dataclass(frozen=True)
class Arrived:
    """A batch has arrived, not yet verified."""

    worker: int
    message: bytes


@dataclass(frozen=True)
class Lost:
    """A batch will not arrive."""

    worker: int
    reason: str
    # the worker's code raised an error; else its process or machine has died, or cannot be reached
    raised: bool = False
    finished: bool = False  # it was lost on its way, and the worker is well


Event = Finished | Arrived | Lost


class Workers(ABC):
    """Workers by number, each of which collects one batch at a time.

    One thread uses them, except for `publish`.
    """

    count: int

    @abstractmethod
    def publish(self, weights: bytes) -> None:
        """Have batches that are started from now on collected with these weights."""

    @abstractmethod
    def start(self, worker: int) -> None:
        """Start a batch and return at once; a worker that is not there yet starts it later."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """Return what has happened, in order; wait at most so long if nothing has."""

    @abstractmethod
    def restart(self, worker: int) -> None:
        """Replace a worker's process; what it was collecting is lost without an event."""

    def describe(self) -> str:
        """Return one sentence about where the workers are, for the display."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""
