"""TorchRL's prioritised samplers, which also run where TorchRL's compiled trees do not load.

    sampler = PrioritizedSampler(100_000, alpha=0.7, beta=0.5)
    buffer = TensorDictReplayBuffer(storage=CompressedStorage(100_000), sampler=sampler)

TorchRL's extension is compiled for one version of torch. Under another, the constructors of its
samplers raise a RuntimeError. These subclasses use TorchRL's trees where they load, and those of
`navrl.io.replay.segment_trees` elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch

from navrl.errors import ConfigError, missing_extra
from navrl.io.replay.segment_trees import MinTree, SumTree

try:
    from torchrl._extension import EXTENSION_WARNING
    from torchrl.data.replay_buffers import samplers as torchrl_samplers
    from torchrl.data.replay_buffers.samplers import prioritized as torchrl_prioritized
except ImportError as error:
    raise missing_extra(f"{__name__} needs torchrl and tensordict ({error})", "torchrl") from error

__all__ = ["PrioritizedSampler", "PrioritizedSliceSampler"]

TREES = [f"{kind}SegmentTreeFp{bits}" for kind in ("Sum", "Min") for bits in (32, 64)]


def extension_is_there() -> bool:
    """Tell whether TorchRL's compiled segment trees were loaded."""
    return all(getattr(torchrl_prioritized, name, None) is not None for name in TREES)


class _Trees:
    """What both samplers replace of TorchRL's: where the trees come from."""

    _max_capacity: int
    _device: torch.device | None
    dtype: torch.dtype

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with _without_extension_warning():
            super().__init__(*arguments, **options)

    def _init(self) -> None:
        if extension_is_there():
            super()._init()  # type: ignore[misc]
            return
        if self._device is not None and self._device.type != "cpu":
            raise ConfigError(
                f"device={str(self._device)!r}: priorities on a GPU need TorchRL's compiled trees, "
                f"which do not load with torch {torch.__version__}; leave `device` out to keep "
                "them on the CPU"
            )
        if self.dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"dtype={self.dtype}: expected torch.float32 or torch.float64")
        self._sum_tree = SumTree(self._max_capacity, self.dtype)
        self._min_tree = MinTree(self._max_capacity, self.dtype)
        self._max_priority = None


class PrioritizedSampler(_Trees, torchrl_samplers.PrioritizedSampler):  # type: ignore[misc]
    """TorchRL's `PrioritizedSampler`: the same arguments and draws.

    >>> import torch, navrl
    >>> from tensordict import TensorDict
    >>> from torchrl.data import LazyTensorStorage, ReplayBuffer
    >>> sampler = navrl.PrioritizedSampler(max_capacity=100, alpha=0.7, beta=0.5)
    >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=8)
    >>> frames = buffer.extend(TensorDict({"reward": torch.zeros(50)}, [50]))
    >>> buffer.update_priority(frames, torch.arange(50.0))
    >>> buffer.sample()["reward"].shape
    torch.Size([8])
    """


class PrioritizedSliceSampler(
    _Trees,
    torchrl_samplers.PrioritizedSliceSampler,  # type: ignore[misc]
):
    """TorchRL's `PrioritizedSliceSampler`: the same arguments and draws.

    >>> import torch, navrl
    >>> from tensordict import TensorDict
    >>> from torchrl.data import LazyTensorStorage, ReplayBuffer
    >>> sampler = navrl.PrioritizedSliceSampler(
    ...     max_capacity=100, alpha=0.7, beta=0.5, slice_len=5, traj_key="episode"
    ... )
    >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=10)
    >>> frames = buffer.extend(TensorDict({"episode": torch.arange(50) // 10}, [50]))
    >>> buffer.update_priority(frames, torch.ones(50))
    >>> buffer.sample()["episode"].shape
    torch.Size([10])
    """


@contextlib.contextmanager
def _without_extension_warning() -> Iterator[None]:
    """Keep TorchRL from logging that its sampler will not work: with these trees it does."""
    logger: logging.Logger = torchrl_prioritized.logger

    def other(record: logging.LogRecord) -> bool:
        return record.msg != EXTENSION_WARNING

    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)
