"""What to keep: one retention policy for checkpoints, rollouts and registered models.

Pure: it looks at descriptions of what is stored and returns what to prune. The callers remove it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from navrl.arguments import whole_number
from navrl.errors import ConfigError

__all__ = ["Item", "Retention", "rank"]

Stored = TypeVar("Stored")
Mode = Literal["max", "min"]


@dataclass(frozen=True)
class Item(Generic[Stored]):
    """One stored thing, as far as retention needs to know it."""

    stored: Stored  # what is returned for it: an entry, a path, a version
    order: Any  # sorts the items in the order in which they were saved
    step: int = 0  # what `keep_every` counts
    metrics: Mapping[str, Any] = field(default_factory=dict)
    pinned: bool = False  # an alias, a stage or a user needs it
    name: str | None = None  # what the `base` of another item refers to
    base: str | None = None  # the name of the item that this one is a difference to


@dataclass(frozen=True)
class Retention:
    """What to keep: whatever at least one rule keeps, what is pinned, and what those build on.

    Args:
        keep_last_n: keep the last n saved, whatever their steps; None keeps everything.
        keep_best: keep the best k by `metric`.
        metric: the name of a metric given to `save`.
        mode: whether `max` or `min` of the metric is best.
        keep_every: keep every step that is a multiple of this, for good; 0 keeps none.

    >>> from navrl.io import Retention
    >>> Retention(keep_last_n=3, keep_best=1, metric="success").mode
    'max'
    """

    keep_last_n: int | None = None
    keep_best: int = 0
    metric: str | None = None
    mode: Mode = "max"
    keep_every: int = 0

    def __post_init__(self) -> None:
        least = {"keep_last_n": 1, "keep_best": 0, "keep_every": 0}
        for name, smallest in least.items():
            if getattr(self, name) is not None:
                # frozen, so set through object: a count such as np.int64(3) is kept as an int
                object.__setattr__(self, name, whole_number(name, getattr(self, name), smallest))
        if self.keep_best and self.metric is None:
            raise ConfigError(
                f"keep_best is {self.keep_best}, but no metric says which are best; name one, such "
                "as metric='success'"
            )
        if self.mode not in ("max", "min"):
            raise ConfigError(f"mode is {self.mode!r}; expected 'max' or 'min'")

    def prunable(self, items: Iterable[Item[Stored]]) -> list[Stored]:
        """Return what no rule keeps, no pin holds and no kept item builds on, oldest first."""
        ordered = sorted(items, key=lambda item: item.order)
        if self.keep_last_n is None:
            return []
        kept = {id(item) for item in ordered[-self.keep_last_n :]}
        kept |= {id(item) for item in ordered if item.pinned}
        if self.metric is not None:
            kept |= {id(item) for item in rank(ordered, self.metric, self.mode)[: self.keep_best]}
        if self.keep_every:
            kept |= {id(item) for item in ordered if item.step % self.keep_every == 0}
        kept |= _bases(ordered, kept)
        return [item.stored for item in ordered if id(item) not in kept]


def _bases(items: Iterable[Item[Any]], kept: set[int]) -> set[int]:
    """Return the items that kept ones build on, directly or through others."""
    by_name = {item.name: item for item in items if item.name is not None}
    needed: set[int] = set()
    for item in items:
        base = item.base if id(item) in kept else None
        while base in by_name and id(by_name[base]) not in needed:
            needed.add(id(by_name[base]))
            base = by_name[base].base
    return needed


def rank(items: Iterable[Item[Stored]], metric: str, mode: Mode = "max") -> list[Item[Stored]]:
    """Return the items with a finite value of the metric: best first, of equals the newer first."""
    sign = 1.0 if mode == "max" else -1.0
    values = ((_finite(item.metrics.get(metric)), item) for item in items)
    having = [(sign * value, item) for value, item in values if value is not None]
    having.sort(key=lambda pair: (pair[0], pair[1].order), reverse=True)
    return [item for _, item in having]


def _finite(value: Any) -> float | None:
    """Return a metric as a float; None if it is no number, or one that has no rank."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
