"""What the index of a stored rollout says, validated before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navrl.errors import ContainerError
from navrl.io.container.codecs import MAX_EXPANSION
from navrl.io.container.index import Index
from navrl.io.container.sequence import sequence_of

__all__ = ["Axes", "KeyInfo", "RolloutInfo", "StoredLayout", "rollout_info", "stored_layout"]

KIND = "rollout"
MAX_ROWS = 1 << 28  # environments times steps
# Arrays may be empty, so this many rows need no bytes in the file; more must be backed by bytes.
_FREE_ROWS = 1 << 20


@dataclass(frozen=True)
class Axes:
    """The two axes that a rollout's arrays have in common."""

    envs: int
    steps: int
    time_first: bool

    @property
    def lead(self) -> tuple[int, int]:
        """The first two lengths of an array, in the caller's order."""
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
    """What the index of a stored rollout says."""

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


def rollout_info(index: Index) -> RolloutInfo:
    """Return what an index says about a rollout.

    Raises:
        ContainerError: it is not the index of a rollout.
    """
    described, layout = _described(index), stored_layout(index)
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
            described["error_bounds"].get(entry.name),
        )
    return RolloutInfo(
        index.path,
        described["iteration"],
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
    """Return how a stored rollout is to be read."""
    described = _described(index)
    axes = Axes(described["envs"], described["steps"], described["time_first"])
    try:
        nested = described.get("tensordicts")
        batches = (
            None
            if nested is None
            else {tuple(map(str, path)): int(dimensions) for path, dimensions in nested}
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ContainerError(
            f"{index.path}: 'tensordicts' of its TensorDicts cannot be read: {error!s:.200}"
        ) from error
    return StoredLayout(axes, frozenset(described["rows"]), batches)


def _described(index: Index) -> dict[str, Any]:
    """Return the `rollout` object of an index, validated as far as it is used."""
    document = index.document
    described = document.get("rollout")
    if document.get("kind") != KIND or type(described) is not dict or "state" not in document:
        raise ContainerError(f"{index.path}: holds {document.get('kind')!r:.60}, not a rollout")
    for place, names in ((described, _KINDS), (document, {"created": float})):
        for name, kind in names.items():
            if type(place.get(name)) is not kind:
                raise ContainerError(
                    f"{index.path}: {name!r} is {place.get(name)!r:.60}, expected "
                    f"{_TYPE_NAMES[kind]}; its index is incomplete, or was not written by navrl"
                )
    _check_values(index, described)
    _check_axes(index, described)
    return described


_KINDS = {
    "iteration": int,
    "envs": int,
    "steps": int,
    "time_first": bool,
    "rows": list,
    "error_bounds": dict,
}
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number with a fraction",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _check_values(index: Index, described: dict[str, Any]) -> None:
    """Refuse error bounds and metadata of the wrong type."""
    for name, bound in described["error_bounds"].items():
        if type(bound) is not float or not 0 < bound < math.inf:
            raise ContainerError(
                f"{index.path}: 'error_bounds' of {name!r:.60} is {bound!r:.60}, expected a "
                "positive number"
            )
    metadata = index.document.get("metadata", {})
    if type(metadata) is not dict:
        raise ContainerError(f"{index.path}: 'metadata' is {metadata!r:.60}, expected an object")


def _check_axes(index: Index, described: dict[str, Any]) -> None:
    """Refuse axes that the arrays do not have, or that the file is too small for."""
    lead = (described["envs"], described["steps"])
    justified = min(MAX_ROWS, _FREE_ROWS + MAX_EXPANSION * index.file_size)
    if min(lead) < 0 or max(1, lead[0]) * max(1, lead[1]) > justified:
        raise ContainerError(
            f"{index.path}: claims 'envs' {lead[0]!r:.30} and 'steps' {lead[1]!r:.30}; expected "
            f"at most {justified} in all"
        )
    for number in described["rows"]:
        known = type(number) is int and 0 <= number < len(index.arrays)
        if not known or index.arrays[number].shape[:2] != lead:
            raise ContainerError(
                f"{index.path}: 'rows' names array {number!r:.30}, which does not have the {lead} "
                "environments and steps that it claims"
            )
