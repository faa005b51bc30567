"""The replay buffers that are compared: ours, TorchRL's, Stable-Baselines3's, cpprb, and the designs with one LZ4 block a
frame or an episode."""  # noqa: D209

from __future__ import annotations

import pickle
import sys
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import lz4.block
import numpy as np
import torch

from _replay_data import Frames

BATCH = 128


class Buffer(Protocol):
    """Takes segments of frames, gives random batches."""

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


def _tensordict(frames: Frames) -> Any:
    from tensordict import TensorDict

    later = ("reward", "terminated", "truncated")
    now = {key: torch.from_numpy(value) for key, value in frames.items() if key not in later and "/" not in key}
    after = {key: torch.from_numpy(frames[key])[:, None] for key in later}
    after["observation"] = torch.from_numpy(frames["next/observation"])
    after["done"] = after["terminated"] | after["truncated"]
    return TensorDict({**now, "next": TensorDict(after, [len(frames["reward"])])}, [len(frames["reward"])])


class TorchRL:
    """TorchRL's ReplayBuffer on one of its storages, or on ours."""

    def __init__(self, storage: Any, *, flat: bool = False) -> None:
        from torchrl.data import ReplayBuffer

        self.buffer, self.storage, self._flat = ReplayBuffer(storage=storage, batch_size=BATCH), storage, flat

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
    """Stable-Baselines3's ReplayBuffer, which takes one step at a time."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        import gymnasium
        from stable_baselines3.common.buffers import ReplayBuffer

        shape, dtype = frames["observation"].shape[1:], frames["observation"].dtype
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        space = gymnasium.spaces.Box(low, high, shape, dtype.type)
        actions = gymnasium.spaces.Box(-2, 2, (3,), np.float32)
        self.buffer = ReplayBuffer(capacity, space, actions, device="cpu", handle_timeout_termination=False)

    def add(self, frames: Frames) -> None:
        now, after, action = frames["observation"], frames["next/observation"], frames["action"]
        for row in range(len(action)):
            one = slice(row, row + 1)
            self.buffer.add(now[one], after[one], action[one], frames["reward"][one], frames["terminated"][one], [{}])

    def sample(self) -> Any:
        return self.buffer.sample(BATCH)


class Cpprb:
    """cpprb, which stores next observations once, too, and compresses nothing: the floor of the time."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        from cpprb import ReplayBuffer

        kinds = {key: {"shape": value.shape[1:] or 1, "dtype": value.dtype} for key, value in frames.items() if "/" not in key}
        self.buffer = ReplayBuffer(capacity, kinds, next_of=("observation",))

    def add(self, frames: Frames) -> None:
        named = {key.replace("/", "_"): value for key, value in frames.items() if key != "next/observation"}
        self.buffer.add(**named, next_observation=frames["next/observation"])
        self.buffer.on_episode_end()

    def sample(self) -> Any:
        return self.buffer.sample(BATCH)


def _packed(value: Any) -> bytes:
    return lz4.block.compress(pickle.dumps(value, protocol=5), mode="high_compression", compression=9)


class FrameBlocks:
    """A pickle in an LZ4-9 block for each frame, decompressed by a pool of threads."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        self._pool, self._frames, self._random = ThreadPoolExecutor(4), [], np.random.default_rng(0)

    def add(self, frames: Frames) -> None:
        count = len(frames["reward"])
        self._frames += [_packed({key: value[row] for key, value in frames.items()}) for row in range(count)]

    def sample(self) -> Any:
        chosen = self._random.integers(0, len(self._frames), BATCH).tolist()
        rows = list(self._pool.map(lambda index: pickle.loads(lz4.block.decompress(self._frames[index])), chosen))
        return {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in rows[0]}

    def counted(self) -> int:
        return sum(map(sys.getsizeof, self._frames)) + 8 * len(self._frames)


class EpisodeBlocks:
    """A pickle in an LZ4-9 block for each episode."""

    def __init__(self, capacity: int, frames: Frames) -> None:
        self._pool, self._random = ThreadPoolExecutor(4), np.random.default_rng(0)
        self._episodes: list[bytes] = []
        self._ends: list[int] = []

    def add(self, frames: Frames) -> None:
        self._episodes.append(_packed(frames))
        self._ends.append((self._ends[-1] if self._ends else 0) + len(frames["reward"]))

    def _frame(self, index: int) -> Frames:
        episode = bisect_right(self._ends, index)
        frames = pickle.loads(lz4.block.decompress(self._episodes[episode]))
        offset = index - (self._ends[episode - 1] if episode else 0)
        return {key: value[offset] for key, value in frames.items()}

    def sample(self) -> Any:
        rows = list(self._pool.map(self._frame, self._random.integers(0, self._ends[-1], BATCH).tolist()))
        return {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in rows[0]}

    def counted(self) -> int:
        return sum(map(sys.getsizeof, self._episodes))


BUFFERS = {
    "navrl": Ours,
    "navrl in TorchRL": OursUnderTorchRL,
    "LazyTensorStorage": LazyTensor,
    "CompressedListStorage": CompressedList,
    "Stable-Baselines3": StableBaselines3,
    "cpprb": Cpprb,
    "LZ4 per frame": FrameBlocks,
    "LZ4 per episode": EpisodeBlocks,
}
PACKAGE_OF = {
    "navrl in TorchRL": "torchrl",
    "LazyTensorStorage": "torchrl",
    "CompressedListStorage": "torchrl",
    "Stable-Baselines3": "stable_baselines3",
    "cpprb": "cpprb",
}
