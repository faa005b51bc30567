"""Consistent copies of live tensors, taken without stopping training.

A snapshot knows at once which tensors to copy. Those that only a registered optimiser writes to are copied later, by a
thread, while the next forward and backward pass run; the optimiser's next step waits for the copy should it still be
under way. All others are copied before the snapshot is handed out. Tensors count their in-place writes: one that was
written to before its copy was complete is found out, and such a snapshot is never stored.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from navrl.errors import CheckpointError
from navrl.io.codecs import Bytes
from navrl.io.container import ArraySource
from navrl.io.element_types import NAME_OF_NUMPY_DTYPE, NAME_OF_TORCH_DTYPE
from navrl.io.state import Packed

__all__ = ["ArenaPool", "Snapshot", "guarded_addresses", "live_sources", "tensor_bytes"]

_ALIGNMENT = 64


class ArenaPool:
    """Memory for copies, kept between saves: the first touch of fresh memory costs more than the copy itself."""

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, size: int, *, pinned: bool) -> torch.Tensor:
        """Return a flat buffer of at least `size` bytes."""
        with self._lock:
            for number, arena in enumerate(self._free):
                if arena.nbytes >= size and (not pinned or arena.is_pinned()):
                    return self._free.pop(number)
            if self._free:
                self._free.pop()  # too small for what is saved now: never again of use
        if pinned:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return torch.from_numpy(np.empty(size, np.uint8))  # NumPy asks for huge pages, torch does not

    def give_back(self, arena: torch.Tensor) -> None:
        """Keep a buffer for the next snapshot."""
        with self._lock:
            self._free.append(arena)


def guarded_addresses(optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, int]:
    """Return address and bytes of every tensor that the optimisers own: parameters and their state."""
    guarded: dict[int, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            guarded.update({parameter.data_ptr(): parameter.nbytes for parameter in group["params"]})
        for state in optimizer.state.values():
            if not isinstance(state, dict):
                continue  # a custom optimiser's own affair: copied in the call, like everything that is not guarded
            guarded.update({one.data_ptr(): one.nbytes for one in state.values() if type(one) is torch.Tensor})
    return guarded


class Snapshot:
    """The arrays of one save on their way into an arena; `copied` is set when training may write again."""

    def __init__(self, packed: Packed, pool: ArenaPool, guarded: dict[int, int]) -> None:
        self.packed = packed
        self.copied = threading.Event()
        self.failure: BaseException | None = None
        self._progress = threading.Condition()
        self._holders = 1
        self._pool = pool
        self._offsets: list[int] = []
        self._missing: set[int] = set()  # values that are not in the arena yet
        self._deferred: dict[int, tuple[int, int]] = {}  # address and version of values that are copied later
        immediate: list[int] = []
        size, pinned, cuda = 0, False, torch.cuda.is_initialized()
        for number, value in enumerate(packed.values):
            self._offsets.append(size)
            if type(value) is not torch.Tensor:
                continue  # a NumPy array: copied when it was packed
            nbytes, address = value.nbytes, value.data_ptr()
            if guarded.get(address) == nbytes:
                self._deferred[number] = address, value._version
            else:
                packed.values[number] = value.detach()  # whatever is done to the object later, this stays as it is
                immediate.append(number)
            pinned = cuda and (pinned or value.is_cuda)
            size += (nbytes + _ALIGNMENT - 1) & -_ALIGNMENT
        self._arena = pool.take(size, pinned=pinned)
        self._stream = _after_current_work() if pinned else None
        self._missing = set(self._deferred)
        self._copy(immediate)

    @cached_property
    def distinct(self) -> list[int]:
        """The numbers of the values to store; counted in the background."""
        return self.packed.distinct()

    def finish_copy(self) -> None:
        """Copy what was deferred, let training go on, and note whether anybody wrote in between."""
        try:
            self._copy([number for number in self.distinct if number in self._deferred])
            for number, before in self._deferred.items():
                value = self.packed.values[number]
                if (value.data_ptr(), value._version) != before:
                    raise CheckpointError(
                        f"{self.packed.names()[number]}: written to while it was being copied, not by a step of a "
                        "registered optimiser; nothing was stored. Call saver.barrier() before such a write"
                    )
            self._end(None)
        except BaseException as error:
            self._end(error)

    def _end(self, failure: BaseException | None) -> None:
        with self._progress:
            self.failure = failure
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
        """Return when one value is in the arena, so that the disk can start before the last one is."""
        with self._progress:
            self._progress.wait_for(lambda: number not in self._missing or self.copied.is_set())
        if self.failure is not None:
            raise self.failure

    def _copy(self, numbers: Sequence[int]) -> None:
        start = self._arena.data_ptr()
        for number in numbers:
            value = self.packed.values[number]
            if not value.is_cpu or not value.is_contiguous() or value.is_conj() or value.is_neg():
                self._copy_by_torch(value, self._bytes(number))
            else:
                # Lets other threads run, starts no threads of its own, and knows no element types.
                ctypes.memmove(start + self._offsets[number], value.data_ptr(), value.nbytes)
            if value.is_cpu and number in self._missing:
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
            value.record_stream(self._stream)  # its memory must not be reused before the copy has run

    def _bytes(self, number: int) -> torch.Tensor:
        start = self._offsets[number]
        return self._arena[start : start + self.packed.values[number].nbytes]

    def sources(self) -> list[ArraySource]:
        """Return the arrays to be written; some may still be on their way into the arena, and say when they are not."""
        sources = array_sources(
            self.packed,
            self.distinct,
            lambda number, value: self._bytes(number).numpy() if type(value) is torch.Tensor else _flat(value),
        )
        pairs = zip(self.distinct, sources, strict=True)
        return [replace(source, ready=partial(self._wait_for, number)) for number, source in pairs]

    def keep(self) -> None:
        """Hold on to the memory: it then takes one more `release` to give it back."""
        self._holders += 1

    def release(self) -> None:
        """Give the memory back, if nobody else holds on to it; the sources are invalid from then on."""
        self.copied.wait()  # a write may fail while the copy is still under way
        self._holders -= 1
        if self._holders:
            return
        self.packed = Packed()
        self._pool.give_back(self._arena)


def _after_current_work() -> Any:
    """Return a stream that starts when the work queued so far is done: the tensors then hold what the caller sees."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def live_sources(packed: Packed) -> list[ArraySource]:
    """Return the arrays of a state as they are, without a copy where they lie contiguous in main memory."""
    return array_sources(
        packed,
        packed.distinct(),
        lambda _, value: tensor_bytes(value) if type(value) is torch.Tensor else _flat(value),
    )


def array_sources(packed: Packed, numbers: Sequence[int], bytes_of: Callable[[int, Any], Bytes]) -> list[ArraySource]:
    """Return the values of these numbers as named arrays."""
    names = packed.names()
    sources = []
    for number in numbers:
        value = packed.values[number]
        known = NAME_OF_TORCH_DTYPE if type(value) is torch.Tensor else NAME_OF_NUMPY_DTYPE
        sources.append(ArraySource(names[number], known[value.dtype], tuple(value.shape), bytes_of(number, value)))
    return sources


def tensor_bytes(tensor: torch.Tensor) -> Bytes:
    """Return the bytes of a tensor, without a copy where it lies contiguous in main memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _flat(array: np.ndarray[Any, Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)
