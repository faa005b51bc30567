"""A quick copy of a nested state: containers and small values are copied, tensors only noted.

This is what a save costs the training thread, so nothing here is done one value at a time where a
whole dict can be asked at once: most dicts of a state hold nothing but tensors, or nothing but
numbers. The tree for the file is made from the copy, later and by another thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.foreign_types import as_tagged
from navrl.io.container.state_tree import (
    MAX_DEPTH,
    TENSOR_TYPES,
    Refused,
    check_array,
    check_tensor,
    name_place,
    refusal,
)
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE

__all__ = ["Captured", "capture_state"]

_IMMUTABLE = frozenset(
    {
        str,
        bool,
        int,
        float,
        complex,
        bytes,
        type(None),
        torch.Size,
        *(dtype.type for dtype in NAME_OF_NUMPY_DTYPE),
    }
)
_TENSORS = frozenset({torch.Tensor})
_DICTS = frozenset({dict})
_dtype_of = attrgetter("dtype")


@dataclass
class Captured:
    """A state that nothing can change any more but writes to its tensors, which are still live.

    The exception are dicts that the caller owns: until `settle` they are the live ones, and their
    tensors are not among the `tensors` yet.
    """

    state: Any = None
    # every one in the state, some perhaps more than once
    tensors: list[torch.Tensor] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)  # of the tensors
    owners: list[dict[Any, Any]] = field(default_factory=list)  # copies of dicts of owned dicts

    def settle(self) -> None:
        """Copy the owned dicts too, and note their tensors, behind the others.

        Raises:
            UnsupportedStateError: one of them holds an object that cannot be stored; the message
                names its place.
        """
        found = _Found([], [], frozenset())
        try:
            for owner in self.owners:
                _capture_dicts(owner, found, 0)
            self.owners = []
            self.addresses += _addresses(found.tensors)
            self.tensors += found.tensors
        except Refused as refused:
            raise name_place(refused, self.state) from None


class _Found(NamedTuple):
    """What was met so far, and the ids of the owned dicts."""

    tensors: list[torch.Tensor]
    owners: list[dict[Any, Any]]
    owned: frozenset[int]


def capture_state(state: Any, owned: frozenset[int] = frozenset()) -> Captured:
    """Return a copy of a state, its tensors excepted.

    Args:
        state: dicts, lists, tensors, arrays, numbers, strings, in any nesting.
        owned: the `id` of dicts, such as those of an optimiser, that nobody changes before they are
            settled. A dict of only such dicts is not looked into before.

    Raises:
        UnsupportedStateError: the state holds an object that cannot be stored; the message names
            its place.
    """
    found = _Found([], [], owned)
    try:
        return Captured(
            _capture(state, found, 0), found.tensors, _addresses(found.tensors), found.owners
        )
    except Refused as refused:
        raise name_place(refused, state) from None


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return where the tensors lie, and refuse those that cannot be stored.

    What has an address is dense and not imaginary, so that only the others (and empty ones) are
    looked at one by one.
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


def _capture(value: Any, found: _Found, depth: int) -> Any:
    kind = type(value)
    if kind is torch.Tensor:
        found.tensors.append(value)
        return value
    if kind in _IMMUTABLE:
        return value
    if depth > MAX_DEPTH:
        raise Refused(value, f"nested deeper than {MAX_DEPTH} levels; does the state hold itself?")
    if kind is dict or kind is OrderedDict:
        return _capture_dict(value, found, depth + 1)
    if kind is list or kind is tuple:
        if _IMMUTABLE.issuperset(map(type, value)):
            return value.copy() if kind is list else value
        return kind([_capture(one, found, depth + 1) for one in value])
    if kind in TENSOR_TYPES:
        # A parameter may be given other memory later (`p.data = ...`); its detached twin keeps what
        # it has now.
        found.tensors.append(value.detach())
        return found.tensors[-1]
    if kind is np.ndarray:
        check_array(value)
        # nothing guards it from being written to later
        return np.array(value, order="C", copy=True)
    if (tagged := as_tagged(value)) is not None:
        return replace(tagged, content=_capture(tagged.content, found, depth + 1))
    raise Refused(value, refusal(value))


def _capture_dict(value: Any, found: _Found, depth: int) -> Any:
    copy = value.copy()
    if not _IMMUTABLE.issuperset(map(type, copy)):
        copy = type(value)((_capture(key, found, depth), inner) for key, inner in value.items())
    kinds = set(map(type, copy.values()))
    if kinds == _TENSORS:
        found.tensors.extend(copy.values())
    elif kinds == _DICTS:
        if found.owned.issuperset(map(id, copy.values())):
            found.owners.append(copy)
        else:
            _capture_dicts(copy, found, depth)
    elif not kinds <= _IMMUTABLE:
        for key, inner in copy.items():
            if type(inner) not in _IMMUTABLE:
                copy[key] = _capture(inner, found, depth)
    if type(value) is OrderedDict and vars(
        value
    ):  # what a module's state_dict() says about versions
        vars(copy).update(_capture_dict(vars(value), found, depth))
    return copy


def _capture_dicts(outer: Any, found: _Found, depth: int) -> None:
    """Replace the dicts in a dict by copies: the states of all parameters, the versions of all
    modules.
    """
    copies = list(map(dict.copy, outer.values()))
    values = list(chain.from_iterable(map(dict.values, copies)))
    kinds = set(map(type, values))
    same = kinds == _TENSORS or kinds <= _IMMUTABLE
    if (
        not same
        or depth > MAX_DEPTH
        or not _IMMUTABLE.issuperset(map(type, chain.from_iterable(copies)))
    ):
        copies = [_capture(inner, found, depth) for inner in outer.values()]
    elif kinds == _TENSORS:
        found.tensors.extend(values)
    outer.update(zip(outer, copies, strict=True))
