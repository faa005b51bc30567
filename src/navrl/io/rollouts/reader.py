"""Read a stored rollout, or some keys, environments and steps of it; nothing else is decoded."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from navrl.errors import ContainerError, RolloutError
from navrl.io.container.codecs import Bytes
from navrl.io.container.container_reader import Container
from navrl.io.container.devices import usable_device
from navrl.io.container.element_types import NUMPY_DTYPES
from navrl.io.container.index import ArrayEntry
from navrl.io.container.tensor_types import TORCH_DTYPES
from navrl.io.container.tree_reader import array_numbers, unpack_state
from navrl.io.rollouts.rollout_keys import Key, resolve_key
from navrl.io.rollouts.rollout_layout import Axes, stored_layout

__all__ = ["RolloutReader"]

_WORTH_THREADS = 1 << 21  # below this many bytes, starting a thread takes longer than decoding


class RolloutReader:
    """An open rollout file: its index is read once for many reads."""

    def __init__(self, path: Path, container: Container | None = None) -> None:
        self.path = path
        self._container = Container(path) if container is None else container
        self._layout = stored_layout(self._container.index)
        self._by_rows = frozenset(
            self._container.index.arrays[number].name for number in self._layout.by_rows
        )
        self._tree = self._container.index.document["state"]
        self.is_still = self._container.is_still
        with _naming(path):
            if type(self._tree) is not dict or "dict" not in self._tree:
                raise ContainerError("invalid state tree: a rollout is a dict of arrays")
            self._numbers = sorted(array_numbers(self._tree))

    @property
    def dimensions(self) -> int:
        """How many batch dimensions there are: 2, unless a TensorDict has others."""
        batches = self._layout.batch_dimensions
        return 2 if batches is None else batches.get((), 2)

    @property
    def frames(self) -> int:
        """How many frames there are: environments times steps."""
        return self._layout.axes.envs * self._layout.axes.steps

    def read_frames(self, frames: NDArray[np.int64], device: str | torch.device) -> Any:
        """Return frames of the flattened rollout; arrays without frames are left out."""
        axes, arrays = self._layout.axes, self._container.index.arrays
        if axes.time_first:
            frames = frames % axes.envs * axes.steps + frames // axes.envs
        reading = _Reading(self._container, axes, self._by_rows, usable_device(device), None, None)
        reading.selection = replace(reading.selection, frames=frames, everything=False)
        with _naming(self.path):
            tree = _with_arrays(
                self._tree,
                {number for number in self._numbers if arrays[number].name in self._by_rows},
            )
            reading.read(sorted(array_numbers(tree)))
            state = unpack_state(tree, reading.tensor, reading.array)
        batches = self._layout.batch_dimensions
        return state if batches is None else _tensordict(state, (), batches, 1)

    def read(
        self, device: str | torch.device, envs: Any, keys: Sequence[Key] | Key | None, steps: Any
    ) -> Any:
        """Return the rollout or a part of it; see `RolloutStorage.load`."""
        axes, place = self._layout.axes, usable_device(device)
        with _naming(self.path):
            reading = _Reading(self._container, axes, self._by_rows, place, envs, steps)
            tree = self._tree if keys is None else _chosen(self._tree, keys)
            reading.read(self._numbers if keys is None else sorted(array_numbers(tree)))
            state = unpack_state(tree, reading.tensor, reading.array)
            batches = self._layout.batch_dimensions
            dropped = len(reading.selection.dropped)
            return state if batches is None else _tensordict(state, (), batches, dropped)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors."""
    try:
        yield
    except (ContainerError, RolloutError) as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from error


@dataclass(frozen=True)
class Selection:
    """The environments and steps that are asked for."""

    envs: NDArray[np.int64]
    steps: NDArray[np.int64]
    dropped: tuple[int, ...]  # axes selected by a single number: environments 0, steps 1
    everything: bool
    every_step: bool  # in order
    frames: NDArray[np.int64] | None = None  # rows in any order, instead of environments and steps

    @classmethod
    def of(cls, axes: Axes, envs: Any, steps: Any) -> Selection:
        """Return the selection of a number, a slice or a sequence of numbers each; None is all."""
        chosen = _numbers(envs, axes.envs, "environment"), _numbers(steps, axes.steps, "step")
        dropped = tuple(axis for axis, (_, single) in enumerate(chosen) if single)
        return cls(
            chosen[0][0], chosen[1][0], dropped, envs is None and steps is None, steps is None
        )

    def rows(self, axes: Axes) -> range | NDArray[np.int64]:
        """Return the numbers of the rows, environment by environment; a range if it is one."""
        if self.frames is not None:
            return self.frames
        if self.every_step and len(self.envs) == 1:
            start = int(self.envs[0]) * axes.steps
            return range(start, start + axes.steps)
        return (self.envs[:, None] * axes.steps + self.steps).reshape(-1)


def _numbers(which: Any, count: int, what: str) -> tuple[NDArray[np.int64], bool]:
    """Return which of `count` are meant, and whether a single number was asked for."""
    if which is None or isinstance(which, slice):
        return np.arange(count)[which or slice(None)], False
    try:
        single = [operator.index(which)]
    except TypeError:
        single = []
    chosen = np.asarray(single or which)
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and chosen.size):
        raise RolloutError(
            f"{what}s are {which!r:.60}; expected a whole number, a slice, or a list of whole "
            "numbers"
        )
    chosen = chosen.astype(np.int64)
    outside = chosen[(chosen < -count) | (chosen >= count)]
    if outside.size:
        raise RolloutError(
            f"{what} {outside[0]} is asked for; the rollout has {count}, counted from 0"
        )
    return chosen % count if count else chosen, bool(single)


class _Reading:
    """One read: the arrays that were read, by their numbers."""

    def __init__(
        self,
        container: Container,
        axes: Axes,
        by_rows: frozenset[str],
        device: torch.device,
        envs: Any,
        steps: Any,
    ) -> None:
        self._container, self._device, self._axes, self._by_rows = container, device, axes, by_rows
        self.selection = Selection.of(self._axes, envs, steps)
        self._outputs: dict[int, Bytes] = {}

    def read(self, numbers: Sequence[int]) -> None:
        """Read these arrays, or the selected rows of them."""
        arrays = self._container.index.arrays
        if any(number >= len(arrays) for number in numbers):
            raise ContainerError(
                f"invalid state tree: it names array {max(numbers)!r:.30} of {len(arrays)}"
            )
        entries = {number: arrays[number] for number in numbers}
        partly = {number for number, entry in entries.items() if entry.rows and self._is_cut(entry)}
        whole = [number for number in numbers if number not in partly]
        for number in whole:
            self._outputs[number] = np.empty(entries[number].size, np.uint8)
        if whole:
            few = sum(entries[number].size for number in whole) < _WORTH_THREADS
            outputs = [self._outputs[number] for number in whole]
            self._container.read(
                [entries[number] for number in whole], outputs, workers=1 if few else None
            )
        rows = self.selection.rows(self._axes) if partly else range(0)
        for number in partly:
            self._outputs[number] = self._rows(entries[number], rows)

    def _is_cut(self, entry: ArrayEntry) -> bool:
        return not self.selection.everything and entry.name in self._by_rows

    def _rows(self, entry: ArrayEntry, rows: range | NDArray[np.int64]) -> Bytes:
        output = np.empty(len(rows) * entry.rows.row_bytes if entry.rows else 0, np.uint8)
        self._container.read_rows(
            entry, rows, output, workers=1 if output.size < _WORTH_THREADS else None
        )
        return output

    def tensor(self, number: int) -> torch.Tensor:
        """Return an array as a tensor."""
        entry = self._container.index.arrays[number]
        dtype = TORCH_DTYPES.get(entry.element)
        if dtype is None:
            raise ContainerError(
                f"{entry.name} is {entry.element}; this torch lacks it: upgrade torch"
            )
        output = self._outputs[number]
        flat = torch.from_numpy(output).view(dtype) if output.size else torch.empty(0, dtype=dtype)
        return self._shaped(entry, flat, torch.Tensor.contiguous).to(self._device)

    def array(self, number: int) -> Any:
        """Return an array as a NumPy array."""
        entry = self._container.index.arrays[number]
        if entry.element not in NUMPY_DTYPES:
            raise ContainerError(f"{entry.name}: NumPy has no {entry.element}")
        return self._shaped(
            entry, self._outputs[number].view(NUMPY_DTYPES[entry.element]), np.ascontiguousarray
        )

    def _shaped(self, entry: ArrayEntry, flat: Any, contiguous: Any) -> Any:
        """Return flat numbers in the shape that was asked for."""
        chosen, inner = self.selection, entry.shape[2:]
        if entry.name not in self._by_rows:
            return flat.reshape(entry.shape)
        if entry.rows is None and self._is_cut(entry):  # too small to be stored by rows
            flat = flat.reshape(self._axes.envs * self._axes.steps, *inner)[
                np.asarray(chosen.rows(self._axes))
            ]
        if chosen.frames is not None:
            return flat.reshape(len(chosen.frames), *inner)
        shaped = flat.reshape(len(chosen.envs), len(chosen.steps), *inner)
        for axis in reversed(chosen.dropped):
            shaped = shaped.squeeze(axis)
        return (
            contiguous(shaped.swapaxes(0, 1))
            if self._axes.time_first and not chosen.dropped
            else shaped
        )


def _chosen(tree: Any, keys: Sequence[Key] | Key) -> Any:
    """Return the part of a tree that holds these keys.

    Raises:
        RolloutError: there is no such key; the message names the nearest.
    """
    known = list(_paths(tree, ()))
    paths = [resolve_key(key, known) for key in ([keys] if isinstance(keys, str | tuple) else keys)]

    def kept(node: Any, place: tuple[str, ...]) -> Any:
        if place in paths:
            return node
        below = [(name, inner, (*place, name)) for name, inner in _pairs(node)]
        return {
            "dict": [
                [name, kept(inner, at)]
                for name, inner, at in below
                if any(path[: len(at)] == at for path in paths)
            ]
        }

    return kept(tree, ())


def _with_arrays(tree: Any, numbers: set[int]) -> Any:
    """Return a tree of dicts with these arrays only."""
    pairs = [
        (name, _with_arrays(node, numbers) if _pairs(node) else node) for name, node in _pairs(tree)
    ]
    return {
        "dict": [[name, node] for name, node in pairs if _pairs(node) or _number(node) in numbers]
    }


def _number(node: Any) -> int | None:
    """Return the number of the array that a node stands for, or None."""
    return next(iter(array_numbers(node)), None) if type(node) is dict else None


def _paths(tree: Any, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, node in _pairs(tree):
        yield (*prefix, name)
        yield from _paths(node, (*prefix, name))


def _pairs(tree: Any) -> list[tuple[str, Any]]:
    """Return the keys and values of a dict's node in a tree; none for other nodes."""
    pairs = tree.get("dict", []) if type(tree) is dict else []
    if type(pairs) is not list or any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        raise ContainerError("invalid state tree: a dict that is not a list of pairs")
    return [(name, node) for name, node in pairs if type(name) is str]


def _tensordict(
    state: Any, path: tuple[str, ...], batches: Mapping[tuple[str, ...], int], dropped: int
) -> Any:
    """Return nested dicts as the TensorDicts they were, if tensordict is installed."""
    try:
        from tensordict import TensorDict
    except ImportError:
        return state
    values = {
        key: _tensordict(value, (*path, key), batches, dropped)
        if isinstance(value, dict)
        else value
        for key, value in state.items()
    }
    shapes = [tuple(value.shape) for value in values.values() if hasattr(value, "shape")]
    common = 0
    while shapes and all(
        len(shape) > common and shape[common] == shapes[0][common] for shape in shapes
    ):
        common += 1
    batch = shapes[0][: min(common, max(0, batches.get(path, 0) - dropped))] if shapes else ()
    try:
        return TensorDict(values, batch_size=batch)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ContainerError(f"'tensordicts' do not fit the arrays: {error!s:.200}") from error
