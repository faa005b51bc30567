"""What an observation is made of: named parts, each with a shape and a kind, packed in one row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from navrl.errors import ConfigError, nearest_name, shown

__all__ = ["KINDS", "ObservationLayout", "Part"]

KINDS = {
    "vector": "numbers without an order of their own, any shape",
    "image": "(channels, height, width) or (height, width, channels), values from 0 to 1",
    "scan": "(..., azimuths, beams): ranges around a circle, the last azimuth beside the first",
    "set": "(..., members, features): members in any order, absent ones all zero",
}


@dataclass(frozen=True)
class Part:
    """One named part of an observation.

    `low`, `high`, `unit` and `features` describe the last axis: one value for all of it, or one for
    each of its numbers. An empty unit means a pure number.

    >>> from navrl.observation import Part
    >>> Part("velocity", (3,), unit="m/s").size
    3
    """

    name: str
    shape: tuple[int, ...]
    kind: str = "vector"  # one of KINDS: which encoder a network gives it
    low: float | tuple[float, ...] = -math.inf  # no value is below; rounding included
    high: float | tuple[float, ...] = math.inf
    unit: str | tuple[str, ...] = ""
    features: tuple[str, ...] = ()  # names of the numbers on the last axis, where they have any
    scaled: bool = False  # of the order of one already; other parts are normalised in training

    def __post_init__(self) -> None:
        subject = f"observation part {shown(self.name)}"
        if self.kind not in KINDS:
            raise ConfigError(
                f"{subject} is of the kind {shown(self.kind)}; expected one of "
                f"{', '.join(KINDS)}.{nearest_name(self.kind, KINDS)}"
            )
        if not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise ConfigError(
                f"{subject} has the shape {shown(self.shape)}; expected positive whole numbers"
            )
        last = self.shape[-1] if self.shape else 1
        for name in ("low", "high", "unit", "features"):
            value = getattr(self, name)
            if isinstance(value, tuple) and value != () and len(value) != last:
                raise ConfigError(
                    f"{subject} has {len(value)} values of {name}; expected one, or {last} "
                    "as on the last axis"
                )
        self._check_bounds(subject)

    def _check_bounds(self, subject: str) -> None:
        low, high = np.asarray(self.low, float), np.asarray(self.high, float)
        if not ((low <= high) & (low < math.inf) & (high > -math.inf)).all():
            raise ConfigError(
                f"{subject} has bounds from {shown(self.low)} to {shown(self.high)}; expected the "
                "lowest value first"
            )

    @property
    def size(self) -> int:
        """Numbers in the part."""
        return math.prod(self.shape)

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the lowest and the highest value of every number, in the part's shape."""
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), self.shape)
            for bound in (self.low, self.high)
        )
        return low, high


@dataclass(frozen=True)
class ObservationLayout:
    """Named parts one after the other in a row of float32; what follows them is padding.

    >>> import torch
    >>> from navrl.observation import ObservationLayout, Part
    >>> layout = ObservationLayout((Part("position", (2,)), Part("velocity", (3,), unit="m/s")))
    >>> layout.split(torch.zeros(4, layout.width))["velocity"].shape
    torch.Size([4, 3])
    """

    parts: tuple[Part, ...]
    padding: int = 0

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"an observation has the parts {names}; expected distinct names")
        if self.padding < 0:
            raise ConfigError(
                f"an observation has {self.padding} numbers of padding; expected >= 0"
            )

    def __getitem__(self, name: str) -> Part:
        """Return the part of a name."""
        for part in self.parts:
            if part.name == name:
                return part
        names = [part.name for part in self.parts]
        raise KeyError(
            f"no observation part {shown(name)}; there are {', '.join(names)}."
            f"{nearest_name(name, names)}"
        )

    @cached_property
    def width(self) -> int:
        """Numbers in a row, padding included."""
        return sum(part.size for part in self.parts) + self.padding

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each part stands in a row."""
        slices, start = {}, 0
        for part in self.parts:
            slices[part.name] = slice(start, start + part.size)
            start += part.size
        return slices

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each part."""
        return {part.name: part.shape for part in self.parts}

    def leading(self, *names: str) -> ObservationLayout:
        """Return the layout of the named parts alone, which must be the first ones of a row.

        Its slices hold for the whole rows too: what follows the parts is not looked at.
        """
        found = tuple(part.name for part in self.parts[: len(names)])
        if found != names:
            raise ConfigError(
                f"an observation begins with {', '.join(found)}; expected {', '.join(names)}"
            )
        return ObservationLayout(self.parts[: len(names)])

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Return views into packed rows, (..., width), by name; nothing is copied."""
        return {
            part.name: rows[..., self.slices[part.name]].unflatten(-1, part.shape or (1,))
            for part in self.parts
        }

    def pack(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Write parts by name, (N, *shape) each, into rows, (N, width), and return the rows."""
        for part in self.parts:
            rows[:, self.slices[part.name]] = values[part.name].reshape(len(rows), -1)
        return rows

    def as_list(self) -> list[dict[str, Any]]:
        """Return the parts as plain values for files; a bound that is infinite is None."""
        return [{name: _plain(value) for name, value in vars(part).items()} for part in self.parts]

    @classmethod
    def from_list(
        cls, values: Iterable[Mapping[str, Any]], *, padding: int = 0
    ) -> ObservationLayout:
        """Return the layout of plain values that `as_list` made."""
        return cls(tuple(_part(value) for value in values), padding)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _part(values: Mapping[str, Any]) -> Part:
    """Return the part of plain values: lists are tuples, None is an infinite bound."""
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    for name, infinite in (("low", -math.inf), ("high", math.inf)):
        bound = found.get(name)
        if isinstance(bound, tuple):
            found[name] = tuple(infinite if each is None else each for each in bound)
        elif bound is None:
            found[name] = infinite
    return Part(**found)
