"""Reading a state tree: the state it describes, and the arrays it refers to.

`state_tree` says what a tree is. Nothing here trusts a tree: it can come from any file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from navrl.errors import ContainerError
from navrl.io.container.foreign_types import FOREIGN_TAGS, restore
from navrl.io.container.state_tree import MAX_DEPTH

__all__ = ["array_numbers", "unpack_state", "widened_arrays"]

_ARRAY_TAGS = ("tensor", "ndarray", "scalar", "bytes")


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
        nodes = (node for node in _array_nodes(tree) if "widen" in node and "tensor" in node)
        return {_whole(node["tensor"]): f"{node['widen']!s:.60}" for node in nodes}


def array_numbers(tree: Any) -> set[int]:
    """Return the numbers of the arrays that a tree refers to."""
    with _reading_tree():
        return {_whole(next(iter(node.values()))) for node in _array_nodes(tree)}


def _array_nodes(tree: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a tree that stand for arrays."""
    if depth > MAX_DEPTH + 2:
        raise ContainerError("invalid state tree: nested too deep")
    inner: Iterable[Any] = ()
    if type(tree) is list:
        inner = tree
    elif type(tree) is dict:
        tag, content = next(iter(tree.items()), ("nothing", ()))
        if tag in _ARRAY_TAGS:
            yield tree
        elif tag in ("dict", "ordered"):
            attributes = tree.get("attributes", []) if tag == "ordered" else []
            inner = (node for pair in [*content, *attributes] for node in pair)
        elif tag == "tuple":
            inner = content
        elif tag in FOREIGN_TAGS:
            inner = (content,)
    for node in inner:
        yield from _array_nodes(node, depth + 1)


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
