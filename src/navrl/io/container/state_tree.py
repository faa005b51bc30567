"""Nested state (dicts, lists, tensors, numbers, strings) as a JSON tree plus a list of arrays.

In the tree a JSON number, string, boolean, null or array stands for the Python value of the same
kind. Everything else is an object with a tag, such as `{"tuple": [1, 2]}` or `{"tensor": 7}`, where
7 counts the arrays. No pickle: reading a tree can build the types named here and nothing else.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from navrl.errors import UnsupportedStateError
from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.foreign_types import as_tagged
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE

__all__ = ["Leaf", "Packed", "check_json", "first_of_each", "pack_state"]

MAX_DEPTH = 100
_LONGEST_PLACE = 200  # characters of it that errors show
# larger integers are written as text: many JSON readers keep numbers in doubles
_JSON_EXACT = 1 << 53
_AS_IS = frozenset({str, bool, type(None)})
_DTYPES, _STRIDED = frozenset(NAME_OF_TORCH_DTYPE), torch.strided
# torch.nn.Buffer is of torch 2.5
_TENSOR_TYPES = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)}


# An array of a state: its name, the node of the tree that stands for it, and its value. A tensor is
# still live but an object of our own, so that no other code can change its shape or memory; a
# NumPy array is a copy, because nothing guards it.
Leaf = tuple[str, dict[str, Any], Any]


@dataclass
class Packed:
    """A state taken apart: a tree with copies of everything small, and its arrays.

    Dicts that `pack_state` was told to defer are missing until `complete` is called.
    """

    tree: Any
    leaves: list[Leaf]
    deferred: list[_Deferred] = field(default_factory=list)

    @property
    def values(self) -> list[Any]:
        """The tensors and arrays, in the order of the tree."""
        return [value for _, _, value in self.leaves]

    def names(self) -> list[str]:
        """Return a name for each value, such as `optimizer/state/[0]/exp_avg`; no two are the
        same.
        """
        return [name for name, _, _ in self.leaves]

    def complete(self) -> list[Leaf]:
        """Take the deferred dicts apart too, and return the leaves in them.

        Raises:
            UnsupportedStateError: one of them holds an object that cannot be stored.
        """
        found: list[Leaf] = []
        for deferred in reversed(self.deferred):
            leaves = deferred.pack()
            self.leaves[deferred.position : deferred.position] = leaves
            found += leaves
        self.deferred = []
        self._make_names_unique()
        return found

    def _make_names_unique(self) -> None:
        names = dict.fromkeys(self.names())
        if len(names) == len(self.leaves):
            return
        names.clear()
        for number, (base, node, value) in enumerate(self.leaves):
            name = base
            while name in names:  # the keys 0 and "[0]" of one dict
                name = f"{base}~{len(names)}"
            names[name] = None
            self.leaves[number] = (name, node, value)

    def arrays(self) -> list[Leaf]:
        """Return the leaves to store, tied tensors once, and number the arrays of the tree by
        them.
        """
        stored: list[Leaf] = []
        numbers: dict[int, int] = {}
        for number, first in enumerate(first_of_each(self.values)):
            leaf = self.leaves[number]
            if first == number:
                numbers[number] = len(stored)
                stored.append(leaf)
            node = leaf[1]
            node[next(iter(node))] = numbers[first]
        return stored


def first_of_each(values: Sequence[Any]) -> list[int]:
    """Return for each value the number of the first that is the same numbers in the same memory."""
    addresses = [value.data_ptr() for value in values if type(value) is torch.Tensor]
    if len(set(addresses)) == len(addresses):  # nothing is tied
        return list(range(len(values)))
    first: dict[Any, int] = {}
    return [first.setdefault(_identity(value), number) for number, value in enumerate(values)]


def _identity(value: Any) -> Any:
    """Return something that two tensors share when they are the same numbers in the same memory."""
    if type(value) is not torch.Tensor or not value.nbytes:
        return id(value)
    return (
        value.data_ptr(),
        value.dtype,
        value.shape,
        value.stride(),
        value.device,
        value.is_conj(),
        value.is_neg(),
    )


def pack_state(state: Any, deferred: frozenset[int] = frozenset()) -> Packed:
    """Return a state as a tree and its arrays.

    Args:
        state: dicts, lists, tensors, arrays, numbers, strings, in any nesting.
        deferred: the `id` of dicts that do not change for now, such as those of an optimiser. A
            dict of only such dicts is not walked before `Packed.complete`.

    Raises:
        UnsupportedStateError: the state holds an object that cannot be stored; the message names
            its place.
    """
    walk = _Walk(deferred)
    packed = Packed(_pack(state, walk, "", 0), walk.leaves, walk.deferred)
    if not packed.deferred:
        packed.complete()
    return packed


class _Walk:
    """What was found so far on the walk over a state."""

    def __init__(self, owned: frozenset[int] = frozenset()) -> None:
        self.owned = owned
        self.leaves: list[Leaf] = []
        self.deferred: list[_Deferred] = []

    def add_tensor(self, place: str, value: torch.Tensor) -> dict[str, Any]:
        """Add a tensor and return its node."""
        if value.dtype not in _DTYPES or value.layout is not _STRIDED or value.is_meta:
            raise _refused(
                place,
                f"a {value.layout} tensor of {value.dtype} on {value.device} cannot be stored; "
                "store a dense one",
            )
        node = {"tensor": len(self.leaves)}
        self.leaves.append((place or "state", node, value.detach()))
        return node

    def add(self, tag: str, place: str, value: Any) -> dict[str, Any]:
        """Add an array and return its node."""
        node = {tag: len(self.leaves)}
        self.leaves.append((place or "state", node, value))
        return node


@dataclass(frozen=True)
class _Deferred:
    """A dict that was left out of the walk: where it goes in the leaves, and its node."""

    position: int
    node: dict[str, Any]
    values: dict[Any, Any]
    place: str
    depth: int

    def pack(self) -> list[Leaf]:
        """Fill the node and return the leaves below it."""
        walk = _Walk()
        self.node["dict"] = _pack_pairs(self.values, walk, self.place, self.depth)
        return walk.leaves


def _refused(place: str, reason: str) -> UnsupportedStateError:
    shown = place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}..."
    return UnsupportedStateError(f"{shown or 'state'}: {reason}")


def _pack(value: Any, walk: _Walk, place: str, depth: int) -> Any:
    """Return the tree of a value."""
    kind = type(value)
    if kind in _TENSOR_TYPES:
        return walk.add_tensor(place, value)
    if kind in _AS_IS:
        return value
    if kind is int:
        return value if -_JSON_EXACT < value < _JSON_EXACT else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if depth > MAX_DEPTH:
        raise _refused(
            place, f"nested deeper than {MAX_DEPTH} levels; does the state contain itself?"
        )
    return _PACKERS.get(kind, _pack_foreign)(value, walk, place, depth + 1)


def _pack_array(value: Any, walk: _Walk, place: str, tag: str) -> Any:
    if value.dtype not in NAME_OF_NUMPY_DTYPE:
        raise _refused(
            place,
            f"a NumPy array of {value.dtype} cannot be stored; convert it to numbers in the "
            "machine's byte order",
        )
    return walk.add(tag, place, np.array(value, order="C", copy=True))


def _pack_foreign(value: Any, walk: _Walk, place: str, depth: int) -> Any:
    tagged = as_tagged(value)
    if tagged is None:
        raise _refused(place, _advice(value))
    return {tagged.tag: _pack(tagged.content, walk, place, depth), **tagged.extra}


def _pack_sequence(values: Any, walk: _Walk, place: str, depth: int) -> list[Any]:
    prefix = f"{place}/" if place else ""
    return [_pack(value, walk, f"{prefix}[{number}]", depth) for number, value in enumerate(values)]


def _pack_dict(value: dict[Any, Any], walk: _Walk, place: str, depth: int) -> Any:
    if walk.owned and value and walk.owned.issuperset(map(id, value.values())):
        node: dict[str, Any] = {"dict": []}
        walk.deferred.append(_Deferred(len(walk.leaves), node, value.copy(), place, depth))
        return node
    return {"dict": _pack_pairs(value, walk, place, depth)}


def _pack_pairs(values: Mapping[Any, Any], walk: _Walk, place: str, depth: int) -> list[Any]:
    prefix = f"{place}/" if place else ""
    pairs = []
    for key, value in values.items():
        if type(key) is str:
            name = prefix + key
        else:
            key = _pack(key, walk, f"{prefix}key", depth)
            name = prefix + (key if type(key) is str else f"[{key}]"[:80])
        kind = type(value)
        if kind is torch.Tensor:
            node = walk.add_tensor(name, value)
        elif kind in _AS_IS:
            node = value
        elif kind is dict and depth <= MAX_DEPTH:
            node = _pack_dict(value, walk, name, depth + 1)
        else:
            node = _pack(value, walk, name, depth)
        pairs.append([key, node])
    return pairs


def _pack_ordered(value: Any, walk: _Walk, place: str, depth: int) -> Any:
    node = {"ordered": _pack_pairs(value, walk, place, depth)}
    if vars(value):  # what a module's state_dict() says about versions
        node["attributes"] = _pack_pairs(vars(value), walk, place, depth)
    return node


_PACKERS: dict[type, Callable[[Any, _Walk, str, int], Any]] = {
    dict: _pack_dict,
    OrderedDict: _pack_ordered,
    list: _pack_sequence,
    tuple: lambda value, walk, place, depth: {"tuple": _pack_sequence(value, walk, place, depth)},
    torch.Size: lambda value, walk, place, depth: {"size": list(value)},
    np.ndarray: lambda value, walk, place, depth: _pack_array(value, walk, place, "ndarray"),
    bytes: lambda value, walk, place, depth: _pack_array(
        np.frombuffer(value, np.uint8), walk, place, "bytes"
    ),
    complex: lambda value, walk, place, depth: {
        "complex": _pack_sequence((value.real, value.imag), walk, place, depth)
    },
    **{
        dtype.type: lambda value, walk, place, depth: _pack_array(
            np.asarray(value), walk, place, "scalar"
        )
        for dtype in NAME_OF_NUMPY_DTYPE
    },
}


def _advice(value: Any) -> str:
    """Return why a value of this type cannot be stored, and what to store instead."""
    kind = type(value)
    advice = "store its state_dict(), numbers, strings or tensors instead"
    if hasattr(kind, "__dataclass_fields__"):
        advice = "a dataclass is code, not data: store dataclasses.asdict(it)"
    elif isinstance(value, (dict, list, tuple)):
        advice = (
            "a subclass would come back as something else: convert it to a plain "
            f"{kind.__mro__[-2].__name__}"
        )
    elif isinstance(value, torch.Tensor):
        advice = "store the plain tensor inside"
    return f"{kind.__module__}.{kind.__qualname__} cannot be stored; {advice}"


def check_json(value: Any, what: str) -> Any:
    """Return a copy of a value made of JSON types only.

    Raises:
        UnsupportedStateError: it holds something that JSON does not have.
    """
    if value == {}:
        return {}
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedStateError(f"{what} must be made of JSON values: {error}") from error
