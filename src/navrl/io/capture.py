"""A quick copy of a nested state: containers and small values are copied, tensors only noted.

This is what a save costs the training thread, so nothing here is done one value at a time where a whole dict can be
asked at once: most dicts of a state hold nothing but tensors, or nothing but numbers. The tree for the file is made from
the copy, later and by another thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from navrl.io.element_types import NAME_OF_NUMPY_DTYPE, NAME_OF_TORCH_DTYPE
from navrl.io.state import MAX_DEPTH, TENSOR_TYPES, Refused, check_array, check_tensor, name_place, refusal

__all__ = ["Captured", "capture_state"]

_IMMUTABLE = frozenset(
    {str, bool, int, float, complex, bytes, type(None), torch.Size, *(dtype.type for dtype in NAME_OF_NUMPY_DTYPE)}
)
_TENSORS = frozenset({torch.Tensor})
_DICTS = frozenset({dict})
_dtype_of = attrgetter("dtype")


@dataclass
class Captured:
    """A state that nothing can change any more but writes to its tensors, which are still live."""

    state: Any = None
    tensors: list[torch.Tensor] = field(default_factory=list)  # every one in the state, some perhaps more than once
    addresses: list[int] = field(default_factory=list)  # of the tensors


def capture_state(state: Any) -> Captured:
    """Return a copy of a state, its tensors excepted.

    Raises:
        UnsupportedStateError: the state holds an object that cannot be stored; the message names its place.
    """
    captured = Captured()
    try:
        captured.state = _capture(state, captured.tensors, 0)
        captured.addresses = _addresses(captured.tensors)
    except Refused as refused:
        raise name_place(refused, state) from None
    return captured


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return where the tensors lie, and refuse those that cannot be stored.

    What has an address is dense and not imaginary, so that only the others (and empty ones) are looked at one by one.
    """
    addresses: list[int] = []
    try:
        addresses.extend(map(torch.Tensor.data_ptr, tensors))
    except (RuntimeError, NotImplementedError):
        addresses.append(0)
    if 0 in addresses or not NAME_OF_TORCH_DTYPE.keys() >= set(map(_dtype_of, tensors)):
        for tensor in tensors:
            check_tensor(tensor)
    return addresses


def _capture(value: Any, tensors: list[torch.Tensor], depth: int) -> Any:
    kind = type(value)
    if kind is torch.Tensor:
        tensors.append(value)
        return value
    if kind in _IMMUTABLE:
        return value
    if depth > MAX_DEPTH:
        raise Refused(value, f"nested deeper than {MAX_DEPTH} levels; does the state hold itself?")
    if kind is dict or kind is OrderedDict:
        return _capture_dict(value, tensors, depth + 1)
    if kind is list or kind is tuple:
        if _IMMUTABLE.issuperset(map(type, value)):
            return value.copy() if kind is list else value
        return kind([_capture(one, tensors, depth + 1) for one in value])
    if kind in TENSOR_TYPES:
        # A parameter may be given other memory later (`p.data = ...`); its detached twin keeps what it has now.
        tensors.append(value.detach())
        return tensors[-1]
    if kind is np.ndarray:
        check_array(value)
        return np.array(value, order="C", copy=True)  # nothing guards it from being written to later
    raise Refused(value, refusal(value))


def _capture_dict(value: Any, tensors: list[torch.Tensor], depth: int) -> Any:
    copy = value.copy()
    if not _IMMUTABLE.issuperset(map(type, copy)):
        copy = type(value)((_capture(key, tensors, depth), inner) for key, inner in value.items())
    kinds = set(map(type, copy.values()))
    if kinds == _TENSORS:
        tensors.extend(copy.values())
    elif kinds == _DICTS:
        _capture_dicts(copy, tensors, depth)
    elif not kinds <= _IMMUTABLE:
        for key, inner in copy.items():
            copy[key] = _capture(inner, tensors, depth)
    if type(value) is OrderedDict and vars(value):  # what a module's state_dict() says about versions
        vars(copy).update(_capture_dict(vars(value), tensors, depth))
    return copy


def _capture_dicts(outer: Any, tensors: list[torch.Tensor], depth: int) -> None:
    """Replace the dicts in a dict by copies: the states of all parameters, the versions of all modules."""
    copies = [inner.copy() for inner in outer.values()]
    kinds = set(map(type, chain.from_iterable(map(dict.values, copies))))
    same = kinds == _TENSORS or kinds <= _IMMUTABLE
    if not same or depth > MAX_DEPTH or not _IMMUTABLE.issuperset(map(type, chain.from_iterable(copies))):
        copies = [_capture(inner, tensors, depth) for inner in outer.values()]
    elif kinds == _TENSORS:
        tensors.extend(chain.from_iterable(map(dict.values, copies)))
    outer.update(zip(outer, copies, strict=True))
