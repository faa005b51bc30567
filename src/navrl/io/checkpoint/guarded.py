"""The tensors that registered optimisers own: only their steps write to them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import torch

__all__ = ["Guarded"]

_bytes_of = attrgetter("nbytes")


class Guarded:
    """The parameters and the state of optimisers, at the moment of a save."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._states = list(
            chain.from_iterable(optimizer.state.values() for optimizer in optimizers)
        )
        # the same dicts that `optimizer.state_dict()` returns
        self.dicts = frozenset(map(id, self._states))

    def numbers(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> list[int]:
        """Return the numbers of the tensors that the optimisers own."""
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        parameters = list(chain.from_iterable(group["params"] for group in groups))
        owned = _at(parameters, range(len(tensors)), tensors, addresses)
        left = sorted(set(range(len(tensors))).difference(owned))
        if not left:
            return owned
        # A custom optimiser may have a state that is no dict: copied in the call.
        values = chain.from_iterable(
            state.values() for state in self._states if isinstance(state, dict)
        )
        moments = [value for value in values if type(value) is torch.Tensor]
        return owned + _at(moments, left, tensors, addresses)


def _at(
    known: Sequence[torch.Tensor],
    numbers: Sequence[int],
    tensors: Sequence[torch.Tensor],
    addresses: Sequence[int],
) -> list[int]:
    """Return those of the numbers whose tensors lie where a known one does."""
    bytes_at = dict(zip(map(torch.Tensor.data_ptr, known), map(_bytes_of, known), strict=True))
    return [
        number for number in numbers if bytes_at.get(addresses[number]) == tensors[number].nbytes
    ]
