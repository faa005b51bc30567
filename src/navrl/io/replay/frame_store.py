"""A compressed replay: a ring of frames that takes a fraction of their memory and gives random
batches at full speed.

    store = FrameStore(1_000_000)
    store.extend({"observation": ..., "action": ..., "reward": ..., "terminated": ...,
    "next/observation": ...}) batch = store.sample(256, generator)

Lossless unless a key is given to `Rounded`. `next/X` costs nothing where it is the `X` of a later
frame.
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
from navrl.io.container.thread_pool import TaskThreads, usable_cores
from navrl.io.replay.codec_choice import choose_codec, codec_for_key, frame_codec, rounded_keys
from navrl.io.replay.columns import ChunkColumn, RawColumn, Ring, make_column
from navrl.io.replay.frame_codec import Array, ChunkLayout, FrameCodec, Kind
from navrl.io.replay.frame_input import (
    as_indices,
    as_tensor,
    as_words,
    check_kinds,
    common_length,
    in_one,
    length_of,
)
from navrl.io.replay.frame_state import pack_parts, read_parts
from navrl.io.replay.links import Link, alike
from navrl.io.replay.rounded import Rounded
from navrl.io.replay.workers import Workers

__all__ = ["FrameStore", "Rounded"]

CHUNK = 16  # frames; more save little, and a frame costs more to decode
ALIKE = 0.5  # of the first frames have to be told by the next, or `next/X` is a key like any other
TOLD = 4096  # of the first frames, and some of every stream, tell how to store all
MANY = 1024  # frames that are encoded before they are put in place

Codecs = Mapping[str, "str | Rounded"]


class FrameStore:
    """A ring of frames, the oldest of which give way when it is full.

    A frame is one row of every key. Keys may be nested (`next/observation`). What a key holds
    (element type and shape) is set by the first frames; so is its codec, unless it is given in
    `codecs` (`raw`, `delta`, `rows`, `lz4`, `Rounded(step)`).

    `streams` is how many environments take turns: with N of them, frame i + N follows frame i. It
    is found out from the first frames if they have a `next/X`.

    One thread may write while others read: a batch never shows half a frame.
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
        self._streams, self._workers = streams, Workers(threads or usable_cores())
        self._writing, self._lock = threading.RLock(), threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forget all frames, and what keys hold."""
        with self._writing, self._lock:
            self.kinds: dict[str, Kind] = {}
            self.rounded: dict[str, Rounded] = {}
            self.columns: dict[str, RawColumn | ChunkColumn] = {}
            self.links: dict[str, Link] = {}  # by X
            self.ring = Ring(self.capacity, self.chunk, 1)
            self.first: list[dict[str, Array]] = []  # what came before codecs were chosen

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
        """How every key is stored: the name of a codec, or `next frame`; empty until the first
        frames have come.
        """
        names = {
            key: column.codec.name if column.codec else "raw"
            for key, column in self.columns.items()
        }
        return {key: names.get(key, "next frame") for key in self.kinds} if names else {}

    def nbytes(self) -> int:
        """Return the bytes of memory that the frames take, with all tables."""
        with self._lock:
            parts = [*self.columns.values(), *self.links.values()]
            return sum(part.nbytes() for part in parts) + sum(
                w.nbytes for frames in self.first for w in frames.values()
            )

    def extend(self, frames: Mapping[str, Any]) -> Tensor:
        """Write frames behind the last; return their indices.

        Raises:
            ReplayError: keys, element types or shapes are not those of the first frames; nothing
                was stored.
        """
        with self._writing:
            words, count = self._words(frames)
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
        """Write frames at indices: where the next would go, as `extend` does, or over frames that
        are held.

        Rewriting is slow for compressed keys: their chunks are decoded and encoded again.

        Raises:
            ReplayError: keys, element types or shapes are not those of the first frames; nothing
                was stored.
            ReplayIndexError: an index is neither that of a frame nor that of the next; nothing was
                stored.
        """
        with self._writing:
            slots = as_indices(indices)
            # how many there are when it is a slot's turn
            ends = np.maximum.accumulate([len(self), *(slots[:-1] + 1)])
            self._check_held(slots, np.minimum(ends[: len(slots)] + 1, self.capacity))
            words, count = self._words(frames, due=len(slots))
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
        """Rewrite some keys of frames that are held; as fast as writing for keys that are kept
        `raw`.

        Raises:
            ReplayError: a key, its element type or its shape is not that of the frames; nothing was
                changed.
            ReplayIndexError: an index is not that of a frame that is held.
        """
        with self._writing:
            slots = as_indices(indices)
            words, _ = self._words(frames, some=True, due=len(slots))
            self._change(slots, words)

    def _change(self, slots: Array, words: dict[str, Array]) -> None:
        self._check_held(slots)
        # of frames for one index the last counts
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
            if name in words:  # the frames before lose the frame that told their next
                before = (slots - ring.streams) % ring.capacity
                before = before[before < ring.length]
                before = before if nexts is None else np.setdiff1d(before, slots)
                link.rewrite(before, self._read(before, {f"next/{name}"})[f"next/{name}"])
            if nexts is not None:
                link.rewrite(slots, nexts)
        for key in self.columns.keys() & words.keys():
            self.columns[key].write(slots, words[key])

    def _words(
        self, frames: Mapping[str, Any], *, some: bool = False, due: int | None = None
    ) -> tuple[dict[str, Array], int]:
        """Return frames as rows of whole numbers by key, and how many there are; of some keys, or
        of all.
        """
        if not hasattr(frames, "items") or not frames:
            raise ReplayError(f"frames are {shown(frames)}; expected arrays by name")
        kinds, words = {}, {}
        for key, value in frames.items():
            kinds[key], words[key] = as_words(key, value)
        count = common_length(words)
        if due is not None and count != due:
            raise ReplayError(f"{count} frames for {due} indices; expected as many")
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
        """Keep the first frames until they tell how to store them."""
        with self._lock:
            self.first.append(words)
            streams = self._find_streams()
            if streams is not None:
                self._open(streams)
            else:  # the caller may change what is theirs
                self.first[-1] = {key: rows.copy() for key, rows in words.items()}

    def _find_streams(self) -> int | None:
        """Return how many streams there are, or None while that is not known."""
        count, turn = self._waiting, length_of(self.first[0])
        full = count >= self.capacity
        if self._streams is not None:
            return self._streams if full or count >= 4 * max(self.chunk, self._streams) else None
        if count < 4 * self.chunk and not full:
            return None
        words = self._joined(TOLD + 8 * turn)
        names = self._linkable()
        if not names or turn == 1 or max(alike(words, name, 1) for name in names) >= ALIKE:
            return 1
        if count < 4 * turn and not full:
            return None
        if turn <= self.capacity // 2 and max(alike(words, name, turn) for name in names) >= ALIKE:
            return turn if full or count >= 8 * turn else None
        return 1

    def _joined(self, most: int | None = None) -> dict[str, Array]:
        """Return the first frames, or at most so many of them, in one piece."""
        return {key: in_one([part[key][:most] for part in self.first])[:most] for key in self.kinds}

    def _linkable(self) -> list[str]:
        """Return the X whose `next/X` is of the same kind, and rounded alike."""
        same = [
            key
            for key, kind in self.kinds.items()
            if kind.nbytes and self.kinds.get(f"next/{key}") == kind
        ]
        return [key for key in same if self.rounded.get(key) == self.rounded.get(f"next/{key}")]

    def _open(self, streams: int) -> None:
        """Choose codecs from the first frames, and write these."""
        size = self.chunk
        while size > 8 and size * streams > self.capacity // 4:
            size -= 8
        self.ring = Ring(self.capacity, size, streams)
        words = self._joined(TOLD + self.chunk * streams)
        linked = [name for name in self._linkable() if alike(words, name, streams) >= ALIKE]
        self.links = {name: Link(self._stored_kind(name), self.ring) for name in linked}
        told = {f"next/{name}" for name in linked}
        self.columns = {key: self._column(key, words[key]) for key in self.kinds if key not in told}
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
            layout = ChunkLayout(kind, ring.size)
            codec = choose_codec(layout, words, starts[tried], counts[tried], ring.streams)
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
                blocks = max(
                    1, min(MANY, count - done, self.capacity - ring.cursor) // ring.block_frames
                )
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
            if not blocks:  # not yet visible: readers know how many frames of the stage are
                chunks.stage[staged : staged + count] = words[key]
        encoded = {}
        if closes:
            sources = {
                key: words[key] if blocks else column.stage for key, column in compressed.items()
            }
            encoded = {
                key: column.encode(block, blocks or 1, sources[key])
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
        """Return frames by their indices, in new tensors; only some keys if these are given.

        Raises:
            ReplayIndexError: an index is not that of a frame that is held.
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
        """Return frames drawn at random, all equally likely, with replacement.

        Raises:
            ReplayError: there are no frames yet.
            ConfigError: `batch_size` is no whole number from 1 on.
        """
        batch_size = whole_number("batch_size", batch_size, 1, 1 << 40)
        with self._lock:
            if not len(self):
                raise ReplayError("the store is empty; extend it with frames before you sample")
            return self.get(torch.randint(len(self), (batch_size,), generator=generator))

    def batches(
        self, batch_size: int, generator: torch.Generator | None = None, *, ahead: int = 2
    ) -> Iterator[dict[str, Tensor]]:
        """Yield batches without end, `ahead` of them drawn by a thread while you work on the one
        before.

        The store must hold frames. They may be older than the last written by as many batches.
        """
        with TaskThreads(1, "navrl-replay-ahead") as thread:
            drawn = deque(thread.submit(self.sample, batch_size, generator) for _ in range(ahead))
            while True:
                drawn.append(thread.submit(self.sample, batch_size, generator))
                yield drawn.popleft().result()

    def _read(self, slots: Array, keys: Collection[str] | None = None) -> dict[str, Array]:
        chosen = [key for key in self.kinds if keys is None or key in keys]
        if not self.columns:
            joined = self._joined() if self.first else {}
            return {key: joined[key][slots] for key in chosen if joined}
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
        """Raise a ReplayIndexError for a slot that is not below the end, or not below its own
        end.
        """
        wrong = slots[(slots < 0) | (slots >= (len(self) if ends is None else ends))]
        if len(wrong):
            raise ReplayIndexError(
                f"index {wrong[0]} is outside; the store holds frames 0 to {len(self) - 1}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything as arrays and plain values, still compressed; a checkpoint can hold
        it.
        """
        with self._writing, self._lock:
            return pack_parts(self, self.capacity)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the store that `state_dict` was called on; codecs are those of the state.

        Raises:
            StateError: the state does not fit, or is damaged; the store is as it was.
        """
        parts = read_parts(state, self.capacity)
        with self._writing, self._lock:
            self.__dict__.update(parts.__dict__)
