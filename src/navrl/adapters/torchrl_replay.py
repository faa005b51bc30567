"""`CompressedStorage`: a TorchRL storage on `navrl.FrameStore`, for any of TorchRL's replay buffers and samplers.

    buffer = TensorDictReplayBuffer(storage=CompressedStorage(1_000_000), batch_size=256)

Keys of a few bytes (rewards, flags, `index`, `_weight`) are kept as they are and can be rewritten at no cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase
from torchrl.data.replay_buffers.storages import LazyStackStorage, Storage

from navrl.errors import ReplayError, ReplayIndexError
from navrl.io import load_checkpoint, save_checkpoint
from navrl.io.replay import FrameStore, Rounded

__all__ = ["CompressedStorage"]

FILE = "frames.pt"
Key = str | tuple[str, ...]


class FrameCheckpointer(StorageCheckpointerBase):  # type: ignore[misc]
    """Writes a storage, still compressed, as one checkpoint file of navrl."""

    def dumps(self, storage: CompressedStorage, path: Any) -> None:
        """Write the storage into a folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(storage.state_dict(), folder / FILE)

    def loads(self, storage: CompressedStorage, path: Any) -> None:
        """Read the storage from a folder."""
        storage.load_state_dict(load_checkpoint(Path(path) / FILE))


class CompressedStorage(LazyStackStorage):  # type: ignore[misc]
    """A compressed storage of TensorDicts with one batch axis. The arguments are those of `FrameStore`.

    Reading a slice such as `storage[:]` gives a view that decodes a key when it is read, so that samplers that look at
    one key of all frames (SliceSampler) do not decode the others.
    """

    _default_checkpointer = FrameCheckpointer

    def __init__(
        self, max_size: int, *, chunk: int = 16, codecs: Mapping[Any, str | Rounded] | None = None,
        streams: int | None = None, threads: int | None = None, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        # TorchRL knows how to batch its own storages only; one of lazy stacks gives batches as they are, and so do we.
        Storage.__init__(self, max_size)
        self.device = torch.device(device)
        named = {_joined(key): codec for key, codec in (codecs or {}).items()}
        self.store = FrameStore(max_size, chunk=chunk, codecs=named, streams=streams, threads=threads)
        self._last_cursor: Any = None

    @property
    def _storage(self) -> _Frames:
        return _Frames(self, np.arange(len(self)))

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Write frames: behind the last, as writers do, or over frames that are held."""
        if isinstance(data, list):
            data = torch.stack(data)
        if not isinstance(data, TensorDictBase):
            raise ReplayError(f"a CompressedStorage holds TensorDicts, found {type(data).__name__}; use a ListStorage for it")
        if set_cursor:
            self._set_last_cursor(cursor)
        indices = self._indices(cursor)
        if not isinstance(cursor, slice | range) and np.ndim(cursor) == 0:
            data = data.unsqueeze(0)
        if len(data) != len(indices) and len(indices):
            data = data.expand(len(indices), *data.shape[1:])
        frames = {_joined(key): data.get(key) for key in _tensor_keys(data)}
        if set_cursor or (len(indices) and indices.max() >= len(self)):
            self.store.set(indices, frames)
        else:
            self.store.update(indices, frames)
        self._bump_mutation_revision()

    def get(self, index: Any) -> Any:
        """Return frames as a TensorDict; one frame for a single index."""
        if isinstance(index, tuple):
            if len(index) != 1:
                raise ReplayError(f"an index with {len(index)} axes; a CompressedStorage has one")
            index = index[0]
        if isinstance(index, slice | range):
            return _Frames(self, self._indices(index))
        if (np.ndim(index) == 0 and not isinstance(index, torch.Tensor | np.ndarray)) or getattr(index, "ndim", 1) == 0:
            return self.read(self._indices(index))[0]
        return self.read(self._indices(index))

    def read(self, indices: Any, keys: Any = None) -> TensorDict:
        """Return frames as a TensorDict, or only some of their keys."""
        shape = tuple(indices.shape)
        frames = self.store.get(indices.reshape(-1), keys)
        nested: dict[str, Any] = {}
        for name, tensor in frames.items():
            *parents, last = name.split("/")
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = tensor.to(self.device)
        found = _as_tensordict(nested, len(indices.reshape(-1)))
        return found if len(shape) == 1 else found.reshape(shape)

    def _indices(self, index: Any) -> Any:
        return np.atleast_1d(_places(index, len(self)))

    def __len__(self) -> int:
        return len(self.store)

    def nbytes(self) -> int:
        """Return the bytes of memory that the frames take."""
        return self.store.nbytes()

    def contains(self, item: Any) -> Any:
        """Tell whether there is a frame at an index, or at each of several."""
        if isinstance(item, torch.Tensor):
            return (item >= -len(self)) & (item < len(self))
        return -len(self) <= item < len(self)

    def state_dict(self) -> dict[str, Any]:
        """Return everything, still compressed."""
        return {**self.store.state_dict(), "last_cursor": self._last_cursor_index}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Become the storage that `state_dict` was called on."""
        self.store.load_state_dict(state_dict)
        self._set_last_cursor(state_dict.get("last_cursor"))
        self._bump_mutation_revision()

    def _empty(self) -> None:
        self.store.clear()
        self._bump_mutation_revision()

    def __getstate__(self) -> dict[str, Any]:
        raise ReplayError("a CompressedStorage cannot be sent to another process; send its state_dict()")

    def __repr__(self) -> str:
        size = self.nbytes() / max(1, len(self))
        return f"CompressedStorage({len(self)} of {self.max_size} frames, {size:.0f} bytes each, {self.store.chosen})"


class _Frames:
    """Frames of a storage, a key of which is decoded when it is read."""

    def __init__(self, storage: CompressedStorage, indices: Any) -> None:
        self._frames, self._indices = storage, indices

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self)])

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> set[Key]:
        names = [tuple(name.split("/")) for name in self._frames.store.kinds]
        leaves = {name if len(name) > 1 else name[0] for name in names if include_nested or len(name) == 1}
        return leaves if leaves_only else leaves | {name[0] for name in names}

    def get(self, key: Key, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: Any) -> bool:
        return _is_key(key) and bool(self._held(key))

    def _held(self, key: Key) -> list[str]:
        """Return the names of a key, or of those in it."""
        name = _joined(key)
        return [known for known in self._frames.store.kinds if known == name or known.startswith(f"{name}/")]

    def __getitem__(self, item: Any) -> Any:
        if not _is_key(item):
            return self._frames.get(self._chosen(item))
        held = self._held(item)
        if not held:
            raise KeyError(item)
        return self._frames.read(self._indices, held).get(item)

    def _chosen(self, index: Any) -> Any:
        """Return which frames of the storage an index of this view means; without an axis if it is a single one."""
        places = _places(index, len(self))
        if places.size and (places.min() < 0 or places.max() >= len(self)):
            raise ReplayIndexError(f"index {index} is outside; expected one of {len(self)} frames")
        return np.asarray(self._indices[places])

    def __setitem__(self, key: Key, value: Any) -> None:
        self.set_(key, value)

    def set_at_(self, key: Key, value: Any, index: Any) -> None:
        """Rewrite a key of some of the frames, or of one."""
        chosen, tensor = self._chosen(index), torch.as_tensor(value)
        if not chosen.ndim:
            chosen, tensor = chosen.reshape(1), tensor[None]
        self._frames.store.update(chosen, {_joined(key): tensor.expand(len(chosen), *tensor.shape[1:])})

    def set_(self, key: Key, value: Any) -> None:
        """Rewrite a key of all of the frames."""
        self.set_at_(key, value, slice(None))

    def update_(self, other: Any, clone: bool = False, *, keys_to_update: Any = None) -> None:
        """Rewrite some keys of all of the frames."""
        data = other if isinstance(other, TensorDictBase) else TensorDict(other, batch_size=[len(self)])
        for key in _tensor_keys(data):
            if keys_to_update is None or key in keys_to_update:
                self.set_(key, data.get(key))

    def __iter__(self) -> Iterator[Any]:
        return (self._frames.get(int(index)) for index in self._indices)


def _places(index: Any, length: int) -> Any:
    """Return an index of any kind as places from 0 on, in an array with its axes; places may be outside."""
    if isinstance(index, slice):
        return np.arange(*index.indices(length))
    found = index.cpu().numpy() if isinstance(index, torch.Tensor) else np.asarray(index)
    if found.dtype == bool:
        return np.flatnonzero(found)
    found = found.astype(np.int64)  # adding the length to a small type would overflow
    return np.where(found < 0, found + length, found)


def _is_key(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, tuple) and bool(item) and all(isinstance(part, str) for part in item))


def _joined(key: Any) -> str:
    """Return a key of a TensorDict as a name of a FrameStore."""
    parts = (key,) if isinstance(key, str) else tuple(key)
    if any("/" in part for part in parts):
        raise ReplayError(f"key {key!r}: '/' stands between nested names; rename the key")
    return "/".join(parts)


def _tensor_keys(data: TensorDictBase) -> list[Key]:
    keys: list[Key] = sorted(data.keys(True, True), key=str)
    for key in keys:
        if not isinstance(data.get(key), torch.Tensor):
            raise ReplayError(f"key {key!r} is {type(data.get(key)).__name__}; a CompressedStorage holds tensors only")
    return keys


def _as_tensordict(nested: Mapping[str, Any], count: int) -> TensorDict:
    parts = {name: _as_tensordict(part, count) if isinstance(part, dict) else part for name, part in nested.items()}
    return TensorDict(parts, batch_size=[count])
