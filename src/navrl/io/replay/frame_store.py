"""FrameStore: a ring of compressed frames that returns random batches at full speed.

    store = FrameStore(1_000_000)
    store.extend({"observation": ..., "action": ..., "reward": ..., "next/observation": ...})
    batch = store.sample(256, generator)

Lossless, except for keys with the codec `Rounded`. `next/X` takes no memory where it is the `X` of
a later frame.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.arguments import whole_number
from navrl.errors import ConfigError, ReplayError, ReplayIndexError, shown
from navrl.io.container.codecs import find_codec
from navrl.io.container.thread_pool import TaskThreads
from navrl.io.replay.codec_choice import choose_codec, codec_for_key, frame_codec, rounded_keys
from navrl.io.replay.columns import ChunkColumn, RawColumn, Ring, make_column
from navrl.io.replay.first_frames import LEAST_LINKED, SAMPLE_FRAMES, find_streams, joined
from navrl.io.replay.frame_codec import Array, ChunkLayout, FrameChunks, FrameCodec, Kind
from navrl.io.replay.frame_input import (
    as_indices,
    as_integers,
    as_tensor,
    check_kinds,
    common_length,
    draw_indices,
    length_of,
)
from navrl.io.replay.frame_state import pack_parts, read_parts
from navrl.io.replay.links import Link, linked_share
from navrl.io.replay.rounded import Rounded
from navrl.io.replay.row_threads import RowThreads
from navrl.machine import usable_cores

__all__ = ["FrameStore", "Rounded"]

CHUNK = 16  # frames; more save little, and a frame costs more to decode
ENCODED_AT_ONCE = 1024  # frames that are encoded before the lock is taken to put them in place

Codecs = Mapping[str, "str | Rounded"]


class FrameStore:
    """A ring of frames; when it is full, the oldest are overwritten.

    A frame is one row of every key. Keys may be nested (`next/observation`). The first frames set
    the element type and shape of every key, and its codec, unless `codecs` names one (`raw`,
    `delta`, `rows`, `lz4`, `Rounded(step)`).

    `streams` is the number of environments whose frames are interleaved: with N of them, frame i +
    N follows frame i. It is found from the first frames if they have a `next/X`.

    One thread may write while others read: a batch never shows half a frame.

    >>> import torch, navrl
    >>> store = navrl.FrameStore(1000)
    >>> written = store.extend({"lidar": torch.zeros(64, 36), "reward": torch.ones(64)})
    >>> store.get([3, 5])["lidar"].shape
    torch.Size([2, 36])
    """

    def __init__(
        self,
        capacity: int,
        *,
        chunk: int = CHUNK,
        codecs: Codecs | None = None,
        streams: int | None = None,
        threads: int | None = None,
    ) -> None:
        capacity = whole_number("capacity", capacity, 1, 1 << 40)
        if chunk not in range(8, 65, 8):
            raise ConfigError(f"chunk={chunk!r}: expected 8, 16, 24, ... or 64 frames")
        if streams is not None:
            streams = whole_number("streams", streams, 1, capacity)
        if threads is not None:
            threads = whole_number("threads", threads, 1, 1024)
        for codec in (codecs or {}).values():
            if not isinstance(codec, Rounded):
                find_codec(codec, FrameCodec)
        self.capacity, self.chunk = capacity, chunk
        self.codecs = dict(codecs or {})
        self._streams, self._workers = streams, RowThreads(threads or usable_cores())
        self._writing, self._lock = threading.RLock(), threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Remove all frames, and forget element types, shapes and codecs."""
        with self._writing, self._lock:
            self.kinds: dict[str, Kind] = {}
            self.rounded: dict[str, Rounded] = {}
            self.columns: dict[str, RawColumn | ChunkColumn] = {}
            self.links: dict[str, Link] = {}  # by X
            self.ring = Ring(self.capacity, self.chunk, 1)
            self.first: list[dict[str, Array]] = []  # frames before codecs were chosen

    def __len__(self) -> int:
        with self._lock:
            return min(self.ring.total + self._waiting, self.capacity)

    @property
    def cursor(self) -> int:
        """The index of the next frame."""
        with self._lock:
            return (self.ring.cursor + self._waiting) % self.capacity

    @property
    def chosen(self) -> dict[str, str]:
        """How every key is stored: the name of a codec, or `next frame`.

        Empty until the first frames have come.
        """
        names = {key: column.codec.name for key, column in self.columns.items()}
        return {key: names.get(key, "next frame") for key in self.kinds} if names else {}

    def nbytes(self) -> int:
        """Return the bytes of memory that the frames take, with all tables."""
        with self._lock:
            parts = [*self.columns.values(), *self.links.values()]
            return sum(part.nbytes() for part in parts) + sum(
                w.nbytes for frames in self.first for w in frames.values()
            )

    def extend(self, frames: Mapping[str, Any]) -> Tensor:
        """Append frames and return their indices.

        Raises:
            ReplayError: keys, element types or shapes are not those of the first frames; nothing
                was stored.
        """
        with self._writing:
            words, count = self._integers(frames)
            indices = (self.cursor + np.arange(count)) % self.capacity
            if count:
                self._add(words, count)
        return torch.from_numpy(indices)

    def _add(self, words: dict[str, Array], count: int) -> None:
        if self.columns:
            self._append(words, count)
        else:
            self._begin(words)

    def set(self, indices: Any, frames: Mapping[str, Any]) -> None:
        """Write frames at indices: append at the next index, or overwrite stored frames.

        Overwriting is slow for compressed keys: their chunks are decoded and encoded again.

        Raises:
            ReplayError: keys, element types or shapes are not those of the first frames; nothing
                was stored.
            ReplayIndexError: an index is neither of a stored frame nor the next; nothing was
                stored.
        """
        with self._writing:
            slots = as_indices(indices)
            # how many frames there are when it is a slot's turn
            ends = np.maximum.accumulate([len(self), *(slots[:-1] + 1)])
            self._check_held(slots, np.minimum(ends[: len(slots)] + 1, self.capacity))
            words, count = self._integers(frames, due=len(slots))
            while count:
                ahead = slots == (self.cursor + np.arange(count)) % self.capacity
                appended = bool(ahead[0])
                taken = (
                    int(np.argmin(ahead)) or count
                    if appended
                    else int(np.argmax(slots == self.cursor)) or count
                )
                part = {key: rows[:taken] for key, rows in words.items()}
                self._add(part, taken) if appended else self._change(slots[:taken], part)
                slots = slots[taken:]
                words = {key: rows[taken:] for key, rows in words.items()}
                count = count - taken

    def update(self, indices: Any, frames: Mapping[str, Any]) -> None:
        """Overwrite some keys of stored frames; fast for keys with the codec `raw`.

        Raises:
            ReplayError: a key, its element type or its shape is not that of the frames; nothing was
                changed.
            ReplayIndexError: an index is not that of a stored frame.
        """
        with self._writing:
            slots = as_indices(indices)
            words, _ = self._integers(frames, some=True, due=len(slots))
            self._change(slots, words)

    def _change(self, slots: Array, words: dict[str, Array]) -> None:
        self._check_held(slots)
        # the last of several frames for one index wins
        _, last = np.unique(slots[::-1], return_index=True)
        chosen = len(slots) - 1 - last
        slots, words = slots[chosen], {key: rows[chosen] for key, rows in words.items()}
        with self._lock:
            if self.columns:
                self._rewrite(slots, words)
                return
            begins = np.cumsum([0, *map(length_of, self.first)])
            for part, begin, end in zip(self.first, begins, begins[1:], strict=False):
                here = (slots >= begin) & (slots < end)
                for key, rows in words.items():
                    part[key][slots[here] - begin] = rows[here]

    def _rewrite(self, slots: Array, words: dict[str, Array]) -> None:
        ring = self.ring
        for name, link in self.links.items():
            nexts = words.get(f"next/{name}")
            if name in words:  # the frames before them are no longer linked
                before = (slots - ring.streams) % ring.capacity
                before = before[before < ring.length]
                before = before if nexts is None else np.setdiff1d(before, slots)
                link.rewrite(before, self._read(before, {f"next/{name}"})[f"next/{name}"])
            if nexts is not None:
                link.rewrite(slots, nexts)
        for key in self.columns.keys() & words.keys():
            self.columns[key].write(slots, words[key])

    def _integers(
        self, frames: Mapping[str, Any], *, some: bool = False, due: int | None = None
    ) -> tuple[dict[str, Array], int]:
        """Return frames as rows of integers by key, validated, and how many there are."""
        if not hasattr(frames, "items") or not frames:
            raise ReplayError(f"frames are {shown(frames)}; expected arrays by name")
        kinds, words = {}, {}
        for key, value in frames.items():
            kinds[key], words[key] = as_integers(key, value)
        count = common_length(words)
        if due is not None and count != due:
            raise ReplayError(f"{count} frames for {due} indices; expected one for each")
        known = {key: kind for key, kind in self.kinds.items() if not some or key in kinds}
        if self.kinds or some:
            check_kinds(kinds, known)
        else:
            self.rounded = rounded_keys(self.codecs, kinds)
        for key in self.rounded.keys() & words.keys():
            words[key] = self.rounded[key].to_steps(key, words[key].view(kinds[key].element))
        if count and not self.kinds:
            self.kinds = kinds
        return words, count

    def _stored_kind(self, key: str) -> Kind:
        return Kind("uint32", self.kinds[key].shape) if key in self.rounded else self.kinds[key]

    @property
    def _waiting(self) -> int:
        return sum(length_of(part) for part in self.first)

    def _begin(self, words: dict[str, Array]) -> None:
        """Keep the first frames until they are enough to choose codecs."""
        with self._lock:
            self.first.append(words)
            streams = find_streams(
                self.first, self._linkable(), self.capacity, self.chunk, self._streams
            )
            if streams is not None:
                self._open(streams)
            else:  # the caller may overwrite its arrays
                self.first[-1] = {key: rows.copy() for key, rows in words.items()}

    def _linkable(self) -> list[str]:
        """Return the X whose `next/X` is of the same kind, and rounded alike."""
        same = [
            key
            for key, kind in self.kinds.items()
            if kind.nbytes and self.kinds.get(f"next/{key}") == kind
        ]
        return [key for key in same if self.rounded.get(key) == self.rounded.get(f"next/{key}")]

    def _open(self, streams: int) -> None:
        """Choose codecs from the first frames, and write these frames."""
        size = self.chunk
        while size > 8 and size * streams > self.capacity // 4:
            size -= 8
        self.ring = Ring(self.capacity, size, streams)
        words = joined(self.first, SAMPLE_FRAMES + self.chunk * streams)
        linked = [
            name for name in self._linkable() if linked_share(words, name, streams) >= LEAST_LINKED
        ]
        self.links = {name: Link(self._stored_kind(name), self.ring) for name in linked}
        derived = {f"next/{name}" for name in linked}
        self.columns = {
            key: self._column(key, words[key]) for key in self.kinds if key not in derived
        }
        parts, self.first = self.first, []
        for part in parts:
            self._append(part, length_of(part))

    def _column(self, key: str, words: Array) -> RawColumn | ChunkColumn:
        kind, ring, asked = self._stored_kind(key), self.ring, codec_for_key(self.codecs, key)
        if asked is not None:
            codec = frame_codec("delta" if isinstance(asked, Rounded) else asked, kind)
        else:
            _, starts, counts = ring.chunks_of(
                0, min(ring.blocks, max(1, len(words) // ring.block_frames))
            )
            counts = np.minimum(counts, (len(words) - starts + ring.streams - 1) // ring.streams)
            tried = np.flatnonzero(counts > 0)[:8]
            sample = FrameChunks(words, starts[tried], counts[tried], ring.streams)
            codec = choose_codec(ChunkLayout(kind, ring.size), sample)
        return make_column(kind, ring, codec)

    def _append(self, words: dict[str, Array], count: int) -> None:
        """Write frames piece by piece: whole blocks, or what fits into the open one."""
        done = 0
        while done < count:
            ring = self.ring
            block, staged = divmod(ring.cursor, ring.block_frames)
            left = ring.frames_of(block) - staged
            if staged or count - done < left:
                taken, blocks = min(left, count - done), 0
            else:
                most = min(ENCODED_AT_ONCE, count - done, self.capacity - ring.cursor)
                blocks = max(1, most // ring.block_frames)
                taken = min(blocks * ring.block_frames, self.capacity - ring.cursor)
            self._append_piece(
                {key: rows[done : done + taken] for key, rows in words.items()},
                block,
                staged,
                taken,
                blocks,
            )
            done += taken

    def _append_piece(
        self, words: dict[str, Array], block: int, staged: int, count: int, blocks: int
    ) -> None:
        ring = self.ring
        compressed = {
            key: column for key, column in self.columns.items() if isinstance(column, ChunkColumn)
        }
        closes = blocks or staged + count == ring.frames_of(block)
        for key, chunks in compressed.items():
            if not blocks:  # not visible yet: the ring says how many frames of the stage count
                chunks.stage[staged : staged + count] = words[key]
        encoded = {}
        if closes:
            encoded = {
                key: column.encode(block, blocks or 1, words[key] if blocks else column.stage)
                for key, column in compressed.items()
            }
        with self._lock:
            for name, link in self.links.items():
                link.append(words[name], words[f"next/{name}"])
            slots = (ring.cursor + np.arange(count)) % ring.capacity
            for key, column in self.columns.items():
                if isinstance(column, RawColumn):
                    column.write(slots, words[key])
                elif closes:
                    column.commit(*encoded[key])
            ring.cursor = (ring.cursor + count) % ring.capacity
            ring.total += count

    def get(self, indices: Any, keys: Collection[str] | None = None) -> dict[str, Tensor]:
        """Return frames by index, in new tensors; all keys, or some.

        Raises:
            ReplayIndexError: an index is not that of a stored frame.
        """
        slots = as_indices(indices)
        with self._lock:
            self._check_held(slots)
            unknown = [key for key in keys or () if key not in self.kinds]
            if unknown:
                raise ReplayError(f"no keys {unknown}; the frames have {list(self.kinds)}")
            words = self._read(slots, keys)
        return {key: self._tensor(key, rows) for key, rows in words.items()}

    def sample(
        self, batch_size: int, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return frames drawn uniformly at random, with replacement.

        Raises:
            ReplayError: there are no frames yet.
            ConfigError: `batch_size` is not a whole number of at least 1.
        """
        with self._lock:
            return self.get(draw_indices(len(self), batch_size, generator))

    def batches(
        self, batch_size: int, generator: torch.Generator | None = None, *, ahead: int = 2
    ) -> Iterator[dict[str, Tensor]]:
        """Yield batches without end; a thread draws `ahead` of them in advance.

        The store must hold frames. A batch may miss frames written after it was drawn.
        """
        with TaskThreads(1, "navrl-replay-ahead") as thread:
            drawn = deque(thread.submit(self.sample, batch_size, generator) for _ in range(ahead))
            while True:
                drawn.append(thread.submit(self.sample, batch_size, generator))
                yield drawn.popleft().result()

    def _read(self, slots: Array, keys: Collection[str] | None = None) -> dict[str, Array]:
        chosen = [key for key in self.kinds if keys is None or key in keys]
        if not self.columns:
            waiting = joined(self.first) if self.first else {}
            return {key: waiting[key][slots] for key in chosen if waiting}
        found: dict[str, Array] = {}
        for key, column in self.columns.items():
            link = self.links.get(key) if keys is None or f"next/{key}" in keys else None
            if key not in chosen and link is None:
                continue
            out = found[key] = np.empty((len(slots), column.kind.features), column.dtype)
            paired, following = np.zeros(len(slots), np.uint8), out
            if link is not None:
                paired = link.paired(slots)
                following = np.empty((len(slots), column.kind.features), column.dtype)
                found[f"next/{key}"] = following
            column.read(slots, paired, out, following, self._workers.split)
            if link is not None:
                link.fill(slots, paired, following)
        return {key: found[key] for key in chosen}

    def _tensor(self, key: str, words: Array) -> Tensor:
        kind = self.kinds[key]
        if key in self.rounded:
            return torch.from_numpy(self.rounded[key].from_steps(words, kind.element)).view(
                len(words), *kind.shape
            )
        return as_tensor(kind, words)

    def _check_held(self, slots: Array, ends: Array | None = None) -> None:
        """Raise a ReplayIndexError for an index at or beyond the end, or its own end."""
        wrong = slots[(slots < 0) | (slots >= (len(self) if ends is None else ends))]
        if len(wrong):
            raise ReplayIndexError(
                f"index {wrong[0]} is out of range; the store holds frames 0 to {len(self) - 1}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors and plain values, still compressed, for a checkpoint."""
        with self._writing, self._lock:
            return pack_parts(self, self.capacity)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, with the codecs of the state.

        Raises:
            StateError: the state does not fit, or is damaged; the store is unchanged.
        """
        parts = read_parts(state, self.capacity)
        with self._writing, self._lock:
            self.__dict__.update(parts.__dict__)
