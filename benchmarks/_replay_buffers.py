"""The replay buffers under comparison: ours, TorchRL's, Stable-Baselines3's, cpprb, LZ4 blocks."""

from __future__ import annotations

import pickle
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol

import lz4.block
import numpy as np
import torch

from _replay_data import DRONES, Frames, in_turns

BATCH = 128


class Buffer(Protocol):
    """Takes segments of frames, gives random batches. Where it has a second way to draw one,
    `threaded`, the faster counts.
    """

    def add(self, frames: Frames) -> None: ...

    def sample(self) -> Any: ...


class Ours:
    """navrl.FrameStore: chunks, bit-packed differences, next observations stored once."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        from navrl import FrameStore

        self.store = FrameStore(capacity)

    def add(self, frames: Frames) -> None:
        self.store.extend(frames)

    def sample(self) -> Any:
        return self.store.sample(BATCH)

    def counted(self) -> int:
        return self.store.nbytes()


class OursInTurns(Ours):
    """navrl.FrameStore, 256 drones taking turns: a frame of each is added, then the next of
    each.
    """

    segments = staticmethod(in_turns)

    def __init__(self, capacity: int, frames: Frames) -> None:
        from navrl import FrameStore

        self.store = FrameStore(capacity, streams=DRONES)


def _tensordict(frames: Frames) -> Any:
    from tensordict import TensorDict

    later = ("reward", "terminated", "truncated")
    now = {
        key: torch.from_numpy(value)
        for key, value in frames.items()
        if key not in later and "/" not in key
    }
    after = {key: torch.from_numpy(frames[key])[:, None] for key in later}
    after["observation"] = torch.from_numpy(frames["next/observation"])
    after["done"] = after["terminated"] | after["truncated"]
    return TensorDict(
        {**now, "next": TensorDict(after, [len(frames["reward"])])}, [len(frames["reward"])]
    )


class TorchRL:
    """TorchRL's ReplayBuffer on one of its storages, or on ours."""

    def __init__(self, storage: Any, *, flat: bool = False) -> None:
        from torchrl.data import ReplayBuffer

        self.buffer = ReplayBuffer(storage=storage, batch_size=BATCH)
        self.storage = storage
        self._flat = flat

    def add(self, frames: Frames) -> None:
        data = _tensordict(frames)
        self.buffer.extend(data.flatten_keys("_") if self._flat else data)

    def sample(self) -> Any:
        return self.buffer.sample()


class OursUnderTorchRL(TorchRL):
    """navrl's CompressedStorage in TorchRL's ReplayBuffer."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        from navrl.adapters.torchrl_replay import CompressedStorage

        super().__init__(CompressedStorage(capacity))

    def counted(self) -> int:
        return self.storage.nbytes()


class LazyTensor(TorchRL):
    """TorchRL's LazyTensorStorage: tensors as they are."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        from torchrl.data import LazyTensorStorage

        super().__init__(LazyTensorStorage(capacity))


class CompressedList(TorchRL):
    """TorchRL's CompressedListStorage, with flat keys: nested ones it leaves as they are."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        from torchrl.data import CompressedListStorage

        super().__init__(CompressedListStorage(capacity), flat=True)


class StableBaselines3:
    """Stable-Baselines3's ReplayBuffer, one step at a time; its optimize_memory_usage would lose
    the last next observations.

    With it the next observation of an episode's last frame is the first one of the next episode:
    after a timeout, learning needs the true one, so these would not be the same frames.
    """

    def __init__(self, capacity: int, frames: Frames) -> None:
        import gymnasium
        from stable_baselines3.common.buffers import ReplayBuffer

        shape, dtype = frames["observation"].shape[1:], frames["observation"].dtype
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        space = gymnasium.spaces.Box(low, high, shape, dtype.type)
        actions = gymnasium.spaces.Box(-2, 2, (3,), np.float32)
        self.buffer = ReplayBuffer(
            capacity, space, actions, device="cpu", handle_timeout_termination=False
        )

    def add(self, frames: Frames) -> None:
        now, after, action = frames["observation"], frames["next/observation"], frames["action"]
        for row in range(len(action)):
            one = slice(row, row + 1)
            self.buffer.add(
                now[one],
                after[one],
                action[one],
                frames["reward"][one],
                frames["terminated"][one],
                [{}],
            )

    def sample(self) -> Any:
        return self.buffer.sample(BATCH)


class Cpprb:
    """cpprb, which stores next observations once, too, and compresses nothing: the floor of the
    time.
    """

    def __init__(self, capacity: int, frames: Frames) -> None:
        from cpprb import ReplayBuffer

        kinds = {
            key: {"shape": value.shape[1:] or 1, "dtype": value.dtype}
            for key, value in frames.items()
            if "/" not in key
        }
        self.buffer = ReplayBuffer(capacity, kinds, next_of=("observation",))

    def add(self, frames: Frames) -> None:
        named = {
            key.replace("/", "_"): value
            for key, value in frames.items()
            if key != "next/observation"
        }
        named["next_observation"] = frames["next/observation"]
        ends = np.flatnonzero(frames["terminated"] | frames["truncated"]) + 1
        for begin, end in pairwise(np.unique([0, *ends, len(frames["reward"])]).tolist()):
            self.buffer.add(**{key: value[begin:end] for key, value in named.items()})
            # or the next observation of the last frame would be that of the next episode
            self.buffer.on_episode_end()

    def sample(self) -> Any:
        return self.buffer.sample(BATCH)


def _packed(value: Any, level: int = 9) -> bytes:
    mode = {"mode": "high_compression", "compression": level} if level else {}
    return lz4.block.compress(pickle.dumps(value, protocol=5), **mode)


def _stacked(rows: Iterable[Frames]) -> dict[str, torch.Tensor]:
    found = list(rows)
    return {key: torch.from_numpy(np.stack([row[key] for row in found])) for key in found[0]}


class Blocks:
    """Pickles in LZ4 blocks; batches are drawn by the caller, or by a pool of threads."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        self._pool, self._blocks, self._random = ThreadPoolExecutor(4), [], np.random.default_rng(0)

    def _draw(self, mapped: Callable[..., Iterable[Frames]]) -> Any:
        return _stacked(
            mapped(self._frame, self._random.integers(0, self._count(), BATCH).tolist())
        )

    def sample(self) -> Any:
        return self._draw(map)

    def threaded(self) -> Any:
        return self._draw(self._pool.map)

    def counted(self) -> int:
        return sum(map(sys.getsizeof, self._blocks)) + 8 * len(self._blocks)


class FrameBlocks(Blocks):
    """A pickle in an LZ4-9 block for each frame; the faster of with and without a pool of
    threads.
    """

    level = 9

    def add(self, frames: Frames) -> None:
        count = len(frames["reward"])
        self._blocks += [
            _packed({key: value[row] for key, value in frames.items()}, self.level)
            for row in range(count)
        ]

    def _count(self) -> int:
        return len(self._blocks)

    def _frame(self, index: int) -> Frames:
        return pickle.loads(lz4.block.decompress(self._blocks[index]))


class FastFrameBlocks(FrameBlocks):
    """A pickle in an LZ4 block of the default level for each frame; the faster of with and without
    a pool of threads.
    """

    level = 0


class EpisodeBlocks(Blocks):
    """A pickle in an LZ4-9 block for each episode; the faster of with and without a pool of
    threads.
    """

    def __init__(self, capacity: int, frames: Frames) -> None:
        super().__init__(capacity, frames)
        self._ends: list[int] = []

    def add(self, frames: Frames) -> None:
        self._blocks.append(_packed(frames))
        self._ends.append(self._count() + len(frames["reward"]))

    def _count(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _frame(self, index: int) -> Frames:
        episode = bisect_right(self._ends, index)
        frames = pickle.loads(lz4.block.decompress(self._blocks[episode]))
        offset = index - (self._ends[episode - 1] if episode else 0)
        return {key: value[offset] for key, value in frames.items()}


BUFFERS = {
    "navrl": Ours,
    "navrl, in turns": OursInTurns,
    "navrl in TorchRL": OursUnderTorchRL,
    "LazyTensorStorage": LazyTensor,
    "CompressedListStorage": CompressedList,
    "Stable-Baselines3": StableBaselines3,
    "cpprb": Cpprb,
    "LZ4-9 per frame": FrameBlocks,
    "LZ4 per frame": FastFrameBlocks,
    "LZ4-9 per episode": EpisodeBlocks,
}
PACKAGE_OF = {
    "navrl in TorchRL": "torchrl",
    "LazyTensorStorage": "torchrl",
    "CompressedListStorage": "torchrl",
    "Stable-Baselines3": "stable_baselines3",
    "cpprb": "cpprb",
}
