"""Rollouts as bytes, to keep in memory or to send: the contents of a rollout file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navrl.arguments import as_path
from navrl.errors import ConfigError, RolloutError
from navrl.io.container.atomic_files import AtomicFile, MemoryFile, descriptor_of
from navrl.io.container.codecs import DEFAULT_CODEC
from navrl.io.container.container_reader import Container
from navrl.io.container.container_writer import ArraySource, write_container
from navrl.io.container.devices import usable_device
from navrl.io.container.index import MAGIC
from navrl.io.container.snapshot import live_sources
from navrl.io.container.state_tree import pack_state
from navrl.io.rollouts.reader import RolloutReader
from navrl.io.rollouts.rollout_document import complete_document, rollout_document
from navrl.io.rollouts.rollout_keys import Key, is_tensordict, map_arrays, plain_rollout
from navrl.io.rollouts.storage import zstd_level

__all__ = [
    "CompressedRollout",
    "compress_rollout",
    "decompress_minibatch",
    "decompress_rollout",
    "save_rollout_compressed",
]

_IN_MEMORY = Path("<compressed rollout>")  # what errors call it


class CompressedRollout(bytes):
    """The bytes of a rollout file; after the first read they remember their index.

    They are bytes like any others: send them, write them to a file, hash them.
    """

    @cached_property
    def _reader(self) -> RolloutReader:
        return _reader_of(self)

    def __repr__(self) -> str:
        return f"CompressedRollout({len(self):,} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return CompressedRollout, (bytes(self),)  # an open file stays in its process


def compress_rollout(
    data: Any,
    compression_level: int = 9,
    *,
    time_first: bool = False,
    error_bounds: Mapping[Key, float] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> CompressedRollout:
    """Return a rollout as bytes: the contents of the file `save_rollout_compressed` would write.

    Args:
        data: a TensorDict or a nested dict of arrays (environments, steps, ...), on any device.
        compression_level: 0 to 16; see `RolloutStorage`.
        time_first: the arrays are (steps, environments, ...).
        error_bounds: keys of floats that may be rounded, and by how much; all others are lossless.
        metadata: JSON values that are stored with it.

    Raises:
        RolloutError: `data` is not a rollout.
        UnsupportedStateError: it holds an object that cannot be stored; the message says where.

    >>> import torch, navrl
    >>> small = navrl.compress_rollout({"lidar": torch.zeros(4, 32, 36)})
    >>> len(small) < 4 * 32 * 36
    True
    """
    level = zstd_level(compression_level)
    sources, document = _prepared(data, time_first, error_bounds, metadata)
    memory = MemoryFile()
    write_container(_IN_MEMORY, sources, document, codec=DEFAULT_CODEC, level=level, into=memory)
    return CompressedRollout(memory.getvalue())


def save_rollout_compressed(
    data: Any,
    path: str | os.PathLike[str],
    compression_level: int = 9,
    *,
    time_first: bool = False,
    error_bounds: Mapping[Key, float] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a rollout to a file of its own, durably and whole, and return its path.

    The arguments are those of `compress_rollout`. Bytes that `compress_rollout` returned are
    verified and written as they are; other arguments are then refused. `decompress_rollout` reads
    the file, whatever its suffix.

    >>> import torch, navrl
    >>> path = navrl.save_rollout_compressed({"reward": torch.ones(4, 32)}, "batch.navrl")
    >>> navrl.decompress_rollout(path)["reward"].sum()
    tensor(128.)
    """
    path = as_path("path", path)
    level = zstd_level(compression_level)
    if isinstance(data, bytes | bytearray | memoryview):
        if time_first or error_bounds or metadata or compression_level != 9:
            raise ConfigError(
                "compressed rollouts are written as they are; give options to compress_rollout"
            )
        decompress_rollout(data)  # raises if they are damaged
        path.parent.mkdir(parents=True, exist_ok=True)
        with AtomicFile(path) as file:
            file.write([data])
            file.commit()
        return path
    sources, document = _prepared(data, time_first, error_bounds, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_container(path, sources, document, codec=DEFAULT_CODEC, level=level)
    return path


def decompress_rollout(data: Any, device: str | torch.device = "cpu") -> Any:
    """Return a rollout from its bytes or from the path of its file, every byte verified.

    It is a TensorDict if one was compressed and tensordict is installed, else nested dicts. A
    TensorDict, or what a `CompressedDataCollector` returned, is returned as a whole TensorDict.

    Raises:
        ContainerError: the bytes are damaged, cut short, or not those of a rollout.

    >>> import torch, navrl
    >>> small = navrl.compress_rollout({"reward": torch.ones(4, 32)})
    >>> navrl.decompress_rollout(small)["reward"].shape
    torch.Size([4, 32])
    """
    if _is_rollout(data):
        return _whole(data).to(usable_device(device))
    return _reader(data).read(device, None, None, None)


def decompress_minibatch(data: Any, indices: Any, device: str | torch.device = "cpu") -> Any:
    """Return frames of a rollout: `decompress_rollout(data).reshape(-1)[indices]`.

    Only the chunks with these frames are decompressed. For repeated reads pass what
    `compress_rollout` returned, which remembers its index. Arrays without environments and steps,
    which rollouts of dicts may have, are left out.

    Args:
        data: as in `decompress_rollout`.
        indices: frame numbers, counted over the environments and then over their steps, a mask, a
            slice or a number.
        device: where tensors go.

    Raises:
        RolloutError: there is no such frame.
        ContainerError: the bytes that were needed are damaged.

    >>> import torch, navrl
    >>> small = navrl.compress_rollout({"reward": torch.arange(128.0).reshape(4, 32)})
    >>> navrl.decompress_minibatch(small, [0, 33])["reward"]
    tensor([ 0., 33.])
    """
    if _is_rollout(data):
        return _frames_of(data, indices).to(usable_device(device))
    reader = _reader(data)
    if reader.dimensions != 2:
        return reader.read(device, None, None, None).reshape(-1)[indices]
    return _at_frames(reader, indices, device)


def _at_frames(reader: RolloutReader, indices: Any, device: str | torch.device) -> Any:
    chosen = _frame_numbers(reader.frames, indices)
    flat = reader.read_frames(chosen.reshape(-1), device)
    if chosen.ndim == 1:
        return flat
    return map_arrays(lambda part: part.reshape(*chosen.shape, *part.shape[1:]), flat)


def _frame_numbers(count: int, indices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return which of `count` frames are meant, in the shape of the indices."""
    if isinstance(indices, torch.Tensor):
        indices = indices.detach().cpu().numpy()
    elif not isinstance(indices, slice):
        indices = np.asarray(indices)
    try:
        return np.asarray(np.arange(count)[indices])
    except IndexError as error:
        raise RolloutError(
            f"frames of a rollout of {count}: {error}; expected numbers from 0 to {count - 1}"
        ) from error


def _prepared(
    data: Any,
    time_first: bool,
    error_bounds: Mapping[Key, float] | None,
    metadata: Mapping[str, Any] | None,
) -> tuple[list[ArraySource], dict[str, Any]]:
    """Return the arrays of a rollout as they are to be stored, and the document of its file."""
    plain, tensordicts = plain_rollout(_whole(data) if _is_rollout(data) else data)
    document = rollout_document(
        plain,
        tensordicts,
        0,
        time_first=time_first,
        error_bounds=error_bounds or {},
        metadata=metadata,
    )
    packed = pack_state(plain)
    return complete_document(document, live_sources(packed), packed.tree), document


def _is_rollout(data: Any) -> bool:
    """Return whether this is a TensorDict, or a CompressedTensorDict."""
    return hasattr(data, "minibatches") or is_tensordict(data)


def _whole(data: Any) -> Any:
    return data.to_tensordict() if hasattr(data, "minibatches") else data


def _frames_of(data: Any, indices: Any) -> Any:
    count = data.numel()
    chosen = torch.from_numpy(_frame_numbers(count, indices))
    return data[torch.unravel_index(chosen, data.batch_size)]


def _reader(data: Any) -> RolloutReader:
    if isinstance(data, CompressedRollout):
        return data._reader
    if isinstance(data, str | os.PathLike):
        return RolloutReader(Path(data))
    if isinstance(data, bytes | bytearray | memoryview):
        return _reader_of(bytes(data))
    raise RolloutError(
        f"a compressed rollout is a {type(data).__name__}; expected what compress_rollout "
        "returned, its bytes, or the path of a file"
    )


def _reader_of(data: bytes) -> RolloutReader:
    if not data.startswith(MAGIC):
        raise RolloutError(
            f"{len(data)} bytes that begin with {data[:8]!r} are not a compressed rollout; "
            "expected what compress_rollout returned, or the contents of a rollout file"
        )
    return RolloutReader(_IN_MEMORY, Container(_IN_MEMORY, descriptor=descriptor_of(data)))
