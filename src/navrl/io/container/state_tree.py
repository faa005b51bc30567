"""Nested state (dicts, lists, tensors, numbers, strings) as a JSON tree plus a list of arrays.

In the tree a JSON number, string, boolean, null or array stands for the Python value of the same
kind. Everything else is an object with a tag, such as `{"tuple": [1, 2]}` or `{"tensor": 7}`, where
7 counts the arrays. No pickle: reading a tree can build the types named here and nothing else.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from navrl.errors import ContainerError, UnsupportedStateError
from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.foreign_types import FOREIGN_TAGS, Tagged, as_tagged, restore
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE

__all__ = ["Packed", "pack_state", "unpack_state"]

MAX_DEPTH = 100
# larger integers are written as text: many JSON readers keep numbers in doubles
_JSON_EXACT = 1 << 53
TENSOR_TYPES = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}


@dataclass
class Packed:
    """A packed state: the tree holds copies of everything small, `values` the live tensors."""

    tree: Any = None
    values: list[Any] = field(default_factory=list)
    # the node of the tree that stands for each value
    tags: list[dict[str, Any]] = field(default_factory=list)

    def distinct(self) -> list[int]:
        """Return the numbers of the values to store, shared memory once.

        The tree then refers to arrays by their place in that list.
        """
        first: dict[Any, int] = {}
        numbers: list[int] = []
        for number, (value, tag) in enumerate(zip(self.values, self.tags, strict=True)):
            array = first.setdefault(_identity(value), len(numbers))
            if array == len(numbers):
                numbers.append(number)
            tag[next(iter(tag))] = array
        return numbers

    def names(self) -> list[str]:
        """Return a unique name for each value, such as `optimizer/state/[0]/exp_avg`."""
        places = {id(node): place for node, place in _tagged(self.tree, "")}
        names: dict[str, None] = {}
        for tag in self.tags:
            name = base = places[id(tag)] or "state"
            while name in names:  # the keys 0 and "[0]" of one dict
                name = f"{base}~{len(names)}"
            names[name] = None
        return list(names)


def _identity(value: Any) -> Any:
    """Return a key that two tensors share if they are the same numbers in the same memory."""
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


def _tagged(tree: Any, place: str, depth: int = 0) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the nodes of a tree that stand for arrays, with their places."""
    if depth > MAX_DEPTH + 2:
        raise ContainerError("invalid state tree: nested too deep")
    if type(tree) is list:
        for number, node in enumerate(tree):
            yield from _tagged(node, _join(place, number), depth + 1)
    elif type(tree) is dict:
        tag, content = next(iter(tree.items()), ("nothing", ()))
        if tag in ("dict", "ordered"):
            for key, value in content:
                yield from _tagged(key, _join(place, "key"), depth + 1)
                yield from _tagged(value, _join(place, key), depth + 1)
            if tag == "ordered":
                yield from _tagged({"dict": tree.get("attributes", [])}, place, depth)
        elif tag in _ARRAY_TAGS:
            yield tree, place
        elif tag == "tuple":
            yield from _tagged(content, place, depth)
        elif tag in FOREIGN_TAGS:
            yield from _tagged(content, place, depth + 1)


def _join(place: str, key: Any) -> str:
    text = key if type(key) is str else f"[{key}]"[:80]
    return f"{place}/{text}" if place else text


def pack_state(state: Any) -> Packed:
    """Return a state as a tree and its arrays.

    Raises:
        UnsupportedStateError: an object in the state cannot be stored; the message says where it
            is.
    """
    packed = Packed()
    try:
        packed.tree = _pack(state, packed, 0)
    except Refused as refused:
        raise name_place(refused, state) from None
    return packed


class Refused(Exception):
    """A value cannot be stored; where it is in the state is not known here."""

    def __init__(self, value: Any, reason: str) -> None:
        super().__init__(reason)
        self.value = value


def name_place(refused: Refused, state: Any) -> UnsupportedStateError:
    """Return an error that says where in the state the refused value is."""
    place = _locate(state, refused.value, "", 0) or "state"
    return UnsupportedStateError(f"{place}: {refused}")


def check_tensor(value: torch.Tensor) -> None:
    """Raise `Refused` unless a container can hold the tensor."""
    if value.dtype not in NAME_OF_TORCH_DTYPE or value.layout is not torch.strided or value.is_meta:
        raise Refused(
            value,
            f"a {value.layout} tensor of {value.dtype} on {value.device} cannot be stored; "
            "store a dense one",
        )


def check_array(value: Any) -> None:
    """Raise `Refused` unless a container can hold the NumPy array."""
    if value.dtype not in NAME_OF_NUMPY_DTYPE:
        raise Refused(
            value,
            f"a NumPy array of {value.dtype} cannot be stored; convert it to numbers in the "
            "machine's byte order",
        )


def _pack(value: Any, packed: Packed, depth: int) -> Any:
    """Return the tree of a value."""
    kind = type(value)
    if kind is torch.Tensor or kind in TENSOR_TYPES:
        check_tensor(value)
        node = {"tensor": len(packed.values)}
        # `p.data = ...` may give a parameter other memory later; its detached twin keeps this one
        packed.values.append(value if kind is torch.Tensor else value.detach())
        packed.tags.append(node)
        return node
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if -_JSON_EXACT < value < _JSON_EXACT else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    packer = _PACKERS.get(kind) or _pack_foreign
    if depth > MAX_DEPTH:
        raise Refused(
            value, f"nested deeper than {MAX_DEPTH} levels; does the state contain itself?"
        )
    return packer(value, packed, depth + 1)


def _pack_foreign(value: Any, packed: Packed, depth: int) -> Any:
    tagged = value if type(value) is Tagged else as_tagged(value)
    if tagged is None:
        raise Refused(value, refusal(value))
    return {tagged.tag: _pack(tagged.content, packed, depth), **tagged.extra}


def _pack_array(value: Any, packed: Packed, tag: str) -> Any:
    """Add a copy of a NumPy array: nothing prevents writes to it later."""
    check_array(value)
    node = {tag: len(packed.values)}
    packed.values.append(np.array(value, order="C", copy=True))
    packed.tags.append(node)
    return node


def _pack_sequence(values: Any, packed: Packed, depth: int) -> list[Any]:
    return [_pack(value, packed, depth) for value in values]


def _pack_pairs(values: Mapping[Any, Any], packed: Packed, depth: int) -> list[Any]:
    return [
        [key if type(key) is str else _pack(key, packed, depth), _pack(value, packed, depth)]
        for key, value in values.items()
    ]


def _pack_ordered(value: Any, packed: Packed, depth: int) -> Any:
    node = {"ordered": _pack_pairs(value, packed, depth)}
    if vars(value):  # versions, in a module's state_dict()
        node["attributes"] = _pack_pairs(vars(value), packed, depth)
    return node


_ARRAY_TAGS = ("tensor", "ndarray", "scalar", "bytes")

_PACKERS: dict[type, Callable[[Any, Packed, int], Any]] = {
    dict: lambda value, packed, depth: {"dict": _pack_pairs(value, packed, depth)},
    OrderedDict: _pack_ordered,
    list: _pack_sequence,
    tuple: lambda value, packed, depth: {"tuple": _pack_sequence(value, packed, depth)},
    torch.Size: lambda value, packed, depth: {"size": list(value)},
    np.ndarray: lambda value, packed, depth: _pack_array(value, packed, "ndarray"),
    bytes: lambda value, packed, depth: _pack_array(
        np.frombuffer(value, np.uint8), packed, "bytes"
    ),
    complex: lambda value, packed, depth: {
        "complex": _pack_sequence((value.real, value.imag), packed, depth)
    },
    **{
        dtype.type: lambda value, packed, depth: _pack_array(np.asarray(value), packed, "scalar")
        for dtype in NAME_OF_NUMPY_DTYPE
    },
}


def refusal(value: Any) -> str:
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


def _locate(state: Any, value: Any, place: str, depth: int) -> str | None:
    """Return where in a state an object is."""
    if state is value:
        return place
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, dict):
        pairs = state.items()
    elif isinstance(state, (list, tuple)):
        pairs = enumerate(state)
    elif (tagged := as_tagged(state)) is not None:
        return _locate(tagged.content, value, place, depth + 1)
    for key, inner in pairs if depth <= MAX_DEPTH else ():
        if key is value:
            return _join(place, "key")
        if (found := _locate(inner, value, _join(place, key), depth + 1)) is not None:
            return found
    return None


def unpack_state(tree: Any, tensors: Callable[[int], Any], arrays: Callable[[int], Any]) -> Any:
    """Return the state of a tree; `tensors(i)` and `arrays(i)` return the i-th array.

    Raises:
        ContainerError: the tree is not one that `pack_state` makes.
    """
    builders: dict[str, Callable[[int], Any]] = {
        "tensor": tensors,
        "ndarray": arrays,
        "scalar": lambda number: arrays(number)[()],
        # one copy, however often the tree refers to it
        "bytes": cache(lambda number: arrays(number).tobytes()),
    }
    with _reading_tree():
        return _unpack(tree, builders, 0)


def _unpack(tree: Any, arrays: Mapping[str, Callable[[int], Any]], depth: int) -> Any:
    if depth > MAX_DEPTH + 2:
        raise ContainerError("invalid state tree: nested too deep")

    def inner(node: Any) -> Any:
        return _unpack(node, arrays, depth + 1)

    if type(tree) is list:
        return [inner(node) for node in tree]
    if type(tree) is not dict:
        return tree
    tag, content = next(iter(tree.items()), ("nothing", ()))
    if tag in arrays:
        return arrays[tag](_whole(content))
    if tag in ("dict", "ordered"):
        pairs = [(key if type(key) is str else inner(key), inner(value)) for key, value in content]
        result = dict(pairs) if tag == "dict" else OrderedDict(pairs)
        if len(result) != len(pairs):
            raise ContainerError("invalid state tree: a key occurs twice")
        for name, value in tree.get("attributes", ()) if tag == "ordered" else ():
            setattr(result, _attribute(name), inner(value))
        return result
    builders: dict[str, Callable[[Any], Any]] = {
        "tuple": lambda nodes: tuple(inner(node) for node in nodes),
        "size": lambda nodes: torch.Size(_whole(node) for node in nodes),
        "complex": lambda nodes: complex(*(inner(node) for node in nodes)),
        "int": lambda text: int(text, 16),
        "float": float,
    }
    if tag in FOREIGN_TAGS:
        return restore(tag, inner(content), tree)
    if tag not in builders:
        raise ContainerError(f"invalid state tree: unknown tag {tag!r:.60}")
    return builders[tag](content)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ContainerError(f"invalid state tree: {value!r:.60} is not the number of an array")
    return value


def _attribute(name: Any) -> str:
    """Return the name of a data attribute, such as torch's `_metadata`.

    Raises:
        ContainerError: a file must not replace a method.
    """
    if type(name) is not str or hasattr(OrderedDict, name) or not name.isidentifier():
        raise ContainerError(f"invalid state tree: attribute {name!r:.60}")
    return name


def widened_arrays(tree: Any) -> dict[int, str]:
    """Return the arrays that a tree marks as rounded, and the types to widen them to."""
    with _reading_tree():
        nodes = (node for node, _ in _tagged(tree, "") if "widen" in node and "tensor" in node)
        return {_whole(node["tensor"]): f"{node['widen']!s:.60}" for node in nodes}


def array_numbers(tree: Any) -> set[int]:
    """Return the numbers of the arrays that a tree refers to."""
    with _reading_tree():
        return {_whole(next(iter(node.values()))) for node, _ in _tagged(tree, "")}


@contextmanager
def _reading_tree() -> Iterator[None]:
    """Turn errors about a tree that `pack_state` did not make into `ContainerError`."""
    try:
        yield
    except ContainerError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise ContainerError(f"invalid state tree: {reason}") from error


def check_json(value: Any, what: str) -> Any:
    """Return a copy of a value made of JSON types only.

    Raises:
        UnsupportedStateError: it holds something that JSON does not have.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedStateError(f"{what} must be made of JSON values: {error}") from error
