"""What an environment takes as actions: numbers within bounds, any numbers, or one of a few."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from navrl.errors import ConfigError

__all__ = ["ActionSpace", "Box", "Discrete", "action_space_from", "as_mapping"]


@dataclass(frozen=True)
class Box:
    """Numbers, each from its `low` to its `high`; with infinite bounds, any numbers.

    >>> from navrl.rl.action_space import Box
    >>> Box.of(3, -2.0, 2.0).high
    (2.0, 2.0, 2.0)
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(
                f"an action space has {len(self.low)} lower and {len(self.high)} upper bounds; "
                "expected as many of each, and at least one"
            )
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ConfigError(
                f"an action space goes from {self.low} to {self.high}; expected each lower bound "
                "below its upper one"
            )

    @classmethod
    def of(cls, size: int, low: float = -1.0, high: float = 1.0) -> Box:
        """Return a box of equal bounds."""
        return cls((float(low),) * size, (float(high),) * size)

    @classmethod
    def unbounded(cls, size: int) -> Box:
        """Return a box of any numbers."""
        return cls.of(size, -math.inf, math.inf)

    @property
    def size(self) -> int:
        """Numbers of an action."""
        return len(self.low)

    @property
    def bounded(self) -> bool:
        """Whether all bounds are finite."""
        return all(math.isfinite(bound) for bound in (*self.low, *self.high))


@dataclass(frozen=True)
class Discrete:
    """One of `count` choices, 0 to count - 1.

    >>> from navrl.rl.action_space import Discrete
    >>> Discrete(4).count
    4
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ConfigError(f"an action space has {self.count} choices; expected at least 2")

    @property
    def size(self) -> int:
        """Numbers of an action."""
        return 1


ActionSpace = Box | Discrete


def as_mapping(space: ActionSpace) -> dict[str, Any]:
    """Return an action space as plain values, for files.

    >>> from navrl.rl.action_space import Discrete, as_mapping
    >>> as_mapping(Discrete(4))
    {'count': 4}
    """
    if isinstance(space, Discrete):
        return {"count": space.count}
    return {"low": list(space.low), "high": list(space.high)}


def action_space_from(values: Mapping[str, Any]) -> ActionSpace:
    """Return the action space of plain values that `as_mapping` made.

    Raises:
        ConfigError: they are not such values.

    >>> from navrl.rl.action_space import Box, action_space_from, as_mapping
    >>> action_space_from(as_mapping(Box.of(2))) == Box.of(2)
    True
    """
    if set(values) == {"count"} and isinstance(values["count"], int):
        return Discrete(values["count"])
    if set(values) == {"low", "high"} and all(_are_numbers(values[name]) for name in values):
        return Box(tuple(values["low"]), tuple(values["high"]))
    raise ConfigError(f"an action space is {dict(values)!r:.100}; expected count, or low and high")


def _are_numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and all(isinstance(value, int | float) for value in values)
