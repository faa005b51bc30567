"""Whole episodes in, random frames out: `DictReplayBuffer`, for any mix of images, grids, vectors
and graph features.

Episodes may have any lengths, and give way oldest first. Frames of 256 bytes and more can be held
compressed, each by itself (`img_compressed="frame"`, quick to sample) or an episode at a time
(`"episode"`, smallest, slow to sample). Where frames follow each other without end,
`navrl.FrameStore` is smaller and faster than both.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.arguments import whole_number
from navrl.errors import (
    ConfigError,
    ContainerError,
    ReplayError,
    ReplayIndexError,
    StateError,
    shown,
)
from navrl.io.container.devices import usable_device
from navrl.io.container.thread_pool import usable_cores
from navrl.io.replay.images import (
    compress_image,
    compress_image_seq,
    decompress_image,
    decompress_image_seq,
)
from navrl.io.replay.workers import Workers

__all__ = ["DictReplayBuffer", "PrefixSum"]

IMAGE = 256  # bytes from which on a frame is an image, whatever it shows
MODES = {False: None, True: "frame", "frame": "frame", "episode": "episode"}

Kinds = dict[str, tuple[torch.dtype, tuple[int, ...]]]
Episode = dict[str, "Tensor | list[bytes] | bytes"]


class PrefixSum:
    """Which part (episode) an index (frame) falls into, in O(log n), as parts come and go.

    With `max_len`, at most that many parts are held: adding one more removes the oldest.

    >>> sums = PrefixSum(max_len=1000)
    >>> for length in (10, 20, 15):
    ...     sums.add(length)
    >>> sums.get_range_idx(25), sums.get_range_relative_idx(25, 1)
    (1, 15)
    """

    def __init__(self, max_len: int | None = None, lengths: Iterable[int] = ()) -> None:
        if max_len is not None:
            max_len = whole_number("max_len", max_len, 1, 1 << 62)
        self.max_len = max_len
        self._ends: list[int] = []  # sums from the first part ever added
        self._gone = 0  # removed parts that are still in `_ends`
        self._base = 0  # the sum of all removed parts
        for length in lengths:
            self.add(length)

    def add(self, length: int) -> None:
        """Add a part at the end; the first is removed if `max_len` are held.

        Raises:
            ConfigError: the length is no whole number from 1 on.
        """
        length = whole_number("length", length, 1, 1 << 62)
        self._ends.append((self._ends[-1] if self._ends else self._base) + length)
        if self.max_len is not None and len(self) > self.max_len:
            self.popleft()

    append = add

    def popleft(self) -> int:
        """Remove the first part; return its length."""
        if not len(self):
            raise ReplayIndexError("no part is left to remove; add one first")
        length = self._ends[self._gone] - self._base
        self._base += length
        self._gone += 1
        if self._gone > len(self._ends) // 2:  # each number is moved once for each that has left
            del self._ends[: self._gone]
            self._gone = 0
        return length

    @property
    def total(self) -> int:
        """The sum of the lengths of all parts."""
        return self._ends[-1] - self._base if len(self) else 0

    @property
    def ar(self) -> list[int]:
        """The lengths of the parts, oldest first; a new list."""
        return np.diff(self.prefix_sum).tolist()

    @property
    def prefix_sum(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where each part begins, from 0, and behind the last the sum of all; a new array."""
        return np.array([self._base, *self._ends[self._gone :]], np.int64) - self._base

    def __len__(self) -> int:
        return len(self._ends) - self._gone

    def find(self, index: int) -> tuple[int, int]:
        """Return the part, counted from the oldest that is left, and the place in it.

        Raises:
            ReplayIndexError: the index is negative, or not less than `total`.
        """
        try:
            inside = 0 <= index < self.total
        except TypeError as error:
            raise ReplayIndexError(f"index is {shown(index)}; expected a whole number") from error
        if not inside:
            found = f"expected 0 to {self.total - 1}" if self.total else "there are no parts yet"
            raise ReplayIndexError(f"index {index} is outside; {found}")
        part = bisect_right(self._ends, index + self._base, self._gone)
        return part - self._gone, int(index) - self._start(part - self._gone)

    def get_range_idx(self, idx: int) -> int:
        """Return the part that an index falls into, as `find` does."""
        return self.find(idx)[0]

    def get_range_relative_idx(self, idx: int, range_idx: int) -> int:
        """Return the place of an index in the part it falls into, which `get_range_idx` has found.

        Raises:
            ReplayIndexError: there is no such part, or the index does not fall into it.
        """
        if not 0 <= range_idx < len(self):
            raise ReplayIndexError(f"part {range_idx} is outside; there are {len(self)} parts")
        begin, end = self._start(range_idx), self._ends[self._gone + range_idx] - self._base
        if not begin <= idx < end:
            held = f"which holds {begin} to {end - 1}"
            raise ReplayIndexError(f"index {idx} is outside part {range_idx}, {held}")
        return int(idx) - begin

    def _start(self, part: int) -> int:
        """Return the index at which a part begins."""
        return self._ends[self._gone + part - 1] - self._base if part else 0


class DictReplayBuffer:
    """Whole episodes of named arrays, of which random frames are drawn.

    `max_size` counts frames. `keys` are those that an episode must have (all of the first episode,
    if not given); others that it has are left out. Batches are dicts of tensors on `device`.
    """

    def __init__(
        self,
        max_size: int,
        keys: Iterable[str] | None = None,
        device: torch.device | str = "cpu",
        img_compressed: bool | str = False,
        *,
        threads: int | None = None,
    ) -> None:
        max_size = whole_number("max_size", max_size, 1, 1 << 40)
        if img_compressed not in MODES:
            raise ConfigError(
                f"img_compressed={img_compressed!r}: expected False, 'frame' (or True), or "
                "'episode'"
            )
        if isinstance(keys, str) or not isinstance(keys, Iterable | None):
            raise ConfigError(
                f"keys is {shown(keys)}; expected a list of names, such as ['observation', "
                "'action']"
            )
        self.max_size, self.device = max_size, usable_device(device)
        self.keys = None if keys is None else tuple(keys)
        self.mode = MODES[img_compressed]
        self.kinds: Kinds = {}
        self._lock = threading.RLock()
        self._workers = Workers(threads or usable_cores())
        self._episodes: deque[Episode] = deque()
        self._lengths = PrefixSum(max_size)

    def __len__(self) -> int:
        """The number of frames."""
        with self._lock:
            return self._lengths.total

    @property
    def num_episodes(self) -> int:
        """How many episodes are held."""
        with self._lock:
            return len(self._episodes)

    @property
    def episode_lens_prefix_sum(self) -> PrefixSum:
        """Which episode each frame is in, as `add` and eviction keep it; for reading only."""
        return self._lengths

    def nbytes(self) -> int:
        """Return the bytes of the frames as they are held."""
        with self._lock:
            return sum(_size(value) for episode in self._episodes for value in episode.values())

    def add(self, episode: Mapping[str, Any]) -> None:
        """Add a whole episode: an array or tensor (T, ...), or a list of T frames, for every key.

        The oldest episodes make room.

        Raises:
            ReplayError: keys, element types or shapes do not fit, or it is longer than the buffer;
                nothing was stored.
        """
        if not isinstance(episode, Mapping):
            raise ReplayError(
                f"an episode is {shown(episode)}; expected arrays by name, such as "
                f"{{'action': ...}}"
            )
        tensors = self._checked(episode)
        length = len(next(iter(tensors.values())))
        stored: Episode = {key: self._stored(tensor) for key, tensor in tensors.items()}
        with self._lock:
            self.kinds = _kinds(tensors)
            while self._lengths.total + length > self.max_size:
                self._lengths.popleft()
                self._episodes.popleft()
            self._episodes.append(stored)
            self._lengths.append(length)

    def sample(
        self, batch_size: int, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return frames drawn at random, all equally likely, with replacement.

        Raises:
            ReplayError: there are no frames yet.
            ConfigError: `batch_size` is no whole number from 1 on.
        """
        batch_size = whole_number("batch_size", batch_size, 1, 1 << 40)
        with self._lock:
            if not len(self):
                raise ReplayError("the buffer is empty; add an episode before you sample")
            indices = torch.randint(len(self), (batch_size,), generator=generator)
            return self._read(indices.tolist())

    def get(self, indices: Any) -> dict[str, Tensor]:
        """Return frames by index, counted from the oldest."""
        with self._lock:
            return self._read(torch.as_tensor(indices).reshape(-1).tolist())

    def _read(self, indices: list[int]) -> dict[str, Tensor]:
        places = sorted((*self._lengths.find(index), row) for row, index in enumerate(indices))
        batch = {
            key: torch.empty((len(places), *shape), dtype=dtype)
            for key, (dtype, shape) in self.kinds.items()
        }

        def work(begin: int, end: int) -> None:
            for number, group in groupby(
                places[begin:end], key=itemgetter(0)
            ):  # in order, so an episode is opened once
                _, offsets, rows = (list(column) for column in zip(*group, strict=True))
                for key, value in self._episodes[number].items():
                    opened = _opened(value)
                    if isinstance(opened, list):
                        for row, offset in zip(rows, offsets, strict=True):
                            batch[key][row] = decompress_image(opened[offset])
                    else:
                        batch[key][rows] = opened[offsets]

        self._workers.split(work, len(places), sum(tensor.nbytes for tensor in batch.values()))
        return {key: tensor.to(self.device) for key, tensor in batch.items()}

    def _checked(self, episode: Mapping[str, Any]) -> dict[str, Tensor]:
        keys = self.keys if self.keys is not None else tuple(self.kinds) or tuple(episode)
        missing = [key for key in keys if key not in episode]
        if missing or not keys:
            raise ReplayError(
                f"an episode without {missing}; it has {list(episode)}, expected {list(keys)}"
            )
        tensors = {key: _as_tensor(key, episode[key]) for key in keys}
        lengths = {key: len(tensor) for key, tensor in tensors.items()}
        if len(set(lengths.values())) > 1 or not 1 <= next(iter(lengths.values())) <= self.max_size:
            raise ReplayError(
                f"an episode of lengths {lengths}; expected one length from 1 to "
                f"{self.max_size} for all keys"
            )
        found = _kinds(tensors)
        if self.kinds and found != self.kinds:
            wrong = [
                f"{key}: {found[key]}, expected {self.kinds[key]}"
                for key in keys
                if found[key] != self.kinds[key]
            ]
            raise ReplayError(f"an episode that is not like the first: {'; '.join(wrong)}")
        return tensors

    def _stored(self, tensor: Tensor) -> Tensor | list[bytes] | bytes:
        if self.mode is None or tensor[0].nbytes < IMAGE:
            return tensor.clone()
        if self.mode == "frame":
            return [compress_image(frame, level=None) for frame in tensor]
        return compress_image_seq(tensor, level=None)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as arrays and plain values, still compressed; a checkpoint can hold
        it.
        """
        with self._lock:
            episodes = [
                {key: _packed(value) for key, value in episode.items()}
                for episode in self._episodes
            ]
            return {
                "max_size": self.max_size,
                "mode": self.mode,
                "keys": list(self.kinds),
                "episodes": episodes,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the buffer that `state_dict` was called on; the device stays.

        Raises:
            StateError: the state does not fit, or is damaged; the buffer is as it was.
        """
        loaded = DictReplayBuffer(self.max_size, self.keys, self.device)
        try:
            if state["max_size"] != self.max_size:
                raise StateError(
                    f"a buffer for {state['max_size']} frames, expected one for {self.max_size}"
                )
            if state["mode"] not in MODES.values():
                raise StateError(
                    f"a buffer of mode {state['mode']!r}, expected one of "
                    f"{', '.join(map(str, MODES.values()))}"
                )
            loaded.mode = state["mode"]
            names = self.keys or tuple(state["keys"])
            for packed in state["episodes"]:
                stored: Episode = {key: _unpacked(packed[key]) for key in names}
                opened = {key: _opened(value) for key, value in stored.items()}
                whole = {
                    k: torch.stack([decompress_image(f) for f in v]) if isinstance(v, list) else v
                    for k, v in opened.items()
                }
                checked = loaded._checked(whole)
                loaded.kinds = _kinds(checked)
                loaded._episodes.append(stored)
                loaded._lengths.append(len(next(iter(whole.values()))))
        except StateError:
            raise
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            ReplayError,
            ContainerError,
            RuntimeError,
        ) as error:
            raise StateError(
                f"not the state of a DictReplayBuffer: {error!r}; nothing was loaded"
            ) from error
        if len(loaded) > self.max_size:
            raise StateError(
                f"a state of {len(loaded)} frames, expected at most {self.max_size}; nothing "
                "was loaded"
            )
        with self._lock:
            self.mode, self.kinds = loaded.mode, loaded.kinds
            self._episodes, self._lengths = loaded._episodes, loaded._lengths


def _as_tensor(key: str, value: Any) -> Tensor:
    """Return the frames of a key in one tensor (T, ...)."""
    expected = "expected an array or a tensor (T, ...), or a list of frames that are alike"
    try:
        if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
            value = torch.stack(list(value))
        tensor = (
            value.detach().cpu()
            if isinstance(value, Tensor)
            else torch.from_numpy(np.array(value, order="C"))
        )
    except (TypeError, ValueError, RuntimeError) as error:  # different shapes, or no numbers
        raise ReplayError(f"{key}: {str(error)[:200]}; {expected}") from error
    if not tensor.ndim:
        raise ReplayError(f"{key}: found a single number, {expected}")
    return tensor


def _kinds(tensors: Mapping[str, Tensor]) -> Kinds:
    return {key: (tensor.dtype, tuple(tensor.shape[1:])) for key, tensor in tensors.items()}


def _size(value: Tensor | list[bytes] | bytes) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return len(value) if isinstance(value, bytes) else sum(map(len, value))


def _opened(value: Tensor | list[bytes] | bytes) -> Any:
    """Return the frames of an episode, or a list of the bytes of each."""
    return decompress_image_seq(value) if isinstance(value, bytes) else value


def _packed(value: Tensor | list[bytes] | bytes) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, bytes):
        return {"episode": _byte_tensor(value)}
    return {
        "frames": _byte_tensor(b"".join(value)),
        "lengths": torch.tensor([*map(len, value)], dtype=torch.int64),
    }


def _byte_tensor(data: bytes) -> Tensor:
    """Return bytes as a tensor, which `torch.load` takes with `weights_only` too."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _unpacked(packed: Any) -> Tensor | list[bytes] | bytes:
    if isinstance(packed, Tensor):
        return packed.clone()
    if "episode" in packed:
        return bytes(np.asarray(packed["episode"]))
    data, lengths = bytes(np.asarray(packed["frames"])), np.asarray(packed["lengths"])
    if (lengths < 0).any() or lengths.sum() != len(data):
        raise ReplayError("frames that do not fit their lengths")
    ends = np.cumsum(lengths).tolist()
    return [data[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
