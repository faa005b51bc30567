"""The file of one rollout: which of its arrays have environments and steps, how they are stored,
and reading a part.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navrl.errors import ConfigError, ContainerError, RolloutError, nearest_name
from navrl.io.container.codecs import MAX_EXPANSION, ROW_BYTES, TIME_DELTA, Bytes, plan_rows
from navrl.io.container.container_writer import ArraySource
from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.index import Index
from navrl.io.container.sequence import sequence_of
from navrl.io.container.state_tree import check_json
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE
from navrl.io.rollouts.rounding import FLOATS, round_within

__all__ = [
    "Axes",
    "Key",
    "KeyInfo",
    "RolloutInfo",
    "find_axes",
    "plain_rollout",
    "rollout_info",
    "row_sources",
]

KIND = "rollout"
Key = str | tuple[str, ...]
_SAMPLE_BYTES = 1 << 16
MAX_ROWS = 1 << 28  # environments times steps
_FREE_ROWS = 1 << 20  # of which so many need no bytes in the file: arrays may be empty


@dataclass(frozen=True)
class Axes:
    """The two axes that a rollout's arrays have in common."""

    envs: int
    steps: int
    time_first: bool

    @property
    def lead(self) -> tuple[int, int]:
        """The first two lengths of an array, as the caller has it."""
        return (self.steps, self.envs) if self.time_first else (self.envs, self.steps)


@dataclass(frozen=True)
class KeyInfo:
    """One array of a stored rollout."""

    shape: tuple[int, ...]  # as it was saved, and as it is loaded
    element: str
    by_rows: bool  # has environments and steps, so that a part can be read; others are read whole
    raw_bytes: int
    stored_bytes: int
    codec: str
    error_bound: float | None  # None: lossless


@dataclass(frozen=True)
class RolloutInfo:
    """What the index of a stored rollout tells."""

    path: Path
    iteration: int
    created: float  # by the clock, which may have been wrong: for people
    envs: int
    steps: int
    time_first: bool
    keys: Mapping[str, KeyInfo]  # by name: nested keys are joined by `/`
    metadata: Mapping[str, Any]
    raw_bytes: int
    stored_bytes: int
    sequence: int | None = None  # orders files; those of an older navrl have None and come first


def plain_rollout(data: Any) -> tuple[Any, list[Any] | None]:
    """Return a TensorDict as nested dicts, and the path and number of batch dimensions of every one
    in it; None for a dict.
    """
    tensordict = sys.modules.get("tensordict")  # nobody has a TensorDict without having loaded it
    if tensordict is None or not tensordict.is_tensor_collection(data):
        if not isinstance(data, dict):
            raise RolloutError(
                f"a rollout is a {type(data).__name__}; expected a TensorDict, or a dict of "
                "arrays and dicts"
            )
        return data, None
    nested: list[Any] = []
    return _plain(
        data.to_tensordict() if not hasattr(data, "items") else data, (), nested, tensordict
    ), nested


def _plain(data: Any, path: tuple[str, ...], nested: list[Any], tensordict: Any) -> dict[str, Any]:
    nested.append([list(path), len(data.batch_size)])
    plain = {}
    for key, value in data.items():
        if tensordict.is_non_tensor(value):
            value = value.data
        elif tensordict.is_tensor_collection(value):
            value = _plain(value, (*path, key), nested, tensordict)
        elif isinstance(value, torch.Tensor):
            # memory-mapped ones are of a class of their own
            value = value.detach().as_subclass(torch.Tensor)
        plain[key] = value
    return plain


def array_names(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array of nested dicts with its name, such as `observation/lidar`."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from array_names(value, f"{name}/")
        elif isinstance(value, torch.Tensor | np.ndarray):
            yield name, value


def find_axes(arrays: Mapping[str, Any], *, time_first: bool) -> Axes:
    """Return the axes of a rollout: the first two lengths that most of its arrays have.

    Raises:
        RolloutError: no array has two axes.
    """
    leads = Counter(tuple(array.shape[:2]) for array in arrays.values() if array.ndim >= 2)
    if not leads:
        raise RolloutError(
            f"a rollout of the arrays {', '.join(arrays) or '(none)'}: none has two axes; "
            "expected (environments, steps, ...), "
            "or (steps, environments, ...) with time_first=True"
        )
    first, second = leads.most_common(1)[0][0]
    if first * second > MAX_ROWS:
        raise RolloutError(
            f"a rollout of {first} x {second} steps; expected at most {MAX_ROWS} in all: save "
            "it in parts"
        )
    return Axes(second, first, True) if time_first else Axes(first, second, False)


def resolve_key(key: Key, known: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the path that a key means: a tuple is one, `a/b` is one, and the end of one is enough
    if only one ends so.

    Raises:
        RolloutError: there is no such key; the nearest is named.
    """
    parts = tuple(key.split("/")) if isinstance(key, str) else tuple(key)
    ends = [path for path in known if path[-len(parts) :] == parts]
    for candidate in ((key,), parts, *(ends if len(ends) == 1 else ())):
        if candidate in known:
            return candidate
    names, name = ["/".join(path) for path in known], "/".join(map(str, parts))
    near = nearest_name(name, [*names, *(path[-1] for path in known)])
    told = ", ".join(f"{one:.80}" for one in names[:20]) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )
    raise RolloutError(
        f"{'more than one key ends with' if ends else 'no key'} {name!r:.200}; there are "
        f"{told}.{near:.200}"
    )


def checked_bounds(bounds: Mapping[Key, float], arrays: Mapping[str, Any]) -> dict[str, float]:
    """Return the error bounds by the names of the arrays that they are for.

    Raises:
        RolloutError: there is no such array.
        ConfigError: it is not of floats, or the bound is not positive.
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


# Writing.


def rollout_document(
    plain: Any,
    tensordicts: list[Any] | None,
    iteration: int,
    *,
    time_first: bool,
    error_bounds: Mapping[Key, float],
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what the index of a rollout says; `complete_document` adds the arrays."""
    arrays = dict(array_names(plain))
    axes = find_axes(arrays, time_first=time_first)
    said = {
        "iteration": iteration,
        "envs": axes.envs,
        "steps": axes.steps,
        "time_first": axes.time_first,
        "error_bounds": checked_bounds(error_bounds, arrays),
        "tensordicts": tensordicts,
    }
    kept = check_json(dict(metadata), "metadata") if metadata else {}
    return {"kind": KIND, "created": time.time(), "metadata": kept, "rollout": said}


def complete_document(
    document: dict[str, Any], sources: Sequence[ArraySource], tree: Any
) -> list[ArraySource]:
    """Return the arrays as they are to be stored, and add them to the document."""
    said = document["rollout"]
    axes = Axes(said["envs"], said["steps"], said["time_first"])
    stored, said["rows"] = row_sources(sources, axes, said["error_bounds"])
    document["state"] = tree
    return stored


def row_sources(
    sources: Sequence[ArraySource], axes: Axes, bounds: Mapping[str, float]
) -> tuple[list[ArraySource], list[int]]:
    """Return the arrays as they are to be stored, and the numbers of those that have environments
    and steps.
    """
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
    """Cuts parts, as they lie with environments first, out of an array that has steps first."""

    source: ArraySource
    axes: Axes

    def __call__(self, where: slice) -> Bytes:
        row_bytes = self.source.data.size // (self.axes.envs * self.axes.steps)
        first = where.start // row_bytes
        # whole ones: a part may begin or end within a large one
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
    """Return the codec that stores a sample of the rows in the fewest bytes."""
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


# Reading.


def rollout_info(index: Index) -> RolloutInfo:
    """Return what an index says about a rollout.

    Raises:
        ContainerError: it is none of a rollout.
    """
    said, layout = _said(index), stored_layout(index)
    axes, by_rows = layout.axes, layout.by_rows
    keys = {}
    for number, entry in enumerate(index.arrays):
        turned = axes.time_first and number in by_rows
        keys[entry.name] = KeyInfo(
            (*axes.lead, *entry.shape[2:]) if turned else entry.shape,
            entry.element,
            number in by_rows,
            entry.size,
            entry.stored_bytes,
            entry.codec,
            said["error_bounds"].get(entry.name),
        )
    return RolloutInfo(
        index.path,
        said["iteration"],
        index.document["created"],
        axes.envs,
        axes.steps,
        axes.time_first,
        keys,
        index.document.get("metadata", {}),
        index.size,
        index.file_size,
        sequence_of(index.document),
    )


@dataclass(frozen=True)
class StoredLayout:
    """How a stored rollout is to be read."""

    axes: Axes
    by_rows: frozenset[int]  # numbers of the arrays that have these axes
    # of every TensorDict by its path; None: a dict was saved
    batch_dimensions: Mapping[tuple[str, ...], int] | None


def stored_layout(index: Index) -> StoredLayout:
    """Return the layout that an index names."""
    said = _said(index)
    axes = Axes(said["envs"], said["steps"], said["time_first"])
    try:
        nested = said.get("tensordicts")
        batches = (
            None
            if nested is None
            else {tuple(map(str, path)): int(dimensions) for path, dimensions in nested}
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ContainerError(
            f"{index.path}: 'tensordicts' of its TensorDicts cannot be read: {error!s:.200}"
        ) from error
    return StoredLayout(axes, frozenset(said["rows"]), batches)


def _said(index: Index) -> dict[str, Any]:
    """Return what a rollout's index says, checked as far as anything is done with it."""
    document = index.document
    said = document.get("rollout")
    if document.get("kind") != KIND or type(said) is not dict or "state" not in document:
        raise ContainerError(f"{index.path}: holds {document.get('kind')!r:.60}, not a rollout")
    for place, names in ((said, _KINDS), (document, {"created": float})):
        for name, kind in names.items():
            if type(place.get(name)) is not kind:
                raise ContainerError(
                    f"{index.path}: {name!r} is {place.get(name)!r:.60}, expected "
                    f"{_WORDS[kind]}; its "
                    "index is incomplete, or was not written by navrl"
                )
    _check_values(index, said)
    _check_axes(index, said)
    return said


_KINDS = {
    "iteration": int,
    "envs": int,
    "steps": int,
    "time_first": bool,
    "rows": list,
    "error_bounds": dict,
}
_WORDS = {
    int: "a whole number",
    float: "a number with a fraction",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _check_values(index: Index, said: dict[str, Any]) -> None:
    """Refuse values that nobody could show."""
    for name, bound in said["error_bounds"].items():
        if type(bound) is not float or not 0 < bound < math.inf:
            raise ContainerError(
                f"{index.path}: 'error_bounds' of {name!r:.60} is {bound!r:.60}, expected a "
                "positive number"
            )
    metadata = index.document.get("metadata", {})
    if type(metadata) is not dict:
        raise ContainerError(f"{index.path}: 'metadata' is {metadata!r:.60}, expected an object")


def _check_axes(index: Index, said: dict[str, Any]) -> None:
    """Refuse environments and steps that the arrays do not have, or that the file is too small
    for.
    """
    lead = (said["envs"], said["steps"])
    justified = min(MAX_ROWS, _FREE_ROWS + MAX_EXPANSION * index.file_size)
    if min(lead) < 0 or max(1, lead[0]) * max(1, lead[1]) > justified:
        raise ContainerError(
            f"{index.path}: claims 'envs' {lead[0]!r:.30} and 'steps' {lead[1]!r:.30}; expected "
            f"at most {justified} in all"
        )
    for number in said["rows"]:
        known = type(number) is int and 0 <= number < len(index.arrays)
        if not known or index.arrays[number].shape[:2] != lead:
            raise ContainerError(
                f"{index.path}: 'rows' names array {number!r:.30}, which does not have the {lead} "
                "environments and steps that it claims"
            )
