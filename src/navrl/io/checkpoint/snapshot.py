"""Consistent copies of live tensors, taken without stopping training.

A snapshot knows at once which tensors to copy. Those that only a registered optimiser writes to are
copied later, by a thread, while the next forward and backward pass run; the optimiser's next step
waits for the copy should it still be under way. All others are copied before the snapshot is handed
out. Tensors count their in-place writes: one that was written to before its copy was complete is
found out, and such a snapshot is never stored.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from navrl.errors import CheckpointError
from navrl.io.checkpoint.capture import Captured
from navrl.io.container.codecs import Bytes
from navrl.io.container.container_writer import ArraySource
from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.state_tree import Packed, pack_state
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE, tensor_bytes

__all__ = ["ArenaPool", "Guarded", "Snapshot", "live_sources"]

_ALIGNMENT = 64
_bytes_of = attrgetter("nbytes")
_version_of = attrgetter("_version")


class ArenaPool:
    """Memory for copies, kept between saves: the first touch of fresh memory costs more than the
    copy itself.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._events: list[threading.Event] = []
        self._lock = threading.Lock()
        self.progress = threading.Condition()  # notified when anything was copied

    def take_event(self) -> threading.Event:
        """Return an event that is not set; to make one takes longer than most of what a save does
        in the call.
        """
        try:
            event = self._events.pop()
        except IndexError:
            return threading.Event()
        event.clear()
        return event

    def give_event_back(self, event: threading.Event) -> None:
        """Keep an event. It stays set until it is taken again, for the sake of those who still look
        at it.
        """
        self._events.append(event)

    def take(self, size: int, *, pinned: bool) -> torch.Tensor:
        """Return a flat buffer of at least `size` bytes."""
        with self._lock:
            for number, memory in enumerate(self._free):
                if memory.nbytes >= size and (not pinned or memory.is_pinned()):
                    return self._free.pop(number)
            if self._free:
                self._free.pop()  # too small for what is saved now: never again of use
        if pinned:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        # NumPy asks for huge pages, torch does not
        return torch.from_numpy(np.empty(size, np.uint8))

    def give_back(self, memory: torch.Tensor) -> None:
        """Keep a buffer for the next snapshot."""
        with self._lock:
            self._free.append(memory)


class Guarded:
    """The tensors that optimisers own, parameters and their state: nobody else writes to them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._states = list(
            chain.from_iterable(optimizer.state.values() for optimizer in optimizers)
        )
        # the very dicts that `optimizer.state_dict()` gives out
        self.dicts = frozenset(map(id, self._states))

    def strangers(self, captured: Captured) -> list[int]:
        """Return the numbers of the tensors that are not guarded; those of owned dicts, which are
        not settled yet, are.
        """
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        parameters = list(chain.from_iterable(group["params"] for group in groups))
        strangers = _elsewhere(range(len(captured.tensors)), captured, parameters)
        if not strangers:
            return []
        # A state that is no dict is a custom optimiser's own affair: copied in the call.
        values = chain.from_iterable(
            state.values() for state in self._states if isinstance(state, dict)
        )
        return _elsewhere(
            strangers, captured, [value for value in values if type(value) is torch.Tensor]
        )


def _elsewhere(
    numbers: Sequence[int], captured: Captured, known: Sequence[torch.Tensor]
) -> list[int]:
    """Return those of the numbers whose tensors do not lie where a known one does."""
    bytes_at = dict(zip(map(torch.Tensor.data_ptr, known), map(_bytes_of, known), strict=True))
    addresses, tensors = captured.addresses, captured.tensors
    return [
        number for number in numbers if bytes_at.get(addresses[number]) != tensors[number].nbytes
    ]


class Snapshot:
    """The arrays of one save on their way into an arena; `copied` is set when training may write
    again.
    """

    def __init__(self, captured: Captured, pool: ArenaPool, guarded: Guarded) -> None:
        self.copied = pool.take_event()
        self.failure: BaseException | None = None
        self._captured = captured
        self._progress = pool.progress
        self._holders = 1
        self._pool = pool
        self._memory: torch.Tensor | None = None
        self._sizes: list[int] = []  # of each tensor
        self._offsets: list[int] = []  # of each tensor in the arena
        self._same: dict[int, int] = {}  # tensors that lie where an earlier one lies
        self._missing: set[int] = set()  # tensors that are not in the arena yet
        self._twins: dict[int, torch.Tensor] = {}
        self._versions = _versions(captured.tensors)
        uses_cuda = torch.cuda.is_initialized() and (
            captured.owners or any(tensor.is_cuda for tensor in captured.tensors)
        )
        self._stream = _after_current_work() if uses_cuda else None
        self._immediate = guarded.strangers(captured)
        if self._immediate:
            tensors = captured.tensors
            self._twins = {
                id(tensors[number]): tensors[number].detach() for number in self._immediate
            }
            self._take_memory()
            self._copy(self._immediate)

    @property
    def size(self) -> int:
        """The bytes of all tensors, once the snapshot is prepared."""
        return sum(self._sizes)

    @cached_property
    def packed(self) -> Packed:
        """The tree of the state and its values; made in the background."""
        packed = pack_state(self._captured.state)
        # Whatever was done to an object since, its twin is as it was.
        packed.values = [self._twins.get(id(value), value) for value in packed.values]
        return packed

    def _take_memory(self) -> None:
        """Find memory for all tensors, those of owned dicts included."""
        tensors, known = self._captured.tensors, len(self._versions)
        self._captured.settle()
        self._versions += _versions(tensors[known:])
        if self._stream is not None and not any(tensor.is_cuda for tensor in tensors):
            self._stream = None
        self._sizes = list(map(_bytes_of, tensors))
        padded = ((size + _ALIGNMENT - 1) & -_ALIGNMENT for size in self._sizes)
        *self._offsets, total = accumulate(padded, initial=0)
        self._memory = self._pool.take(total, pinned=self._stream is not None)

    def prepare(self) -> None:
        """Find memory for what was deferred; `sources` may be asked for from then on."""
        try:
            if self._memory is None:
                self._take_memory()
            self._missing = set(range(len(self._sizes))).difference(self._immediate)
            self._same = self._find_same()
        except BaseException as error:
            self._end(error)

    def _find_same(self) -> dict[int, int]:
        """Return which tensors have the very bytes of another, and of which: they are copied
        once.
        """
        first: dict[tuple[int, int], int] = {}
        same = {}
        for number, place in enumerate(zip(self._captured.addresses, self._sizes, strict=True)):
            if first.setdefault(place, number) != number and place[1]:
                same[number] = first[place]
        tensors = self._captured.tensors
        return {
            one: other
            for one, other in same.items()
            if _is_plain(tensors[one]) and _is_plain(tensors[other])
        }

    def finish_copy(self) -> None:
        """Copy what was deferred, let training go on, and note whether anybody wrote in between."""
        if self.copied.is_set():
            return  # there was no memory for it
        try:
            deferred = sorted(self._missing)
            self._copy([number for number in deferred if number not in self._same])
            tensors, addresses = self._captured.tensors, self._captured.addresses
            versions = _versions(tensors)
            for number in deferred:
                if (tensors[number].data_ptr(), versions[number]) != (
                    addresses[number],
                    self._versions[number],
                ):
                    raise CheckpointError(
                        f"{self._name_of(number)}: written to while it was being copied, not by "
                        "a step of a "
                        "registered optimiser; nothing was stored. Call saver.barrier() before "
                        "such a write"
                    )
            self._end(None)
        except BaseException as error:
            self._end(error)

    def _name_of(self, number: int) -> str:
        values, names = self.packed.values, self.packed.names()
        tensor = self._captured.tensors[number]
        tensor = self._twins.get(id(tensor), tensor)
        return next(
            (name for value, name in zip(values, names, strict=True) if value is tensor), "a tensor"
        )

    def _end(self, failure: BaseException | None) -> None:
        with self._progress:
            self.failure = self.failure or failure
            self.copied.set()
            self._progress.notify_all()

    def abandon(self, error: BaseException) -> None:
        """Let nobody wait for a copy that will never be made."""
        if not self.copied.is_set():
            self._end(error)

    def check(self) -> None:
        """Return when everything is copied; raise if the copy cannot be trusted."""
        self.copied.wait()
        if self.failure is not None:
            raise self.failure

    def _wait_for(self, number: int) -> None:
        """Return when one tensor is in the arena, so that the disk can start before the last one
        is.
        """
        with self._progress:
            self._progress.wait_for(lambda: number not in self._missing or self.copied.is_set())
        if self.failure is not None:
            raise self.failure

    def _copy(self, numbers: Sequence[int]) -> None:
        start = self._taken.data_ptr()
        for number in numbers:
            tensor = self._captured.tensors[number]
            if not _is_plain(tensor):
                self._copy_by_torch(tensor, self._bytes(number))
            else:
                # Lets other threads run, starts no threads of its own, and knows no element types.
                ctypes.memmove(
                    start + self._offsets[number], tensor.data_ptr(), self._sizes[number]
                )
            if tensor.is_cpu and number in self._missing:
                with self._progress:
                    self._missing.discard(number)
                    self._progress.notify_all()
        if self._stream is not None:
            self._stream.synchronize()

    def _copy_by_torch(self, value: torch.Tensor, region: torch.Tensor) -> None:
        value = value.detach()
        target = region.view(value.dtype).view(value.shape)
        if self._stream is None or value.device != self._stream.device:
            target.copy_(value)
            return
        with torch.cuda.stream(self._stream):
            target.copy_(value, non_blocking=True)
            # its memory must not be reused before the copy has run
            value.record_stream(self._stream)

    @property
    def _taken(self) -> torch.Tensor:
        if self._memory is None:
            raise CheckpointError("a snapshot was used before its memory was found")
        return self._memory

    def _bytes(self, number: int) -> torch.Tensor:
        start = self._offsets[number]
        return self._taken[start : start + self._sizes[number]]

    def sources(self) -> list[ArraySource]:
        """Return the arrays to be written; some may still be on their way into the arena, and say
        when they are not.
        """
        if self.failure is not None:
            raise self.failure
        tensors = self._captured.tensors
        numbers = {
            id(self._twins.get(id(tensor), tensor)): number for number, tensor in enumerate(tensors)
        }
        places = {key: self._same.get(number, number) for key, number in numbers.items()}
        distinct = self.packed.distinct()
        sources = array_sources(
            self.packed,
            distinct,
            lambda value: (
                self._bytes(places[id(value)]).numpy()
                if type(value) is torch.Tensor
                else _flat(value)
            ),
        )
        waits = [places.get(id(self.packed.values[number])) for number in distinct]
        return [
            source if number is None else replace(source, ready=partial(self._wait_for, number))
            for number, source in zip(waits, sources, strict=True)
        ]

    def keep(self) -> None:
        """Hold on to the memory: it then takes one more `release` to give it back."""
        self._holders += 1

    def release(self) -> None:
        """Give the memory back, if nobody else holds on to it; the sources are invalid from then
        on.
        """
        self.copied.wait()  # a write may fail while the copy is still under way
        self._holders -= 1
        if self._holders:
            return
        self._captured, self._twins = Captured(), {}
        self.__dict__.pop("packed", None)
        if self._memory is not None:
            self._pool.give_back(self._memory)
        self._pool.give_event_back(self.copied)


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return how often each tensor was written to; torch does not count for those of its inference
    mode.
    """
    try:
        return list(map(_version_of, tensors))
    except RuntimeError:
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether the bytes of a tensor lie in main memory as they are to be stored."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _after_current_work() -> Any:
    """Return a stream that starts when the work queued so far is done: the tensors then hold what
    the caller sees.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def live_sources(packed: Packed) -> list[ArraySource]:
    """Return the arrays of a state as they are, without a copy where they lie contiguous in main
    memory.
    """
    return array_sources(
        packed,
        packed.distinct(),
        lambda value: tensor_bytes(value) if type(value) is torch.Tensor else _flat(value),
    )


def array_sources(
    packed: Packed, numbers: Sequence[int], bytes_of: Callable[[Any], Bytes]
) -> list[ArraySource]:
    """Return the values of these numbers as named arrays."""
    names = packed.names()
    sources = []
    for number in numbers:
        value = packed.values[number]
        known = NAME_OF_TORCH_DTYPE if type(value) is torch.Tensor else NAME_OF_NUMPY_DTYPE
        sources.append(
            ArraySource(names[number], known[value.dtype], tuple(value.shape), bytes_of(value))
        )
    return sources


def _flat(array: np.ndarray[Any, Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)
