"""TensorDicts taken apart into what a frame store holds, and put together again.

Tensors go into the store under joined names (`next/observation`). The layout keeps what the store
has no place for: nested TensorDicts with their batch sizes, and which keys are non-tensor data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor

from navrl.errors import ReplayError, StateError
from navrl.io.rollouts.rollout_keys import Key

__all__ = ["Key", "Layout", "joined", "take_apart"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Batch sizes without the axis of the frames, of nested TensorDicts and of non-tensor data.

    The name of the outermost TensorDict is empty.
    """

    nodes: dict[str, Shape] = field(default_factory=dict)
    objects: dict[str, Shape] = field(default_factory=dict)

    def put_together(
        self,
        shape: Shape,
        tensors: Mapping[str, Any],
        objects: Mapping[str, Sequence[Any]],
        device: torch.device,
        whole: bool = True,
    ) -> TensorDict:
        """Return frames, in axes of some shape, as a TensorDict.

        It has all nested TensorDicts, or only those that a given tensor or object is in.
        """
        nested: dict[str, Any] = {}
        if whole:
            for name in self.nodes:
                _place(nested, name.split("/") if name else [])
        for name, tensor in tensors.items():
            *parents, last = name.split("/")
            flat = len(shape) == 1  # the usual batch: no need to make a view
            value = tensor if flat else tensor.reshape((*shape, *tensor.shape[1:]))
            _place(nested, parents)[last] = value.to(device)
        for name, values in objects.items():
            *parents, last = name.split("/")
            size = (*shape, *self.objects[name])
            _place(nested, parents)[last] = _non_tensor(_folded(values, shape), size)
        return self._tensordict("", nested, shape, device)

    def _tensordict(
        self, name: str, parts: Mapping[str, Any], shape: Shape, device: torch.device
    ) -> TensorDict:
        """Return nested parts as nested TensorDicts."""
        made = dict(parts)
        for key, part in parts.items():
            if isinstance(part, dict):
                inner = f"{name}/{key}" if name else key
                made[key] = self._tensordict(inner, part, shape, device)
        return TensorDict(made, batch_size=[*shape, *self.nodes.get(name, ())], device=device)

    def state(self) -> dict[str, dict[str, list[int]]]:
        """Return the layout as plain values."""
        return {
            "nodes": {name: [*size] for name, size in self.nodes.items()},
            "objects": {name: [*size] for name, size in self.objects.items()},
        }

    @classmethod
    def from_state(cls, state: Any) -> Layout:
        """Return the layout that `state` was called on.

        Raises:
            StateError: it is not one.
        """
        try:
            nodes = {str(name): _size(size) for name, size in state["nodes"].items()}
            objects = {str(name): _size(size) for name, size in state["objects"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            found = f"layout: {str(error)[:200]}"
            message = f"not the state of a CompressedStorage: {found}; nothing was loaded"
            raise StateError(message) from error
        return cls(nodes, objects)


@dataclass(frozen=True)
class Parts:
    """What a TensorDict was made of, by joined names."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    objects: dict[str, list[Any]] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)


def take_apart(data: TensorDictBase) -> Parts:
    """Return tensors and non-tensor data of a TensorDict (frames, ...), and the layout.

    Raises:
        ReplayError: a key holds something else, or frames of different shapes, or has a `/` in it.
    """
    parts = Parts()
    _walk(data, (), parts)
    return parts


def _walk(data: TensorDictBase, path: tuple[str, ...], parts: Parts) -> None:
    parts.layout.nodes[joined(path)] = tuple(data.batch_size[1:])
    for key in data.keys():  # noqa: SIM118 - iterating over a TensorDict gives its rows
        inner = (*path, key)
        name = joined(inner)
        try:
            value = data.get(key)
        except RuntimeError as error:  # a lazy stack of frames that differ
            message = f"key {name!r} cannot be stacked; expected frames of one shape"
            raise ReplayError(message) from error
        if isinstance(value, torch.Tensor):
            parts.tensors[name] = value
        elif is_non_tensor(value):
            parts.layout.objects[name] = tuple(value.batch_size[1:])
            parts.objects[name] = _plain_rows(value)
        elif isinstance(value, TensorDictBase):
            _walk(value, inner, parts)
        else:
            raise ReplayError(
                f"key {name!r} is {type(value).__name__}; a CompressedStorage holds tensors, "
                "nested TensorDicts and non-tensor data: call to_tensordict() on it"
            )


def joined(key: Any) -> str:
    """Return a key of a TensorDict as a name of a FrameStore.

    Raises:
        ReplayError: there is a `/` in it.
    """
    parts = (key,) if isinstance(key, str) else tuple(key)
    if any("/" in part for part in parts):
        raise ReplayError(f"key {key!r}: '/' stands between nested names; rename the key")
    return "/".join(parts)


def _place(nested: dict[str, Any], parents: Sequence[str]) -> dict[str, Any]:
    """Return the dict at some place of nested dicts; it is made if it is not there."""
    for parent in parents:
        nested = nested.setdefault(parent, {})
    return nested


def _folded(values: Sequence[Any], shape: Shape) -> Any:
    """Return a row of values as lists in lists of a shape; a single value without axes."""
    if not shape:
        return values[0]
    if len(shape) == 1:
        return list(values)
    step = len(values) // shape[0] if shape[0] else 0
    return [_folded(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def _plain_rows(value: Any) -> list[Any]:
    """Return the rows of non-tensor data as lists in lists, with `{"value": ...}` for one value."""
    if isinstance(value, NonTensorData):
        return [{"value": value.data}] * len(value)
    rows = value.unbind(0)
    stacked = isinstance(rows[0], NonTensorStack) if rows else False
    return [_plain_rows(row) if stacked else {"value": row.data} for row in rows]


def _non_tensor(values: Any, shape: Shape) -> Any:
    """Return plain rows as TensorDicts hold them."""
    if isinstance(values, dict):
        return NonTensorData(values["value"], batch_size=shape)
    if 0 in shape:
        return NonTensorData(None, batch_size=shape)
    return NonTensorStack(*(_non_tensor(value, shape[1:]) for value in values))


def _size(size: Any) -> Shape:
    if not all(type(length) is int and length >= 0 for length in size):
        raise ValueError(f"a batch size of {str(size)[:80]}")
    return tuple(size)
