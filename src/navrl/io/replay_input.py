"""What comes into a replay store and leaves it: arrays and tensors as rows of whole numbers, indices; work in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from navrl.errors import ConfigError, ReplayError, ReplayIndexError
from navrl.io.element_types import NAME_OF_NUMPY_DTYPE, NAME_OF_TORCH_DTYPE, TORCH_DTYPES
from navrl.io.replay_codecs import Array, Kind
from navrl.io.threads import TaskThreads

__all__ = ["Workers", "as_indices", "as_tensor", "as_words", "check_count", "length_of", "told"]

WORTH_A_THREAD = 1 << 20  # bytes of a batch


class Workers:
    """Threads that share the rows of a batch among them; none is started before there is enough to do."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads: TaskThreads | None = None

    def split(self, work: Callable[[int, int], Any], rows: int, size: int) -> None:
        """Call `work` on ranges of the rows, which are `size` bytes."""
        parts = min(self.count, rows, size // WORTH_A_THREAD + 1)
        if parts < 2:
            work(0, rows)
            return
        if self._threads is None:
            self._threads = TaskThreads(self.count - 1, "navrl-replay")
        first, *ranges = pairwise([rows * part // parts for part in range(parts + 1)])
        waits = [self._threads.submit(work, *others) for others in ranges]
        work(*first)
        for wait in waits:
            wait.result()

    def __del__(self) -> None:
        if self._threads is not None:
            self._threads.close()


def as_words(key: str, value: Any) -> tuple[Kind, Array]:
    """Return the kind of a key's frames, and the frames as rows of whole numbers; a copy only where it has to be one.

    Raises:
        ReplayError: not an array or tensor, of an element type that cannot be stored, or without a first axis.
    """
    if isinstance(value, torch.Tensor):
        element = NAME_OF_TORCH_DTYPE.get(value.dtype)
        shape = tuple(value.shape)
    else:
        value = np.asarray(value)
        value = value.astype(value.dtype.newbyteorder("="), copy=False)
        element = NAME_OF_NUMPY_DTYPE.get(value.dtype)
        shape = value.shape
    if element is None:
        raise ReplayError(f"{key}: elements of type {value.dtype} cannot be stored; expected numbers or booleans")
    if not shape:
        raise ReplayError(f"{key}: found a single number, expected an array whose first axis counts the frames")
    kind = Kind(element, shape[1:])
    if not shape[0] or not kind.nbytes:
        return kind, np.zeros((shape[0], kind.features), f"u{kind.word}")
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(shape[0], -1)
        raw = flat.view(torch.uint8).numpy()
    else:
        raw = np.ascontiguousarray(value).reshape(shape[0], -1).view(np.uint8)
    return kind, raw.view(f"u{kind.word}")


def as_tensor(kind: Kind, words: Array) -> torch.Tensor:
    """Return rows of whole numbers as a tensor of the frames they stand for, in the same memory."""
    shape = (len(words), *kind.shape)
    if not words.size:
        return torch.empty(shape, dtype=TORCH_DTYPES[kind.element])
    return torch.from_numpy(words.view(np.uint8)).view(TORCH_DTYPES[kind.element]).view(shape)


def length_of(part: Mapping[str, Array]) -> int:
    """Return how many frames there are."""
    return len(next(iter(part.values())))


def told(kind: Kind | None) -> str:
    """Return what frames are, in words."""
    return "nothing" if kind is None else f"{kind.element} {kind.shape}"


def as_indices(indices: Any) -> Array:
    """Return indices as a row of int64."""
    if isinstance(indices, torch.Tensor):
        indices = indices.cpu().numpy()
    found = np.atleast_1d(np.asarray(indices))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ReplayIndexError(f"indices of shape {found.shape} and type {found.dtype}; expected a row of whole numbers")
    return np.ascontiguousarray(found, np.int64)


def check_count(name: str, value: Any, least: int, most: int) -> None:
    """Raise a ConfigError unless a value is a whole number within limits."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name}={value!r}: expected a whole number from {least} to {most}")
