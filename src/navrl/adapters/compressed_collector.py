"""CompressedDataCollector: the rollouts of any collector as CompressedTensorDicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from navrl.adapters.compressed_tensordict import DEFAULT_CODEC, CompressedTensorDict
from navrl.adapters.forwarding import ForwardsToBase, FrameRate
from navrl.arguments import whole_number
from navrl.errors import ConfigError
from navrl.io.replay.compressed_rows import ChunkCodec
from navrl.io.rollouts.rollout_keys import Key

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from typing_extensions import Self

__all__ = ["CompressedDataCollector"]


class CompressedDataCollector(ForwardsToBase):
    """The rollouts of a collector as CompressedTensorDicts, for machines short of memory.

    With `batches_per_rollout` several batches of the collector make one rollout, each compressed as
    soon as it is complete: a collector of 4 steps and 8 batches per rollout never holds more than 4
    of 32 steps uncompressed. Frames are shuffled within a batch, so that `minibatches` of the
    rollout decompresses every frame once per epoch.

    Attributes that this class lacks are those of the base collector.

    Args:
        base_collector: yields TensorDicts; it is shut down with this one.
        compression_level: of the codec.
        compress: False yields plain TensorDicts instead; `decompress_minibatch` reads both.
        compress_keys: as in CompressedTensorDict.
        postproc: applied to each batch before it is compressed, for example to add advantages.
        batches_per_rollout: batches that are joined along time.
        codec: as in CompressedTensorDict.
        chunk_rows: as in CompressedTensorDict.
        seed: of the order of the frames; None to keep frames in order, so that a part of a rollout
            is read quickly.

    >>> import torch, navrl
    >>> from tensordict import TensorDict
    >>> batches = [TensorDict({"lidar": torch.zeros(4, 8, 36)}, [4, 8]) for _ in range(2)]
    >>> for rollout in navrl.CompressedDataCollector(batches):
    ...     print(navrl.decompress_minibatch(rollout, [0, 5]).batch_size)
    torch.Size([2])
    torch.Size([2])
    """

    return_same_td = False

    def __init__(
        self,
        base_collector: Iterable[Any],
        compression_level: int | None = 1,
        *,
        compress: bool = True,
        compress_keys: Sequence[Key] | None = None,
        postproc: Callable[[Any], Any] | None = None,
        batches_per_rollout: int = 1,
        codec: ChunkCodec | str = DEFAULT_CODEC,
        chunk_rows: int = 64,
        seed: int | None = 0,
    ) -> None:
        if not isinstance(compress, bool):
            raise ConfigError(
                f"compress is {compress!r}; expected True or False (the level is compression_level)"
            )
        if not isinstance(base_collector, Iterable):
            raise ConfigError(
                f"base_collector is a {type(base_collector).__name__}; expected a collector"
            )
        batches_per_rollout = whole_number("batches_per_rollout", batches_per_rollout, 1)
        self.base_collector = base_collector
        self.postproc = postproc
        self.batches_per_rollout = batches_per_rollout
        self.compress = compress
        self._keys = compress_keys
        self._level = compression_level
        self._codec = codec
        self._chunk_rows = chunk_rows
        self._shuffle = None if seed is None else torch.Generator().manual_seed(seed)
        self._rate = FrameRate()

    def __iter__(self) -> Iterator[CompressedTensorDict | TensorDictBase]:
        parts: list[Any] = []
        start = time.perf_counter()
        for batch in self.base_collector:
            self._rate.add(batch, time.perf_counter() - start)
            parts.append(self._kept(batch))
            del batch  # or it would live, uncompressed, while the next one is made
            if len(parts) == self.batches_per_rollout:
                yield _taken(parts)
            start = time.perf_counter()
        if parts:
            yield _taken(parts)

    def _kept(self, batch: Any) -> CompressedTensorDict | TensorDictBase:
        """Return a batch as it is kept until its rollout is complete: in memory of its own."""
        if self.postproc is not None:
            batch = self.postproc(batch)
        if not self.compress:
            return batch.clone() if getattr(self.base_collector, "return_same_td", True) else batch
        return CompressedTensorDict(
            batch,
            self._keys,
            level=self._level,
            codec=self._codec,
            chunk_rows=self._chunk_rows,
            shuffle=self._shuffle,
        )

    def __bool__(self) -> bool:
        return True  # whatever the base collector's length, if it has one

    def __len__(self) -> int:
        return -(-len(self.base_collector) // self.batches_per_rollout)

    def shutdown(self, **options: Any) -> None:
        """Shut the base collector down, if it can be."""
        close = getattr(self.base_collector, "shutdown", None) or getattr(
            self.base_collector, "close", None
        )
        if close is not None:
            close(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


def _taken(parts: list[Any]) -> CompressedTensorDict | TensorDictBase:
    """Return the parts as one rollout, and clear the list so that no memory is held twice."""
    if len(parts) == 1:
        whole = parts[0]
    else:
        whole = (
            CompressedTensorDict.joined(parts)
            if isinstance(parts[0], CompressedTensorDict)
            else torch.cat(parts, -1)
        )
    parts.clear()
    return whole
