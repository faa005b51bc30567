"""Frames in and out of a replay store: arrays and tensors as rows of integers, and indices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from navrl.arguments import whole_number
from navrl.errors import ReplayError, ReplayIndexError
from navrl.io.container.element_types import NAME_OF_NUMPY_DTYPE
from navrl.io.container.tensor_types import NAME_OF_TORCH_DTYPE, TORCH_DTYPES, tensor_bytes
from navrl.io.replay.frame_codec import Array, Kind

__all__ = [
    "as_indices",
    "as_integers",
    "as_tensor",
    "check_kinds",
    "common_length",
    "draw_indices",
    "length_of",
]


def as_integers(key: str, value: Any) -> tuple[Kind, Array]:
    """Return the kind of a key's frames, and the frames as rows of integers.

    A copy is made only where it is needed.

    Raises:
        ReplayError: not an array or tensor, of an element type that cannot be stored, or without a
            first axis.
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
        raise ReplayError(
            f"{key}: elements of type {value.dtype} cannot be stored; expected numbers or booleans"
        )
    if not shape:
        raise ReplayError(f"{key}: found a single number, expected an array (frames, ...)")
    kind = Kind(element, shape[1:])
    if not shape[0] or not kind.nbytes:
        return kind, np.zeros((shape[0], kind.features), f"u{kind.word}")
    if isinstance(value, torch.Tensor):
        raw = tensor_bytes(value).reshape(shape[0], -1)
    else:
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(shape[0], -1)
    return kind, raw.view(f"u{kind.word}")


def as_tensor(kind: Kind, words: Array) -> torch.Tensor:
    """Return rows of integers as a tensor of the frames they stand for, sharing memory."""
    shape = (len(words), *kind.shape)
    if not words.size:
        return torch.empty(shape, dtype=TORCH_DTYPES[kind.element])
    return torch.from_numpy(words.view(np.uint8)).view(TORCH_DTYPES[kind.element]).view(shape)


def length_of(part: Mapping[str, Array]) -> int:
    """Return how many frames there are."""
    return len(next(iter(part.values())))


def common_length(words: Mapping[str, Array]) -> int:
    """Return how many frames every key has.

    Raises:
        ReplayError: the keys have different numbers of frames.
    """
    counts = {key: len(rows) for key, rows in words.items()}
    if len(set(counts.values())) > 1:
        raise ReplayError(
            f"keys have different numbers of frames: {counts}; expected the same for all"
        )
    return next(iter(counts.values()))


def check_kinds(found: Mapping[str, Kind], known: Mapping[str, Kind]) -> None:
    """Raise a ReplayError that says how frames differ from those known, if they do."""
    shown = {
        key: [_shown_kind(kinds.get(key)) for kinds in (found, known)] for key in {**known, **found}
    }
    wrong = [
        f"{key}: {ours}, expected {theirs}"
        for key, (ours, theirs) in shown.items()
        if ours != theirs
    ]
    if wrong:
        raise ReplayError(f"frames are not like the first ones: {'; '.join(wrong)}")


def _shown_kind(kind: Kind | None) -> str:
    return "nothing" if kind is None else f"{kind.element} {kind.shape}"


def as_indices(indices: Any) -> Array:
    """Return indices as an int64 array of one axis."""
    if isinstance(indices, torch.Tensor):
        indices = indices.cpu().numpy()
    found = np.atleast_1d(np.asarray(indices))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ReplayIndexError(
            f"indices of shape {found.shape} and type {found.dtype}; expected a row of whole "
            "numbers"
        )
    return np.ascontiguousarray(found, np.int64)


def draw_indices(
    count: int, batch_size: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return indices drawn uniformly from `count` frames, with replacement.

    Raises:
        ReplayError: there are no frames.
        ConfigError: `batch_size` is not a whole number of at least 1.
    """
    batch_size = whole_number("batch_size", batch_size, 1, 1 << 40)
    if not count:
        raise ReplayError("the memory is empty; add frames before you sample")
    return torch.randint(count, (batch_size,), generator=generator)
