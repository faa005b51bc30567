"""Paths, sets, defaultdicts, TensorDicts and OmegaConf nodes in a state, as a tag and plain values.

Each is restored as what it was. Where the library is not installed, a TensorDict or an OmegaConf
node becomes the plain dict or list inside it. Saving a state imports none of these libraries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

__all__ = ["FOREIGN_TAGS", "Tagged", "as_tagged", "restore"]

_FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (list, dict, set, tuple, int, float, bool, str)
}


@dataclass(frozen=True, eq=False)  # compared by identity, so that one can be a key of a dict
class Tagged:
    """A value as plain values under a tag; `extra` goes beside the tag as it is."""

    tag: str
    content: Any
    extra: Mapping[str, Any] = field(default_factory=dict)


def as_tagged(value: Any) -> Tagged | None:
    """Return a value of a foreign type as plain values; None for any other type."""
    kind = type(value)
    if isinstance(value, PurePath):
        return Tagged("path", str(value))
    if kind is set or kind is frozenset:
        return Tagged(kind.__name__, sorted(value, key=lambda one: (type(one).__name__, repr(one))))
    if kind is defaultdict:
        return _defaultdict(value)
    library, name = kind.__module__.partition(".")[0], kind.__name__
    if library == "omegaconf" and name in ("DictConfig", "ListConfig"):
        from omegaconf import OmegaConf

        return Tagged("config", OmegaConf.to_container(value, resolve=False))
    if library == "tensordict":
        return _tensordict(value, name)
    return None


def _defaultdict(value: defaultdict[Any, Any]) -> Tagged | None:
    if value.default_factory is None:
        return Tagged("defaultdict", dict(value), {"factory": None})
    name = getattr(value.default_factory, "__name__", "")
    if _FACTORIES.get(name) is not value.default_factory:
        return None  # code, not data
    return Tagged("defaultdict", dict(value), {"factory": name})


def _tensordict(value: Any, name: str) -> Tagged | None:
    if name == "TensorDict":
        extra: dict[str, Any] = {"batch_size": list(value.batch_size)}
        if any(value.names or ()):
            extra["names"] = list(value.names)
        return Tagged("tensordict", dict(value.items()), extra)
    if name == "NonTensorData":
        return Tagged("non_tensor", value.data, {"batch_size": list(value.batch_size)})
    if name == "NonTensorStack":
        from tensordict import NonTensorStack

        rows = value.tolist()
        if NonTensorStack.from_list(rows).batch_size == value.batch_size:
            return Tagged("non_tensor_stack", rows)
    return None


def _restore_config(content: Any, _: Mapping[str, Any]) -> Any:
    if not isinstance(content, dict | list):
        raise ValueError(f"a config holds {type(content).__name__}, expected a dict or a list")
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        return content
    try:
        return OmegaConf.create(content)
    except OmegaConfBaseException as error:
        raise ValueError(f"a config that OmegaConf refuses: {str(error)[:200]}") from error


def _restore_defaultdict(content: Any, node: Mapping[str, Any]) -> Any:
    factory = node["factory"]
    return defaultdict(None if factory is None else _FACTORIES[factory], content)


def _restore_tensordict(content: Any, node: Mapping[str, Any]) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"a TensorDict holds {type(content).__name__}, expected a dict")
    try:
        from tensordict import TensorDict
    except ImportError:
        return content
    try:
        return TensorDict(content, batch_size=node["batch_size"], names=node.get("names"))
    except RuntimeError as error:
        raise ValueError(f"a TensorDict of batch size {node['batch_size']}: {error}") from error


def _restore_non_tensor(content: Any, node: Mapping[str, Any]) -> Any:
    try:
        from tensordict import NonTensorData
    except ImportError:
        return content
    return NonTensorData(data=content, batch_size=node["batch_size"])


def _restore_non_tensor_stack(content: Any, _: Mapping[str, Any]) -> Any:
    try:
        from tensordict import NonTensorStack
    except ImportError:
        return content
    return NonTensorStack.from_list(content)


_RESTORERS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "path": lambda content, _: Path(content),
    "set": lambda content, _: set(content),
    "frozenset": lambda content, _: frozenset(content),
    "defaultdict": _restore_defaultdict,
    "config": _restore_config,
    "tensordict": _restore_tensordict,
    "non_tensor": _restore_non_tensor,
    "non_tensor_stack": _restore_non_tensor_stack,
}

FOREIGN_TAGS = frozenset(_RESTORERS)


def restore(tag: str, content: Any, node: Mapping[str, Any]) -> Any:
    """Return the value that `as_tagged` was called on; `node` holds what stands beside the tag.

    Raises:
        ValueError, TypeError, LookupError: the content is not what `as_tagged` makes.
    """
    return _RESTORERS[tag](content, node)
