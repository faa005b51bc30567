"""DictReplayBuffer: whole episodes in, random frames out, for any mix of images and vectors.

Episodes may have any lengths; the oldest are removed first. Frames of 256 bytes and more can be
kept compressed, each by itself (`img_compressed="frame"`, fast to sample) or an episode at a time
(`"episode"`, smallest, slow to sample). For an endless stream of frames `navrl.FrameStore` is
smaller and faster than both.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.arguments import whole_number
from navrl.errors import ConfigError, ReplayError, StateError, shown
from navrl.io.container.devices import usable_device
from navrl.io.replay.frame_input import draw_indices
from navrl.io.replay.images import (
    compress_image,
    compress_image_seq,
    decompress_image,
    decompress_image_seq,
)
from navrl.io.replay.malformed_state import refusing_malformed
from navrl.io.replay.prefix_sum import PrefixSum
from navrl.io.replay.row_threads import RowThreads
from navrl.machine import usable_cores

__all__ = ["DictReplayBuffer"]

IMAGE = 256  # bytes of a frame from which on it is compressed
MODES = {False: None, True: "frame", "frame": "frame", "episode": "episode"}

Kinds = dict[str, tuple[torch.dtype, tuple[int, ...]]]
Episode = dict[str, "Tensor | list[bytes] | bytes"]


class DictReplayBuffer:
    """Whole episodes of named arrays, of which random frames are drawn.

    `max_size` counts frames. An episode must have the `keys` (default: those of the first
    episode); its others are ignored. Batches are dicts of tensors on `device`.

    >>> import numpy as np, navrl
    >>> buffer = navrl.DictReplayBuffer(max_size=1000)
    >>> buffer.add({"image": np.zeros((20, 1, 32, 32), np.float32), "reward": np.ones(20)})
    >>> buffer.sample(8)["image"].shape
    torch.Size([8, 1, 32, 32])
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
        self._workers = RowThreads(threads or usable_cores())
        self._episodes: deque[Episode] = deque()
        self._lengths = PrefixSum(max_size)

    def __len__(self) -> int:
        """The number of frames."""
        with self._lock:
            return self._lengths.total

    @property
    def num_episodes(self) -> int:
        """How many episodes are stored."""
        with self._lock:
            return len(self._episodes)

    @property
    def episode_lens_prefix_sum(self) -> PrefixSum:
        """Which episode each frame is in, kept up to date; for reading only."""
        return self._lengths

    def nbytes(self) -> int:
        """Return the bytes of the frames as they are stored."""
        with self._lock:
            return sum(_size(value) for episode in self._episodes for value in episode.values())

    def add(self, episode: Mapping[str, Any]) -> None:
        """Add a whole episode: an array or tensor (T, ...), or a list of T frames, for every key.

        The oldest episodes are removed to make room.

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
        """Return frames drawn uniformly at random, with replacement.

        Raises:
            ReplayError: there are no frames yet.
            ConfigError: `batch_size` is not a whole number of at least 1.
        """
        with self._lock:
            return self._read(draw_indices(len(self), batch_size, generator).tolist())

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
            # in order, so that an episode is decompressed once
            for number, group in groupby(places[begin:end], key=itemgetter(0)):
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
            raise ReplayError(f"an episode that differs from the first: {'; '.join(wrong)}")
        return tensors

    def _stored(self, tensor: Tensor) -> Tensor | list[bytes] | bytes:
        if self.mode is None or tensor[0].nbytes < IMAGE:
            return tensor.clone()
        if self.mode == "frame":
            return [compress_image(frame, level=None) for frame in tensor]
        return compress_image_seq(tensor, level=None)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors and plain values, still compressed."""
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
        """Restore what `state_dict` returned; the device stays.

        Raises:
            StateError: the state does not fit, or is damaged; the buffer is unchanged.
        """
        loaded = DictReplayBuffer(self.max_size, self.keys, self.device)
        with refusing_malformed("a DictReplayBuffer"):
            loaded._load(state)
        if len(loaded) > self.max_size:
            raise StateError(
                f"a state of {len(loaded)} frames, expected at most {self.max_size}; nothing was "
                "loaded"
            )
        with self._lock:
            self.mode, self.kinds = loaded.mode, loaded.kinds
            self._episodes, self._lengths = loaded._episodes, loaded._lengths

    def _load(self, state: Mapping[str, Any]) -> None:
        """Fill this empty buffer from a state, every episode checked."""
        if state["max_size"] != self.max_size:
            raise StateError(
                f"a buffer for {state['max_size']} frames, expected one for {self.max_size}"
            )
        if state["mode"] not in MODES.values():
            raise StateError(
                f"a buffer of mode {state['mode']!r}, expected one of "
                f"{', '.join(map(str, MODES.values()))}"
            )
        self.mode = state["mode"]
        names = self.keys or tuple(state["keys"])
        for packed in state["episodes"]:
            stored: Episode = {key: _unpacked(packed[key]) for key in names}
            whole = {key: _whole(value) for key, value in stored.items()}
            self.kinds = _kinds(self._checked(whole))
            self._episodes.append(stored)
            self._lengths.append(len(next(iter(whole.values()))))


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
    except (TypeError, ValueError, RuntimeError) as error:  # different shapes, or not numbers
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


def _whole(value: Tensor | list[bytes] | bytes) -> Any:
    """Return all frames of an episode in one tensor."""
    frames = _opened(value)
    if isinstance(frames, list):
        return torch.stack([decompress_image(frame) for frame in frames])
    return frames


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
    """Return bytes as a tensor, which `torch.load` accepts with `weights_only`."""
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
