"""Reading `torch.save` files, plain or inside an LZ4 frame, without running code in them."""

from __future__ import annotations

import io
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import torch

from navrl.errors import CheckpointError, ContainerError
from navrl.io.checkpoint.numpy_pickles import NUMPY_GLOBALS, with_arrays

__all__ = ["UnsafePickleError", "load"]

LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_MAGIC = b"\x80"
_allowing_numpy = threading.Lock()
_LZ4_MAX_RATIO = 255  # an LZ4 frame holds at most this many times its own bytes
# what torch and pickle raise for bytes that are not what they seem
_DAMAGE = (
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    MemoryError,
    OSError,
)


class UnsafePickleError(CheckpointError):
    """A pickle refers to code, or is damaged and seems to; it was not run."""


NAMED_GLOBALS = (2, 6)  # the version of torch whose unpickler takes classes under other names


def load(
    path: Path, start: bytes, device: str | torch.device, *, trusted: bool, into: Any = None
) -> Any:
    """Return the state in a `torch.save` file; without `trusted` no code in it can run.

    Tensors of `into` are filled in place and returned where the file has a tensor too.

    Raises:
        CheckpointError: a tensor does not fit that of `into`; none was filled.
        ContainerError: neither a container nor a `torch.save` file, or damaged.
        UnsafePickleError: the file would run code, and `trusted` is False.
    """
    if into is None:
        return _load(path, start, device, trusted=trusted)
    loaded = _load(path, start, "cpu", trusted=trusted)
    for place, tensor, live in _pairs(loaded, into, ""):
        if (tensor.dtype, tensor.shape) != (live.dtype, live.shape):
            found, expected = (f"{one.dtype} {list(one.shape)}" for one in (tensor, live))
            raise CheckpointError(f"{path}: {place} is {found}, to be loaded into {expected}")
    for _, tensor, live in _pairs(loaded, into, ""):
        live.detach().copy_(tensor)
    return _with_live(loaded, into, torch.device(device))


def _load(path: Path, start: bytes, device: str | torch.device, *, trusted: bool) -> Any:
    source: io.BytesIO | Path = path
    try:
        if start.startswith(LZ4_MAGIC):
            content = _decompress(path)
            source, start = io.BytesIO(content), content[:8]
        if not start.startswith((_ZIP_MAGIC, _PICKLE_MAGIC)):
            raise ContainerError(
                f"{path}: starts with {start!r}: not a navrl container, nor a torch.save file, "
                "plain or in LZ4"
            )
        if trusted:
            return torch.load(source, map_location=device, weights_only=False)
        return _load_unpickled(source, device)
    except pickle.UnpicklingError as error:
        raise UnsafePickleError(
            f"{path}: holds more than tensors, NumPy arrays and plain values, or is damaged: "
            f"{_reason(error)}. If you trust its author, load_checkpoint(..., trusted=True) lets "
            "it run code"
        ) from error
    except _DAMAGE as error:
        if isinstance(error, ContainerError | FileNotFoundError):
            raise
        raise ContainerError(
            f"{os.fspath(path)}: damaged: {type(error).__name__}: {error}"
        ) from error


def _load_unpickled(source: io.BytesIO | Path, device: str | torch.device) -> Any:
    """Return what torch's weights-only unpickler reads, NumPy arrays included.

    NumPy's names are allowed in the whole process meanwhile, so only for files that need them.
    """
    try:
        return torch.load(source, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        if not any(name in str(error) for _, name in NUMPY_GLOBALS):
            raise
        if tuple(map(int, torch.__version__.split(".")[:2])) < NAMED_GLOBALS:
            raise pickle.UnpicklingError(
                f"NumPy values, which torch {torch.__version__} cannot read safely; torch 2.6 can"
            ) from error
    if isinstance(source, io.BytesIO):
        source.seek(0)
    with _allowing_numpy, torch.serialization.safe_globals(NUMPY_GLOBALS):
        return with_arrays(torch.load(source, map_location=device, weights_only=True))


def _reason(error: pickle.UnpicklingError) -> str:
    """Return what torch found, without its advice."""
    message = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    return message.partition(" Please use")[0].partition("\n")[0].rstrip(".")[:200]


def _decompress(path: Path) -> bytes:
    """Return the content of an LZ4 frame; an impossible size is refused before allocating."""
    stored = path.read_bytes()
    claimed = lz4.frame.get_frame_info(stored)["content_size"]
    if claimed > _LZ4_MAX_RATIO * len(stored):
        raise ContainerError(
            f"{path}: damaged: an LZ4 frame of {len(stored)} bytes that claims to hold {claimed}, "
            f"expected at most {_LZ4_MAX_RATIO * len(stored)}; use an older checkpoint"
        )
    return lz4.frame.decompress(stored)


def _children(loaded: Any, into: Any) -> list[tuple[Any, Any, Any]]:
    """Return key, value and live value, if any, of every item of a dict or list."""
    if isinstance(loaded, dict):
        named = into if isinstance(into, dict) else {}
        return [(key, value, named.get(key)) for key, value in loaded.items()]
    if isinstance(loaded, list | tuple):
        counted = into if isinstance(into, list | tuple) else ()
        return [
            (key, value, counted[key] if key < len(counted) else None)
            for key, value in enumerate(loaded)
        ]
    return []


def _pairs(loaded: Any, into: Any, place: str) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the place of each tensor that both states have, and the two tensors."""
    if isinstance(loaded, torch.Tensor) and isinstance(into, torch.Tensor):
        yield place, loaded, into
    for key, value, live in _children(loaded, into):
        yield from _pairs(value, live, f"{place}/{key}" if place else str(key))


def _with_live(loaded: Any, into: Any, device: torch.device) -> Any:
    """Return the loaded state with live tensors where there are any; others go to the device."""
    if isinstance(loaded, torch.Tensor):
        return into if isinstance(into, torch.Tensor) else loaded.to(device)
    children = [
        (key, _with_live(value, live, device)) for key, value, live in _children(loaded, into)
    ]
    if type(loaded) is tuple:
        return tuple(value for _, value in children)
    if isinstance(loaded, dict | list):  # it has no other reference yet
        for key, value in children:
            loaded[key] = value
    return loaded
