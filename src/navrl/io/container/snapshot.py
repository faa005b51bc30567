"""Consistent copies of live tensors, made at once or while training goes on.

A snapshot knows at once which tensors to copy. Tensors that a guard keeps from being written may be
copied later, by another thread; all others are copied before the snapshot is returned. Tensors
count their in-place writes: a write before the copy was complete is detected, and such a snapshot
is never stored.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from navrl.errors import CheckpointError
from navrl.io.container.codecs import Bytes
from navrl.io.container.container_writer import ArraySource
from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.state_tree import Leaf, Packed, first_of_each
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE, tensor_bytes

__all__ = ["ArenaPool", "Snapshot", "live_sources"]

_ALIGNMENT = 64
_bytes_of = attrgetter("nbytes")
_version_of = attrgetter("_version")

# Takes tensors and their addresses; returns the indices of those that are not written to until the
# snapshot is complete.
Guard = Callable[[Sequence[torch.Tensor], Sequence[int]], Sequence[int]]


class ArenaPool:
    """Memory for copies, kept between saves: the first touch of fresh memory costs more than the
    copy itself.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, size: int, *, pinned: bool) -> torch.Tensor:
        """Return a flat buffer of at least `size` bytes."""
        with self._lock:
            for number, memory in enumerate(self._free):
                if memory.nbytes >= size and (not pinned or memory.is_pinned()):
                    return self._free.pop(number)
            if self._free:
                self._free.pop()  # too small for what is saved now: never of use again
        if pinned:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        # NumPy asks for huge pages, torch does not
        return torch.from_numpy(np.empty(size, np.uint8))

    def give_back(self, memory: torch.Tensor) -> None:
        """Keep a buffer for the next snapshot."""
        with self._lock:
            self._free.append(memory)


class Snapshot:
    """A copy of the arrays of a state; `finish` completes it, unless it is `complete` at once.

    Args:
        packed: the state.
        pool: memory for the copy.
        guard: finds the tensors that may be copied later, in `finish`, as may those of deferred
            dicts. None: everything is copied now.
    """

    def __init__(self, packed: Packed, pool: ArenaPool, guard: Guard | None = None) -> None:
        self.packed, self._pool = packed, pool
        self._holders = 1
        self._memory: torch.Tensor | None = None
        self._arena: Bytes = np.empty(0, np.uint8)
        self._nodes: list[dict[str, Any]] = []
        self._tensors: list[torch.Tensor] = []
        self._addresses: list[int] = []
        self._sizes: list[int] = []
        self._offsets: list[int] = []  # in the arena
        self._first: list[int] = []  # of each tensor: the first that it is tied to
        self._note(packed.leaves)
        self._later: list[int] = []
        self._versions: list[int] = []
        if guard is not None:
            self._later = list(guard(self._tensors, self._addresses))
            self._versions = _versions(self._tensors)
        self._stream = self._find_stream()
        if not packed.deferred or len(self._later) < len(self._tensors):
            self._reserve()
            later = set(self._later)
            self._copy([n for n in range(len(self._tensors)) if n not in later])

    def _note(self, leaves: Sequence[Leaf]) -> None:
        """Note the tensors among the leaves."""
        found = [leaf for leaf in leaves if type(leaf[2]) is torch.Tensor]
        tensors = [value for _, _, value in found]
        self._nodes += [node for _, node, _ in found]
        self._tensors += tensors
        self._addresses += map(torch.Tensor.data_ptr, tensors)
        self._sizes += map(_bytes_of, tensors)

    def _find_stream(self) -> Any:
        if not torch.cuda.is_initialized():
            return None
        uses_cuda = self.packed.deferred or any(tensor.is_cuda for tensor in self._tensors)
        return _after_current_work() if uses_cuda else None

    @property
    def complete(self) -> bool:
        """Whether everything is copied."""
        return self._memory is not None and not self._later

    @property
    def size(self) -> int:
        """The bytes of all tensors; before `finish`, without those of deferred dicts."""
        return sum(self._sizes)

    def _reserve(self) -> None:
        """Take the deferred dicts apart, and find memory for all tensors."""
        known = len(self._tensors)
        if self.packed.deferred:
            self._note(self.packed.complete())
            self._versions += _versions(self._tensors[known:])
            self._later += range(known, len(self._tensors))
        if self._stream is not None and not any(tensor.is_cuda for tensor in self._tensors):
            self._stream = None
        self._first = first_of_each(self._tensors)
        padded = [(size + _ALIGNMENT - 1) & -_ALIGNMENT for size in self._sizes]
        *self._offsets, total = accumulate(padded, initial=0)
        self._memory = self._pool.take(total, pinned=self._stream is not None)
        self._arena = self._memory.numpy()

    def finish(self) -> None:
        """Copy what was left for later.

        Raises:
            CheckpointError: a tensor was written to in between; the copy cannot be trusted.
            UnsupportedStateError: a deferred dict holds an object that cannot be stored.
        """
        if self._memory is None:
            self._reserve()
        self._copy(self._later)
        versions = _versions(self._tensors)
        for number in self._later:
            noted = self._addresses[number], self._versions[number]
            if (self._tensors[number].data_ptr(), versions[number]) != noted:
                raise CheckpointError(
                    f"{self._name_of(number)}: written to while it was being copied, not by a "
                    "step of a registered optimiser; nothing was stored. Call saver.barrier() "
                    "before such a write"
                )
        self._later = []

    def _name_of(self, number: int) -> str:
        wanted = self._nodes[number]
        return next(name for name, node, _ in self.packed.leaves if node is wanted)

    def _copy(self, numbers: Sequence[int]) -> None:
        start = self._arena.ctypes.data
        for number in numbers:
            tensor, size = self._tensors[number], self._sizes[number]
            if self._first[number] != number:
                continue
            if not is_plain(tensor):
                self._copy_by_torch(tensor, torch.from_numpy(self._bytes(number)))
                continue
            move = _move_small if size < _WORTH_RELEASE else ctypes.memmove
            move(start + self._offsets[number], self._addresses[number], size)
        if self._stream is not None:
            self._stream.synchronize()

    def _copy_by_torch(self, value: torch.Tensor, region: torch.Tensor) -> None:
        target = region.view(value.dtype).view(value.shape)
        if self._stream is None or value.device != self._stream.device:
            target.copy_(value)
            return
        with torch.cuda.stream(self._stream):
            target.copy_(value, non_blocking=True)
            # its memory must not be reused before the copy has run
            value.record_stream(self._stream)

    def _bytes(self, number: int) -> Bytes:
        start = self._offsets[number]
        return self._arena[start : start + self._sizes[number]]

    def sources(self) -> list[ArraySource]:
        """Return the arrays of a complete snapshot, and number them in the tree."""
        numbers = dict(zip(map(id, self._nodes), self._first, strict=True))
        sources = []
        for name, node, value in self.packed.arrays():
            number = numbers.get(id(node))
            data = _flat(value) if number is None else self._bytes(number)
            sources.append(_array_source(name, value, data))
        return sources

    def keep(self) -> None:
        """Keep the memory until one more `release`."""
        self._holders += 1

    def release(self) -> None:
        """Give the memory back, if this was the last holder; the arrays are invalid from then
        on.
        """
        self._holders -= 1
        if self._holders or self._memory is None:
            return
        self._pool.give_back(self._memory)
        self.packed, self._tensors, self._arena = Packed(None, []), [], np.empty(0, np.uint8)


# memmove starts no threads, as torch might, and needs no element types. Small ones keep the GIL:
# releasing it for a moment costs training more than the copy itself.
_WORTH_RELEASE = 1 << 17
_move_small = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return how often each tensor was written to; torch does not count in inference mode."""
    try:
        return list(map(_version_of, tensors))
    except RuntimeError:
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the bytes of a tensor lie in main memory as they are to be stored."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _after_current_work() -> Any:
    """Return a stream that starts when the work queued so far is done: the tensors then hold what
    the caller sees.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def live_sources(packed: Packed) -> list[ArraySource]:
    """Return the arrays of a state without a copy, where they lie contiguous in main memory."""
    return [
        _array_source(
            name, value, tensor_bytes(value) if type(value) is torch.Tensor else _flat(value)
        )
        for name, _, value in packed.arrays()
    ]


def _array_source(name: str, value: Any, data: Bytes) -> ArraySource:
    elements = NAME_OF_TORCH_DTYPE if type(value) is torch.Tensor else NAME_OF_NUMPY_DTYPE
    return ArraySource(name, elements[value.dtype], tuple(value.shape), data)


def _flat(array: np.ndarray[Any, Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)
