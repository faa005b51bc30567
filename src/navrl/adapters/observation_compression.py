"""Transforms of TorchRL that make rollouts small for a slow link, and whole again behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from navrl.errors import ConfigError, missing_extra
from navrl.io.replay.compressed_rows import ChunkCodec, read_message, write_message

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.envs.transforms import Transform
except ImportError as error:
    raise missing_extra(f"{__name__} needs torchrl and tensordict ({error})", "torchrl") from error

__all__ = ["CompressedLidarTransform", "ObservationCompression"]


class ObservationCompression(Transform):  # type: ignore[misc]
    """Replaces named entries of a rollout by compressed messages, and `inv` puts the entries back,
    exact.

    A message is a uint8 tensor, (length,), whose header says what it holds; a damaged one is
    refused. Its length has nothing to do with the batch, so a compressed rollout has an empty batch
    size; `inv` gives it back as well. Use it as the `postproc` of the collector on one side, and
    call `inv` on the other. It does not fit into an environment, whose observations must have a
    shape that is known beforehand.

    Args:
        in_keys: the entries to compress, such as `["lidar", ("next", "lidar")]`.
        level: of the codec.
        codec: the name of a codec of `navrl.io.container.codecs`, or an object with the methods of
            `ChunkCodec`.
    """

    invertible = True

    def __init__(
        self, in_keys: Sequence[Any], *, level: int | None = 1, codec: ChunkCodec | str = "zstd"
    ) -> None:
        if not in_keys:
            raise ConfigError(
                "in_keys is empty; name the entries to compress, such as ['lidar', ('next', "
                "'lidar')]"
            )
        super().__init__(
            in_keys=in_keys, out_keys=in_keys, in_keys_inv=in_keys, out_keys_inv=in_keys
        )
        self.level, self.codec = level, codec

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the rollout with messages instead of the named entries; what is given stays as it
        is.
        """
        note = {
            "batch": list(tensordict.batch_size),
            "names": tensordict.names if tensordict.batch_dims else [],
        }
        chosen = self._chosen(tensordict)
        result = TensorDict({}, [], tensordict.device)
        for key, value in tensordict.items(True, True):
            if key in chosen:
                value = write_message(value, codec=self.codec, level=self.level, note=note).to(
                    value.device
                )
            result.set(key, value)
        return result

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the rollout as it was before `forward`.

        Raises:
            ContainerError: a message was damaged on its way.
        """
        codec = None if isinstance(self.codec, str) else self.codec
        read = {
            key: read_message(tensordict.get(key), codec=codec) for key in self._chosen(tensordict)
        }
        note = next(iter(read.values()))[1]
        result = TensorDict({}, note["batch"], tensordict.device)
        for key, value in tensordict.items(True, True):
            result.set(key, read[key][0].to(value.device) if key in read else value)
        if any(note["names"]):
            result.names = note["names"]
        return result

    def _chosen(self, tensordict: TensorDictBase) -> list[Any]:
        """Return the keys of the entries that are compressed, or are to be."""
        known = set(tensordict.keys(True, True))
        missing = [key for key in self.in_keys if key not in known]
        if missing:
            raise ConfigError(
                f"the rollout has no {missing[0]!r} to compress; it has "
                f"{', '.join(sorted(map(str, known)))}"
            )
        return list(self.in_keys)

    def set_container(self, container: Any) -> None:
        """Refuse to be part of an environment."""
        raise ConfigError(
            f"{type(self).__name__} compresses whole rollouts: pass it to a collector as "
            "postproc=; in an environment "
            "its output would have another shape at each step"
        )


class CompressedLidarTransform(ObservationCompression):
    """An `ObservationCompression` of every entry named `lidar`, wherever it is in the rollout.

    Args:
        compression_level: of the codec.
        name: the last part of the keys to compress; `("next", "agents", "observation", "lidar")`
            ends with `lidar`.
        codec: as in ObservationCompression.

    >>> import torch, navrl
    >>> from tensordict import TensorDict
    >>> transform = navrl.CompressedLidarTransform()
    >>> small = transform(TensorDict({"lidar": torch.zeros(64, 36)}, [64]))
    >>> transform.inv(small)["lidar"].shape
    torch.Size([64, 36])
    """

    def __init__(
        self,
        compression_level: int | None = 1,
        *,
        name: str = "lidar",
        codec: ChunkCodec | str = "zstd",
    ) -> None:
        super().__init__([name], level=compression_level, codec=codec)
        self.name = name

    def _chosen(self, tensordict: TensorDictBase) -> list[Any]:
        known = list(tensordict.keys(True, True))
        chosen = [key for key in known if (key if isinstance(key, str) else key[-1]) == self.name]
        if not chosen:
            raise ConfigError(
                f"the rollout has no entry {self.name!r} to compress; it has "
                f"{', '.join(sorted(map(str, known)))}"
            )
        return chosen
