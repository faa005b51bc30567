"""The arrays of a rollout by name: nested dicts or TensorDicts, and the keys that users write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from navrl.errors import RolloutError, nearest_name

__all__ = ["Key", "array_names", "is_tensordict", "map_arrays", "plain_rollout", "resolve_key"]

Key = str | tuple[str, ...]
_SHOWN = 20  # keys in an error message


def is_tensordict(data: Any) -> bool:
    """Return whether this is a TensorDict, without importing tensordict.

    There is none before its package is imported.
    """
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and tensordict.is_tensor_collection(data)


def plain_rollout(data: Any) -> tuple[Any, list[Any] | None]:
    """Return a TensorDict as nested dicts, with path and batch dimensions of every one in it.

    A dict is returned as it is, with None.
    """
    if not is_tensordict(data):
        if not isinstance(data, dict):
            raise RolloutError(
                f"a rollout is a {type(data).__name__}; expected a TensorDict, or a dict of arrays "
                "and dicts"
            )
        return data, None
    tensordict, nested = sys.modules["tensordict"], list[Any]()
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
            # memory-mapped tensors are of a subclass
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


def map_arrays(function: Callable[[Any], Any], data: Any) -> Any:
    """Return nested dicts with the function applied to every array."""
    if isinstance(data, dict):
        return {key: map_arrays(function, part) for key, part in data.items()}
    return function(data)


def resolve_key(key: Key, known: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the path of a key: a tuple is a path, `a/b` too, and a unique last part is enough.

    Raises:
        RolloutError: there is no such key; the message names the nearest.
    """
    parts = tuple(key.split("/")) if isinstance(key, str) else tuple(key)
    ends = [path for path in known if path[-len(parts) :] == parts]
    for candidate in ((key,), parts, *(ends if len(ends) == 1 else ())):
        if candidate in known:
            return candidate
    names, name = ["/".join(path) for path in known], "/".join(map(str, parts))
    near = nearest_name(name, [*names, *(path[-1] for path in known)])
    listed = ", ".join(f"{one:.80}" for one in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise RolloutError(
        f"{'more than one key ends with' if ends else 'no key'} {name!r:.200}; there are "
        f"{listed}{more}.{near:.200}"
    )
