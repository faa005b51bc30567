"""A TensorDict of the frames of a storage that decodes a key when the key is read.

TorchRL's samplers look at one key of all frames (`storage[:]["episode"]`), and its buffers rewrite
keys in place (`storage[:].set_at_(...)`). Decoding every key for that would take seconds, and the
changes would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from navrl.adapters.replay_layout import joined, take_apart
from navrl.errors import ReplayIndexError
from navrl.io.rollouts.rollout_keys import Key

if TYPE_CHECKING:
    from typing_extensions import Self

    from navrl.adapters.torchrl_replay import CompressedStorage

__all__ = ["FramesView", "places_of"]


class FramesView(TensorDict):  # type: ignore[misc]
    """A TensorDict of frames of a storage, not decoded yet.

    Reading a key decodes that key. Anything else decodes all, and the object becomes a plain
    TensorDict. Before that, `set_`, `set_at_` and `update_` write to the storage, as they do with
    TorchRL's own storages.
    """

    __slots__ = ()

    @classmethod
    def of(cls, storage: CompressedStorage, indices: Any) -> Self:
        """Return a view of the frames at some indices."""
        size = [len(indices), *storage.layout.nodes.get("", ())]
        view = TensorDict({}, batch_size=size, device=storage.device)
        del view.__dict__["_tensordict"]
        view.__dict__.update(_frames=storage, _indices=indices)
        view.__class__ = cls
        return view

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """Return a plain TensorDict: what is made from a view, such as its clone, is none."""
        return TensorDict(*arguments, **options)

    @classmethod
    def _new_unsafe(cls, *arguments: Any, **options: Any) -> TensorDict:
        return TensorDict._new_unsafe(*arguments, **options)

    @property
    def _tensordict(self) -> dict[str, Any]:
        """What a TensorDict keeps its entries in; asking for it ends the view."""
        entries = self._frames.read(self._indices)._tensordict
        del self.__dict__["_frames"], self.__dict__["_indices"]
        self.__class__ = TensorDict
        self.__dict__["_tensordict"] = entries
        return entries

    def _decoded(self) -> TensorDict:
        """Return this object as a plain TensorDict."""
        _ = self._tensordict
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._decoded().__reduce_ex__(protocol)

    def keys(self, *arguments: Any, **options: Any) -> Any:
        """Return the keys, without decoding a frame."""
        return self._frames.read(self._indices[:0]).keys(*arguments, **options)

    def get(self, key: Key, default: Any = None, *arguments: Any, **options: Any) -> Any:
        """Return the values of a key of all of the frames; the default if there is no such key."""
        held = self._frames.held(key)
        if held is None:
            return default
        found = self._frames.read_tensor(self._indices, key)
        if found is None:  # non-tensor data, or a nested TensorDict, which may be empty
            names = held or None
            found = self._frames.read(self._indices, names).get(key, *arguments, **options)
        return found

    def __getitem__(self, item: Any) -> Any:
        if _is_key(item):
            found = self._frames.read_tensor(self._indices, item)
            if found is not None:
                return found
            held = self._frames.held(item)
            if held is None:
                known = sorted(map(str, self.keys(True, True)))
                raise KeyError(f"key {item!r} is not held; the frames have {known}")
            return self._frames.read(self._indices, held or None)[item]
        if isinstance(item, tuple) or item is None or item is Ellipsis:
            return self._decoded()[item]
        return self._frames.read(self._chosen(item))

    def _chosen(self, index: Any) -> Any:
        """Return which frames of the storage an index of this view means, with the index's axes."""
        places = places_of(index, len(self))
        if places.size and (places.min() < 0 or places.max() >= len(self)):
            found = f"index {str(index)[:80]} is outside"
            raise ReplayIndexError(f"{found}; expected one of {len(self)} frames")
        return np.asarray(self._indices[places])

    def set_at_(self, key: Key, value: Any, index: Any, **options: Any) -> Self:
        """Rewrite a key of some of the frames, or of one, in the storage."""
        chosen, tensor = self._chosen(index), torch.as_tensor(value)
        if not chosen.ndim:
            chosen, tensor = chosen.reshape(1), tensor[None]
        rows = tensor.expand(len(chosen), *tensor.shape[1:])
        self._frames.store.update(chosen, {joined(key): rows})
        return self

    def set_(self, key: Key, value: Any, **options: Any) -> Self:
        """Rewrite a key of all of the frames in the storage."""
        return self.set_at_(key, value, slice(None))

    def update_(self, other: Any, *_: Any, keys_to_update: Any = None, **options: Any) -> Self:
        """Rewrite some keys of all of the frames in the storage."""
        made = isinstance(other, TensorDictBase)
        data = other if made else TensorDict(other, batch_size=[len(self)])
        wanted = None if keys_to_update is None else {joined(key) for key in keys_to_update}
        for name, tensor in take_apart(data).tensors.items():
            if wanted is None or name in wanted:
                self.set_(tuple(name.split("/")), tensor)
        return self


def places_of(index: Any, length: int) -> Any:
    """Return an index of any kind as places from 0 on, with its axes; places may be outside."""
    if isinstance(index, slice):
        return np.arange(*index.indices(length))
    found = index.cpu().numpy() if isinstance(index, torch.Tensor) else np.asarray(index)
    if found.dtype == bool:
        return np.flatnonzero(found)
    found = found.astype(np.int64)  # adding the length to a small type would overflow
    return np.where(found < 0, found + length, found)


def _is_key(item: Any) -> bool:
    if isinstance(item, tuple):
        return bool(item) and all(isinstance(part, str) for part in item)
    return isinstance(item, str)
