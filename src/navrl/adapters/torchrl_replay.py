"""`CompressedStorage`: a TorchRL storage on `navrl.FrameStore`, for any of TorchRL's replay buffers
and samplers.

    buffer = TensorDictReplayBuffer(storage=CompressedStorage(1_000_000), batch_size=256)

Keys of a few bytes (rewards, flags, `index`, `_weight`) are kept as they are and can be rewritten
at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navrl.arguments import whole_number
from navrl.errors import ConfigError, ReplayError, StateError, missing_extra

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase
    from torchrl.data.replay_buffers.storages import LazyStackStorage, Storage
except ImportError as error:
    raise missing_extra(f"{__name__} needs torchrl and tensordict ({error})", "torchrl") from error

from navrl.adapters.prioritized import PrioritizedSampler, PrioritizedSliceSampler
from navrl.adapters.replay_layout import Layout, joined, take_apart
from navrl.adapters.replay_view import FramesView, places_of
from navrl.io import load_checkpoint, save_checkpoint
from navrl.io.container.devices import usable_device
from navrl.io.replay.frame_codec import Kind
from navrl.io.replay.frame_store import FrameStore
from navrl.io.replay.rounded import Rounded

__all__ = ["CompressedStorage", "PrioritizedSampler", "PrioritizedSliceSampler"]

FILE = "frames.pt"


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
    """A compressed storage of TensorDicts. The arguments are those of `FrameStore`.

    The first batch axis counts frames. Further batch axes, nested TensorDicts with their batch
    sizes, and non-tensor data (not compressed) come back as they were. The first frames determine
    the keys, element types, shapes and batch sizes of all.

    These are refused by name: `ndim` above 1; tensors, tensorclasses and pytrees in place of
    TensorDicts; keys that the first frames did not have; pickling; TorchRL's `update_if_present`
    and `Sequence` units.

    >>> import torch, navrl
    >>> from tensordict import TensorDict
    >>> from torchrl.data import ReplayBuffer
    >>> buffer = ReplayBuffer(storage=navrl.CompressedStorage(1000), batch_size=16)
    >>> frames = buffer.extend(TensorDict({"lidar": torch.zeros(64, 36)}, [64]))
    >>> buffer.sample()["lidar"].shape
    torch.Size([16, 36])
    """

    _default_checkpointer = FrameCheckpointer

    def __init__(
        self,
        max_size: int,
        *,
        chunk: int = 16,
        codecs: Mapping[Any, str | Rounded] | None = None,
        streams: int | None = None,
        threads: int | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        if ndim != 1:
            raise ConfigError(
                f"ndim={ndim!r}: a CompressedStorage has one axis of frames, expected 1. "
                "Flatten what you add with data.reshape(-1), or use a LazyTensorStorage"
            )
        max_size = whole_number("max_size", max_size, 1, 1 << 40)
        # TorchRL knows how to batch its own storages only; one of lazy stacks gives batches as they
        # are, and so do we.
        Storage.__init__(self, max_size, compilable=compilable)
        self.device = usable_device(device)
        named = {joined(key): codec for key, codec in (codecs or {}).items()}
        self._new_store = partial(
            FrameStore, max_size, chunk=chunk, codecs=named, streams=streams, threads=threads
        )
        self.store = self._new_store()
        self.layout = Layout()
        self._objects: dict[str, dict[int, Any]] = {}  # non-tensor data, by name and index
        self._last_cursor: Any = None

    @property
    def _storage(self) -> FramesView:
        return FramesView.of(self, np.arange(len(self)))

    @property
    def shape(self) -> torch.Size:
        """How many frames are held, as TorchRL's tensor storages say it."""
        return torch.Size([len(self)])

    @property
    def _total_shape(self) -> torch.Size:
        return torch.Size([self.max_size])

    @property
    def _len_along_dim0(self) -> int:
        return len(self)

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Write frames: behind the last, as writers do, or over frames that are held.

        Raises:
            ReplayError: they are no TensorDict, or not like the first frames; nothing was stored.
        """
        if isinstance(data, list) and all(isinstance(row, TensorDictBase) for row in data):
            data = TensorDict.lazy_stack(data)
        if not isinstance(data, TensorDictBase):
            found = type(data[0] if isinstance(data, list) else data).__name__
            hint = "use a LazyTensorStorage for it"
            raise ReplayError(f"a CompressedStorage holds TensorDicts, found {found}; {hint}")
        indices = self._indices(cursor)
        if not isinstance(cursor, slice | range) and np.ndim(cursor) == 0:
            data = data.unsqueeze(0)
        if len(data) != len(indices) and len(indices):
            data = data.expand(len(indices), *data.shape[1:])
        parts = take_apart(data)
        tensors, objects = parts.tensors, parts.objects
        if not tensors:
            found = f"frames without a tensor, keys {list(objects)}"
            raise ReplayError(f"{found}; a CompressedStorage needs one at least")
        appended = set_cursor or bool(len(indices) and indices.max() >= len(self))
        first = not self.store.kinds
        self._match_index(tensors, indices)
        if not first:
            self._check_objects(objects, some=not appended)
        (self.store.set if appended else self.store.update)(indices, tensors)
        if first and len(indices):
            self.layout = parts.layout
            self._objects = {name: {} for name in objects}
        for name, values in objects.items():
            self._objects[name].update(zip(indices.tolist(), values, strict=True))
        if set_cursor:
            self._set_last_cursor(cursor)
        self._bump_mutation_revision()

    def _match_index(self, tensors: dict[str, torch.Tensor], indices: Any) -> None:
        """Add or drop the key `index`, as the first frames have it.

        TorchRL's MaxValueWriter sets it to the index of a frame in `add`, but not in `extend`.
        """
        kind, given = self.store.kinds.get("index"), tensors.get("index")
        if kind is None and given is not None and self.store.kinds:
            if np.array_equal(given.reshape(-1).cpu().numpy(), indices):
                del tensors["index"]
        elif given is None and kind in (Kind("int64", ()), Kind("int64", (1,))):
            tensors["index"] = torch.from_numpy(indices).reshape(-1, *kind.shape)

    def _check_objects(self, objects: Mapping[str, Any], *, some: bool) -> None:
        """Raise a ReplayError unless non-tensor data has the keys of the first frames, or some."""
        unknown = [name for name in objects if name not in self._objects]
        missing = [name for name in self._objects if name not in objects and not some]
        if unknown or missing:
            raise ReplayError(
                f"frames are not like the first ones: non-tensor data {unknown} is new, "
                f"{missing} is missing; expected {list(self._objects)}"
            )

    def get(self, index: Any) -> Any:
        """Return frames as a TensorDict; one frame for a single index.

        A slice gives a TensorDict that decodes a key when it is first read.
        """
        if isinstance(index, tuple):
            if len(index) != 1:
                raise ReplayError(f"an index with {len(index)} axes; a CompressedStorage has one")
            index = index[0]
        if isinstance(index, slice | range):
            return FramesView.of(self, self._indices(index))
        return self.read(places_of(index, len(self)))

    def read(self, indices: Any, names: Any = None) -> TensorDict:
        """Return frames as a TensorDict with the axes of the indices; some keys, or all."""
        flat = indices.reshape(-1)
        tensors: Mapping[str, torch.Tensor] = {}
        chosen = None if names is None else [name for name in names if name in self.store.kinds]
        if chosen != []:
            tensors = self.store.get(flat, chosen)
        objects = {
            name: [values[slot] for slot in flat.tolist()]
            for name, values in self._objects.items()
            if names is None or name in names
        }
        return self.layout.put_together(indices.shape, tensors, objects, self.device, names is None)

    def read_tensor(self, indices: Any, key: Any) -> torch.Tensor | None:
        """Return one key of frames; None if it holds no tensor, or there is no such key."""
        name = joined(key)
        if name not in self.store.kinds:
            return None
        return self.store.get(indices, [name])[name].to(self.device)

    def held(self, key: Any) -> list[str] | None:
        """Return the joined names of a key, or of those in it; None if there is no such key."""
        name = joined(key)
        known = [*self.store.kinds, *self._objects]
        found = [other for other in known if other == name or other.startswith(f"{name}/")]
        return found if found or name in self.layout.nodes else None

    def _indices(self, index: Any) -> Any:
        return np.atleast_1d(places_of(index, len(self)))

    def __len__(self) -> int:
        return len(self.store)

    def nbytes(self) -> int:
        """Return the bytes of memory that the tensors of the frames take."""
        return self.store.nbytes()

    def contains(self, item: Any) -> Any:
        """Tell whether there is a frame at an index, or at each of several."""
        if isinstance(item, torch.Tensor):
            return (item >= -len(self)) & (item < len(self))
        return -len(self) <= item < len(self)

    def state_dict(self) -> dict[str, Any]:
        """Return everything, still compressed."""
        slots = range(len(self))
        objects = {name: [values[slot] for slot in slots] for name, values in self._objects.items()}
        return {
            **self.store.state_dict(),
            "last_cursor": self._last_cursor_index,
            "layout": self.layout.state(),
            "objects": objects,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Become the storage that `state_dict` was called on.

        Raises:
            StateError: the state does not fit, or is damaged; the storage is as it was.
        """
        older = Layout().state()  # of a version that had no layout
        layout = Layout.from_state(state_dict.get("layout", older))
        objects = state_dict.get("objects", {})
        store = self._new_store()
        store.load_state_dict(state_dict)
        lengths = {name: len(values) for name, values in objects.items()}
        if lengths != dict.fromkeys(layout.objects, len(store)):
            raise StateError(
                f"not the state of a CompressedStorage: non-tensor data of lengths {lengths}, "
                f"expected {len(store)} for each of {list(layout.objects)}; nothing was loaded"
            )
        self.store, self.layout = store, layout
        self._objects = {name: dict(enumerate(values)) for name, values in objects.items()}
        self._set_last_cursor(state_dict.get("last_cursor"))
        self._bump_mutation_revision()

    def _empty(self) -> None:
        self.store.clear()
        self.layout, self._objects = Layout(), {}
        self._bump_mutation_revision()

    def __getstate__(self) -> dict[str, Any]:
        expected = "send its state_dict() to another process"
        raise ReplayError(f"a CompressedStorage cannot be pickled; {expected}")

    def __repr__(self) -> str:
        size = self.nbytes() / max(1, len(self))
        return (
            f"CompressedStorage({len(self)} of {self.max_size} frames, {size:.0f} bytes "
            f"each, {self.store.chosen})"
        )
