"""A link that delays, jitters and loses messages, in simulated time; equal seeds, equal losses."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from navrl.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class LinkSettings:
    """How bad the link between the robot and the node is; each way."""

    latency: float = 0.0  # s
    jitter: float = 0.0  # s, standard deviation; a message is never early, so only added
    loss: float = 0.0  # share of the messages
    skew: float = 0.0  # s by which the robot's clock is ahead of the node's

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        for name in ("latency", "jitter"):
            if not 0 <= getattr(self, name) <= 60:
                raise ConfigError(f"{name} is {getattr(self, name)} s; expected 0 to 60")
        if not 0 <= self.loss < 1:
            raise ConfigError(f"loss is {self.loss}; expected a share from 0 to below 1")
        if not abs(self.skew) <= 3600:
            raise ConfigError(f"skew is {self.skew} s; expected at most an hour")

    @property
    def perfect(self) -> bool:
        """Whether everything arrives at once."""
        return self.latency == 0 and self.jitter == 0 and self.loss == 0


class Link(Generic[T]):
    """One way of the link, for one kind of message."""

    def __init__(self, settings: LinkSettings, seed: int) -> None:
        self.settings = settings
        self._random = np.random.default_rng(seed)
        self._order = itertools.count()
        self._under_way: list[tuple[float, int, T]] = []
        self.lost = 0

    def send(self, item: T, now: float) -> None:
        """Put an item on its way."""
        lost, noise = self._random.random(), abs(self._random.standard_normal())
        if lost < self.settings.loss:
            self.lost += 1
            return
        arrival = now + self.settings.latency + self.settings.jitter * noise
        heapq.heappush(self._under_way, (arrival, next(self._order), item))

    def arrived(self, now: float) -> list[T]:
        """Return what has arrived by now, in the order of arrival."""
        items: list[T] = []
        while self._under_way and self._under_way[0][0] <= now + 1e-9:
            items.append(heapq.heappop(self._under_way)[2])
        return items

    def clear(self) -> None:
        """Forget what is under way."""
        self._under_way.clear()
