"""Converting checkpoints to and from safetensors and `torch.save`."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, Literal

import torch

from navrl.errors import CheckpointError, ConfigError, ContainerError, missing_extra
from navrl.io.checkpoint.checkpoint_file import find_checkpoint, load_checkpoint, save_checkpoint
from navrl.io.checkpoint.listing import dict_or_empty
from navrl.io.container.atomic_files import AtomicFile
from navrl.io.container.codecs import DEFAULT_CODEC
from navrl.io.container.index import open_to_read, read_index
from navrl.io.container.state_tree import pack_state
from navrl.io.container.tree_reader import unpack_state

__all__ = ["FORMATS", "convert_checkpoint", "read_any_format"]

Format = Literal["navrl", "safetensors", "torch"]
FORMATS = ("navrl", "safetensors", "torch")
_FORMAT_OF_SUFFIX: dict[str, Format] = {".safetensors": "safetensors", ".pth": "torch"}
_TREE = "navrl.state"  # where a safetensors file keeps what is no tensor
_METADATA = "navrl.metadata"  # and what was told to `save_checkpoint` beside the state


def convert_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: Format | None = None,
    codec: str = DEFAULT_CODEC,
    trusted: bool = False,
) -> Path:
    """Write a checkpoint in another format and return its path.

    Metadata are kept, except in `torch.save` files, which have no place for them.

    Args:
        source: a checkpoint of navrl, a `torch.save` file or a safetensors file; the format is
            detected.
        target: the file to write; it appears whole or not at all.
        to: the format; None goes by the suffix: `.safetensors`, `.pth` for torch, otherwise navrl.
        codec: for navrl files.
        trusted: allow a pickle to run the code that it refers to.

    >>> import torch
    >>> from navrl.io.checkpoint import convert_checkpoint, save_checkpoint
    >>> written = save_checkpoint({"weight": torch.ones(3)}, "a.pt")
    >>> torch.load(convert_checkpoint("a.pt", "a.pth"))
    {'weight': tensor([1., 1., 1.])}
    """
    target = Path(target)
    to = to or _FORMAT_OF_SUFFIX.get(target.suffix, "navrl")
    if to not in FORMATS:
        raise ConfigError(f"format {to!r} is unknown; there are {', '.join(FORMATS)}")
    if os.path.isdir(target):
        raise ConfigError(f"{target}: found a directory, expected the name of a file to write")
    state, metadata = read_any_format(source, trusted=trusted)
    if to == "navrl":
        save_checkpoint(state, target, codec=codec, metadata=metadata)
    else:
        content = (
            _safetensors_bytes(state, metadata, target)
            if to == "safetensors"
            else _torch_bytes(state)
        )
        with AtomicFile(target) as file:
            file.write([content])
            file.commit()
    return target


def read_any_format(
    source: str | os.PathLike[str], *, trusted: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Return the state of a file of navrl, `torch.save` or safetensors, and its metadata.

    Raises:
        CheckpointError: there is no such file, or it would run code and is not `trusted`.
        ContainerError: the file is damaged, or of another format.
    """
    source = Path(source)
    if source.suffix == ".safetensors":
        return _read_safetensors(source)
    return load_checkpoint(source, trusted=trusted), _metadata(source)


def _metadata(source: Path) -> dict[str, Any]:
    """Return the metadata of a checkpoint; a foreign file has none."""
    try:
        return dict_or_empty(read_index(find_checkpoint(source)).document.get("metadata"))
    except ContainerError:
        return {}


def _torch_bytes(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise missing_extra("safetensors files need safetensors", "safetensors") from error
    return safetensors


def _safetensors_bytes(state: Any, metadata: dict[str, Any], target: Path) -> bytes:
    """Return a safetensors file: tensors by their place, and the tree around them as metadata."""
    packed = pack_state(state)
    values = {name: _own_memory(value) for name, _, value in packed.arrays()}
    texts = {
        _TREE: json.dumps({"names": list(values), "tree": packed.tree}),
        _METADATA: json.dumps(metadata),
    }
    try:
        return _safetensors().torch.save(values, texts)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{target}: safetensors cannot hold this state: {error}") from error


def _own_memory(value: Any) -> torch.Tensor:
    """Return a copy: safetensors refuses tensors that share memory, such as slices of one
    another.
    """
    tensor = torch.as_tensor(value).detach().resolve_conj().resolve_neg()
    return tensor.clone(memory_format=torch.contiguous_format)


def _read_safetensors(source: Path) -> tuple[Any, dict[str, Any]]:
    """Return state and metadata of a safetensors file: all of one that navrl wrote, else its
    tensors by name.
    """
    module = _safetensors()
    os.close(open_to_read(source))  # refuses what is no file, where safetensors would wait for ever
    try:
        with module.safe_open(source, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            texts = file.metadata() or {}
    except module.SafetensorError as error:
        raise ContainerError(f"{source}: damaged: {error}") from error
    if _TREE not in texts:
        return tensors, {}
    try:
        whole = json.loads(texts[_TREE])
        metadata = dict_or_empty(json.loads(texts.get(_METADATA, "{}")))
        ordered = [tensors[name] for name in whole["names"]]
        return unpack_state(
            whole["tree"], ordered.__getitem__, lambda number: ordered[number].numpy()
        ), metadata
    except (ValueError, LookupError, TypeError) as error:
        raise ContainerError(f"{source}: its metadata do not fit its tensors: {error}") from error
