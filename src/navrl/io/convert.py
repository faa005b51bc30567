"""Checkpoints in the formats of others: safetensors and `torch.save`, there and back."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, Literal

import torch

from navrl.errors import CheckpointError, ConfigError, ContainerError, MissingExtraError
from navrl.io.checkpoint import load_checkpoint, save_checkpoint
from navrl.io.codecs import DEFAULT_CODEC
from navrl.io.files import AtomicFile
from navrl.io.state import pack_state, unpack_state

__all__ = ["FORMATS", "convert_checkpoint"]

Format = Literal["navrl", "safetensors", "torch"]
FORMATS = ("navrl", "safetensors", "torch")
_TREE = "navrl.state"  # where a safetensors file keeps what is no tensor


def convert_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: Format | None = None,
    codec: str = DEFAULT_CODEC,
    trusted: bool = False,
) -> Path:
    """Write a checkpoint in another format and return its path.

    Args:
        source: a checkpoint of navrl, of `torch.save`, or a safetensors file; what it is, is found out.
        target: the file to write; it appears whole or not at all.
        to: the format; None goes by the suffix: `.safetensors`, otherwise navrl.
        codec: for navrl files.
        trusted: allow a pickle to run the code that it names.
    """
    target = Path(target)
    to = to or ("safetensors" if target.suffix == ".safetensors" else "navrl")
    if to not in FORMATS:
        raise ConfigError(f"format {to!r} is unknown; there are {', '.join(FORMATS)}")
    source = Path(source)
    state = _read_safetensors(source) if source.suffix == ".safetensors" else load_checkpoint(source, trusted=trusted)
    if to == "navrl":
        save_checkpoint(state, target, codec=codec)
    else:
        content = _safetensors_bytes(state, target) if to == "safetensors" else _torch_bytes(state)
        with AtomicFile(target) as file:
            file.write([content])
            file.commit()
    return target


def _torch_bytes(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors is not installed; install it with: pip install 'navrl[safetensors]'") from error
    return safetensors


def _safetensors_bytes(state: Any, target: Path) -> bytes:
    """Return a safetensors file: tensors by their place, and the tree around them as metadata."""
    packed = pack_state(state)
    numbers, names = packed.distinct(), packed.names()
    values = {names[number]: torch.as_tensor(packed.values[number]).contiguous() for number in numbers}
    metadata = {_TREE: json.dumps({"names": list(values), "tree": packed.tree})}
    try:
        return _safetensors().torch.save(values, metadata)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{target}: safetensors cannot hold this state: {error}") from error


def _read_safetensors(source: Path) -> Any:
    """Return the state of a safetensors file: the whole of one that navrl wrote, else its tensors by name."""
    module = _safetensors()
    try:
        with module.safe_open(source, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tree = (file.metadata() or {}).get(_TREE)
    except module.SafetensorError as error:
        raise ContainerError(f"{source}: damaged: {error}") from error
    if tree is None:
        return tensors
    try:
        whole = json.loads(tree)
        ordered = [tensors[name] for name in whole["names"]]
        return unpack_state(whole["tree"], ordered.__getitem__, lambda number: ordered[number].numpy())
    except (ValueError, LookupError, TypeError) as error:
        raise ContainerError(f"{source}: its metadata do not fit its tensors: {error}") from error
