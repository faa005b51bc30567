"""Write a rollout: the document in its index, and its arrays as rows.

Which arrays have environments and steps is found from their shapes; each of those gets the row
codec that stores a sample of it in the fewest bytes.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from navrl.errors import ConfigError, RolloutError
from navrl.io.container.codecs import ROW_BYTES, TIME_DELTA, Bytes, plan_rows
from navrl.io.container.container_writer import ArraySource
from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.state_tree import check_json
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE
from navrl.io.rollouts.rollout_keys import Key, array_names, resolve_key
from navrl.io.rollouts.rollout_layout import KIND, MAX_ROWS, Axes
from navrl.io.rollouts.rounding import FLOATS, round_within

__all__ = ["complete_document", "rollout_document"]

_SAMPLE_BYTES = 1 << 16  # of an array, to choose its codec


def rollout_document(
    plain: Any,
    tensordicts: list[Any] | None,
    iteration: int,
    *,
    time_first: bool,
    error_bounds: Mapping[Key, float],
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the document of a rollout's index; `complete_document` adds the arrays."""
    arrays = dict(array_names(plain))
    axes = find_axes(arrays, time_first=time_first)
    described = {
        "iteration": iteration,
        "envs": axes.envs,
        "steps": axes.steps,
        "time_first": axes.time_first,
        "error_bounds": checked_bounds(error_bounds, arrays),
        "tensordicts": tensordicts,
    }
    kept = check_json(dict(metadata), "metadata") if metadata else {}
    return {"kind": KIND, "created": time.time(), "metadata": kept, "rollout": described}


def complete_document(
    document: dict[str, Any], sources: Sequence[ArraySource], tree: Any
) -> list[ArraySource]:
    """Return the arrays as they are to be stored, and add them to the document."""
    described = document["rollout"]
    axes = Axes(described["envs"], described["steps"], described["time_first"])
    stored, described["rows"] = row_sources(sources, axes, described["error_bounds"])
    document["state"] = tree
    return stored


def row_sources(
    sources: Sequence[ArraySource], axes: Axes, bounds: Mapping[str, float]
) -> tuple[list[ArraySource], list[int]]:
    """Return the arrays as they are to be stored, and the numbers of those stored by rows."""
    by_rows = [number for number, source in enumerate(sources) if source.shape[:2] == axes.lead]
    stored = list(sources)
    for number, source in enumerate(sources):
        bound = bounds.get(source.name)
        if number in by_rows:
            source = _turned(source, axes) if axes.time_first else source
        if bound is not None:
            source = replace(source, cut=_Rounded(source, bound))
        stored[number] = replace(source, codec=_best_codec(source)) if number in by_rows else source
    return stored, by_rows


def _turned(source: ArraySource, axes: Axes) -> ArraySource:
    """Return an array of (steps, environments, ...) as one of (environments, steps, ...)."""
    return replace(
        source, shape=(axes.envs, axes.steps, *source.shape[2:]), cut=_Turned(source, axes)
    )


@dataclass(frozen=True)
class _Turned:
    """Cuts parts of an array with environments first out of one that has steps first."""

    source: ArraySource
    axes: Axes

    def __call__(self, where: slice) -> Bytes:
        row_bytes = self.source.data.size // (self.axes.envs * self.axes.steps)
        first = where.start // row_bytes
        # whole rows: a part may begin or end within a large one
        rows = np.arange(first, -(-where.stop // row_bytes))
        places = rows % self.axes.steps * self.axes.envs + rows // self.axes.steps
        found = self.source.data.reshape(-1, row_bytes)[places].reshape(-1)
        return found[where.start - first * row_bytes : where.stop - first * row_bytes]


@dataclass(frozen=True)
class _Rounded:
    """Cuts parts out of an array and rounds them."""

    source: ArraySource
    bound: float

    def __call__(self, where: slice) -> Bytes:
        return round_within(self.source.part(where), self.source.element, self.bound)


def _best_codec(source: ArraySource) -> str | None:
    """Return the row codec that stores a sample in the fewest bytes; None without rows."""
    plan = plan_rows(source.shape, source.element)
    if plan is None:
        return None
    group_bytes = plan.rows.group * plan.rows.row_bytes
    groups = max(1, _SAMPLE_BYTES // group_bytes)
    start = source.data.size // group_bytes // 2 * group_bytes
    where = slice(start, min(start + groups * group_bytes, source.data.size))
    sample, rows = source.part(where), plan.rows.at(start)
    sizes = {}
    for codec in (TIME_DELTA, ROW_BYTES):
        buffers = codec.encode(sample, source.element, None, np.empty(0, np.uint8), rows)
        sizes[codec.name] = sum(memoryview(buffer).nbytes for buffer in buffers)
    return min(sizes, key=sizes.__getitem__)


def find_axes(arrays: Mapping[str, Any], *, time_first: bool) -> Axes:
    """Return the axes of a rollout: the first two lengths that most of its arrays have.

    Raises:
        RolloutError: no array has two axes.
    """
    leads = Counter(tuple(array.shape[:2]) for array in arrays.values() if array.ndim >= 2)
    if not leads:
        raise RolloutError(
            f"a rollout of the arrays {', '.join(arrays) or '(none)'}: none has two axes; "
            "expected (environments, steps, ...), or (steps, environments, ...) with "
            "time_first=True"
        )
    first, second = leads.most_common(1)[0][0]
    if first * second > MAX_ROWS:
        raise RolloutError(
            f"a rollout of {first} x {second} rows; expected at most {MAX_ROWS}: save it in parts"
        )
    return Axes(second, first, True) if time_first else Axes(first, second, False)


def checked_bounds(bounds: Mapping[Key, float], arrays: Mapping[str, Any]) -> dict[str, float]:
    """Return the error bounds by the names of their arrays.

    Raises:
        RolloutError: there is no such array.
        ConfigError: the array is not of floats, or the bound is not positive.
    """
    named = {}
    for key, bound in bounds.items():
        name = "/".join(resolve_key(key, [tuple(known.split("/")) for known in arrays]))
        known = (
            NAME_OF_TORCH_DTYPE if isinstance(arrays[name], torch.Tensor) else NAME_OF_NUMPY_DTYPE
        )
        if known.get(arrays[name].dtype) not in FLOATS:
            raise ConfigError(
                f"error_bounds names {name!r}, which is {arrays[name].dtype}; expected one of "
                f"{', '.join(FLOATS)}"
            )
        if not 0 < bound < math.inf:
            raise ConfigError(f"error_bounds of {name!r} is {bound}; expected a positive number")
        named[name] = float(bound)
    return named
