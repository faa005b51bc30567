"""CompressedTensorDict: a rollout kept compressed, decompressed where it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from navrl.errors import ConfigError, missing_extra
from navrl.io.container.devices import usable_device
from navrl.io.replay.compressed_rows import ChunkCodec, CompressedRows
from navrl.io.rollouts.rollout_keys import Key

if TYPE_CHECKING:
    from typing_extensions import Self

try:
    from tensordict import TensorDict, TensorDictBase
except ImportError as error:
    raise missing_extra(f"{__name__} needs tensordict ({error})", "torchrl") from error

__all__ = ["DEFAULT_CODEC", "CompressedTensorDict"]

Path = tuple[str, ...]

DEFAULT_CODEC = "zstd"
_WORTH_BYTES = 64  # of a frame: smaller entries are not compressed unless they are named


class CompressedTensorDict:
    """A TensorDict some of whose entries are held compressed, and decompressed when they are read.

    `data[key]` gives an entry, whole; `data["next"]` of a nested one gives a CompressedTensorDict;
    `data[index]` gives a plain TensorDict, for which only the chunks that the index touches are
    decompressed. Keys nest as in TensorDict.

    What is read of a compressed entry is a new tensor: writing into it changes nothing here.
    Writing is by whole entries, `data[key] = tensor`, which are compressed if they are among
    `compress_keys`; writing through an index is refused. Everything is copied at the beginning, so
    the TensorDict may be written again afterwards.

    Args:
        data: what to compress.
        compress_keys: the entries to compress, by name; a nested TensorDict's name means all below
            it. By default every entry with at least 64 bytes a frame.
        level: of the codec.
        codec: the name of a codec of `navrl.io.container.codecs`, or an object with the methods of
            `ChunkCodec`.
        chunk_rows: frames that are compressed together, in the order of the flattened batch.
        shuffle: draws the order in which frames are put into chunks. Then `minibatches`
            decompresses every frame once.

    >>> import torch, navrl
    >>> from tensordict import TensorDict
    >>> data = TensorDict({"lidar": torch.zeros(64, 36), "reward": torch.ones(64)}, [64])
    >>> small = navrl.CompressedTensorDict(data, compress_keys=["lidar"])
    >>> small[3:5]["lidar"].shape, small["reward"].sum().item()
    (torch.Size([2, 36]), 64.0)
    """

    def __init__(
        self,
        data: TensorDictBase,
        compress_keys: Sequence[Key] | None = None,
        *,
        level: int | None = 1,
        codec: ChunkCodec | str = DEFAULT_CODEC,
        chunk_rows: int = 64,
        shuffle: torch.Generator | None = None,
    ) -> None:
        if not isinstance(data, TensorDictBase):
            raise ConfigError(f"data is a {type(data).__name__}; expected a TensorDict")
        self._level, self._codec, self._chunk_rows = level, codec, chunk_rows
        self.batch_size = torch.Size(data.batch_size)
        number = self.batch_size.numel()
        self._shuffled = shuffle is not None
        # frames by place
        self._order = None if shuffle is None else torch.randperm(number, generator=shuffle)
        # places by frame
        self._places = None if self._order is None else torch.argsort(self._order)
        paths = _chosen(data, compress_keys)
        self._compressed_paths = set(paths)
        self._device: dict[Path, torch.device] = {}
        self._packed: dict[Path, CompressedRows] = {}
        for path in paths:
            self._compress(path, data.get(path))
        self._plain = data.exclude(*paths).clone()

    def _compress(self, path: Path, value: Tensor) -> None:
        rows = value.reshape(self.batch_size.numel(), *value.shape[len(self.batch_size) :])
        self._packed[path] = CompressedRows.compress(
            rows,
            codec=self._codec,
            level=self._level,
            chunk_rows=self._chunk_rows,
            order=self._order,
        )
        self._device[path] = value.device

    # ------------------------------------------------------------------ what it is

    @property
    def shape(self) -> torch.Size:
        """The batch size."""
        return self.batch_size

    @property
    def device(self) -> torch.device | None:
        """Where entries are after they were read."""
        return self._plain.device

    def numel(self) -> int:
        """Return the number of frames."""
        return self.batch_size.numel()

    def __len__(self) -> int:
        return self.batch_size[0] if self.batch_size else 0

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the keys, as TensorDict does; nested ones as tuples."""
        leaves = [_path(key) for key in self._plain.keys(True, True)] + list(self._packed)
        nested = {
            path[:end]: None
            for path in leaves
            for end in range(1, len(path) + (0 if leaves_only else 1))
        }
        if leaves_only:
            nested = dict.fromkeys(leaves)
        paths = [path for path in nested if include_nested or len(path) == 1]
        return [path[0] if len(path) == 1 else path for path in paths]

    def __contains__(self, key: Key) -> bool:
        return _path(key) in {_path(known) for known in self.keys(include_nested=True)}

    @property
    def nbytes(self) -> int:
        """Bytes of all entries when none is compressed."""
        return self._plain.bytes() + sum(packed.nbytes for packed in self._packed.values())

    @property
    def stored_nbytes(self) -> int:
        """Bytes that are really kept."""
        places = (
            0
            if self._places is None or self._order is None
            else self._places.nbytes + self._order.nbytes
        )
        return (
            self._plain.bytes()
            + places
            + sum(packed.stored_nbytes for packed in self._packed.values())
        )

    def sizes(self) -> dict[Path, tuple[int, int]]:
        """Return (bytes, bytes kept) of each compressed entry."""
        return {
            path: (packed.nbytes, packed.stored_nbytes) for path, packed in self._packed.items()
        }

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({tuple(self.batch_size)}, {len(self._packed)} entries "
            "compressed, "
            f"{self.nbytes / 1e6:.1f} MB in {self.stored_nbytes / 1e6:.1f} MB)"
        )

    # ------------------------------------------------------------------ reading

    def get(self, key: Key, default: Any = None) -> Any:
        """Return an entry, whole, or a nested CompressedTensorDict; `default` if there is none."""
        path = _path(key)
        if path in self._packed:
            rows = self._packed[path].read(self._places).to(self._device[path])
            return rows.reshape(*self.batch_size, *rows.shape[1:])
        below = {inner[len(path) :]: inner for inner in self._packed if inner[: len(path)] == path}
        plain = self._plain.get(path, None)
        if not below:
            return default if plain is None else plain
        return self._part(below, TensorDict({}, self.batch_size) if plain is None else plain)

    def select(self, *keys: Key) -> CompressedTensorDict:
        """Return the named entries only; they are shared, not copied."""
        wanted = [_path(key) for key in keys]
        for path in wanted:
            self._refuse_unknown(path)
        kept = {
            path: path for path in self._packed if any(path[: len(key)] == key for key in wanted)
        }
        return self._part(kept, self._plain.select(*wanted, strict=False))

    def exclude(self, *keys: Key) -> CompressedTensorDict:
        """Return all but the named entries; they are shared, not copied."""
        unwanted = [_path(key) for key in keys]
        kept = {
            path: path
            for path in self._packed
            if not any(path[: len(key)] == key for key in unwanted)
        }
        return self._part(kept, self._plain.exclude(*unwanted))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (
            isinstance(index, tuple) and index and all(isinstance(part, str) for part in index)
        ):
            self._refuse_unknown(_path(index))
            return self.get(index)
        frames = torch.arange(self.numel()).reshape(self.batch_size)[_on_cpu(index)]
        return self._read(self._plain[index], frames)

    def to_tensordict(self) -> TensorDict:
        """Return a plain TensorDict with everything decompressed, in memory of its own."""
        result = self._plain.clone()
        for path in self._packed:
            result.set(path, self.get(path))
        return result

    def minibatches(
        self,
        size: int,
        generator: torch.Generator | None = None,
        *,
        keys: Sequence[Key] | None = None,
        drop_last: bool = False,
    ) -> Iterator[TensorDict]:
        """Yield every frame once, in random order, as plain TensorDicts of `size` frames; only
        `keys`, if given.

        With `shuffle` it is the chunks whose order is drawn: as they hold random frames, each
        minibatch is a random one, and decompresses nothing but itself when `size` is a multiple of
        `chunk_rows`. Without it any frame may be in any chunk, and each minibatch decompresses all
        chunks that it touches, which may be most of them.
        """
        if size < 1:
            raise ConfigError(f"minibatches of {size} frames; expected at least 1")
        source = self if keys is None else self.select(*keys)
        frames = source._random_frames(generator)
        flat = source._plain.reshape(-1)
        stop = len(frames) - len(frames) % size if drop_last else len(frames)
        for start in range(0, stop, size):
            chosen = frames[start : start + size]
            yield source._read(flat[chosen], chosen)

    def _random_frames(self, generator: torch.Generator | None) -> Tensor:
        if (
            self._order is None or not self._shuffled
        ):  # joined rollouts have an order, shuffled or not
            return torch.randperm(self.numel(), generator=generator)
        starts = (
            torch.randperm(-(-len(self._order) // self._chunk_rows), generator=generator)
            * self._chunk_rows
        )
        places = (starts[:, None] + torch.arange(self._chunk_rows)).flatten()
        frames = self._order[places[places < len(self._order)]]
        return frames[frames >= 0]  # a chunk of joined rollouts may have empty places

    def _read(self, plain: TensorDictBase, frames: Tensor) -> TensorDict:
        """Return a TensorDict of the plain entries and the compressed ones at given frames, of any
        shape.
        """
        flat = frames.reshape(-1)
        places = flat if self._places is None else self._places[flat]
        result = plain.copy()
        for path, packed in self._packed.items():
            rows = packed.read(places)
            result.set(path, rows.reshape(*frames.shape, *rows.shape[1:]).to(self._device[path]))
        return result

    # ------------------------------------------------------------------ writing

    def set(self, key: Key, value: Tensor) -> Self:
        """Set an entry, new or instead of the one there; compressed if it is among
        `compress_keys`.
        """
        path = _path(key)
        shape = tuple(getattr(value, "shape", ()))
        if shape[: len(self.batch_size)] != tuple(self.batch_size):
            raise ConfigError(
                f"{key!r} has the shape {shape}; expected one that begins with "
                f"{tuple(self.batch_size)}"
            )
        if path in self._compressed_paths:
            self._compress(path, value)
        else:
            self._plain.set(path, value)
        return self

    def __setitem__(self, key: Any, value: Tensor) -> None:
        if not isinstance(key, str) and not (
            isinstance(key, tuple) and all(isinstance(part, str) for part in key)
        ):
            raise TypeError(
                "a CompressedTensorDict is written by whole entries, data[key] = tensor; not "
                "through an index"
            )
        self.set(key, value)

    def to(self, device: torch.device | str) -> CompressedTensorDict:
        """Return one whose entries are on a device when they are read; what is compressed is
        shared.
        """
        place = usable_device(device)
        result = self._part({path: path for path in self._packed}, self._plain.to(place))
        result._device = dict.fromkeys(result._device, place)
        return result

    # ------------------------------------------------------------------ inside

    @classmethod
    def joined(cls, parts: Sequence[CompressedTensorDict]) -> CompressedTensorDict:
        """Return several as one, along the last dimension of the batch (time), without
        decompressing or copying them.
        """
        first = parts[0]
        result = first._part(
            {path: path for path in first._packed}, torch.cat([part._plain for part in parts], -1)
        )
        result.batch_size = torch.Size(result._plain.batch_size)
        for path in first._packed:
            result._packed[path] = CompressedRows.joined([part._packed[path] for part in parts])
        frames = torch.arange(result.numel()).reshape(result.batch_size)
        orders = []
        for part, its in zip(
            parts, frames.split([part.batch_size[-1] for part in parts], -1), strict=True
        ):
            its = its.reshape(-1) if part._order is None else its.reshape(-1)[part._order]
            orders.append(torch.cat([its, its.new_full((-len(its) % first._chunk_rows,), -1)]))
        result._order = torch.cat(orders)
        result._shuffled = all(part._shuffled for part in parts)
        used = result._order >= 0
        result._places = torch.empty(result.numel(), dtype=torch.int64)
        result._places[result._order[used]] = used.nonzero().squeeze(1)
        return result

    def _part(self, paths: Mapping[Path, Path], plain: TensorDictBase) -> CompressedTensorDict:
        """Return one that shares compressed entries with this one, under other names: new path ->
        path here.
        """
        result = object.__new__(type(self))
        result.__dict__.update(self.__dict__)
        result._plain = plain
        result._packed = {new: self._packed[path] for new, path in paths.items()}
        result._device = {new: self._device[path] for new, path in paths.items()}
        result._compressed_paths = set(result._packed)
        return result

    def _refuse_unknown(self, path: Path) -> None:
        if path not in self:
            raise KeyError(
                f"no entry {path if len(path) > 1 else path[0]!r}; there are "
                f"{self.keys(True, True)}"
            )


def _path(key: Key) -> Path:
    return (key,) if isinstance(key, str) else tuple(key)


def _on_cpu(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_on_cpu(part) for part in index)
    return index.cpu() if isinstance(index, Tensor) else index


def _chosen(data: TensorDictBase, keys: Sequence[Key] | None) -> list[Path]:
    """Return the paths of the tensors to compress."""
    frames = max(1, data.numel())
    leaves = {
        _path(key): value for key, value in data.items(True, True) if isinstance(value, Tensor)
    }
    if keys is None:
        return [path for path, value in leaves.items() if value.nbytes // frames >= _WORTH_BYTES]
    chosen = {}
    for key in keys:
        below = [path for path in leaves if path[: len(_path(key))] == _path(key)]
        if not below:
            raise ConfigError(
                f"compress_keys names {key!r}, which is no tensor of the data; there are "
                f"{sorted(leaves)}"
            )
        chosen.update(dict.fromkeys(below))
    return list(chosen)
