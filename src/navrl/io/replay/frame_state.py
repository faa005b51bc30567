"""A replay store as tensors and plain values, still compressed, and back, validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from navrl.errors import StateError
from navrl.io.container.numba_memory import PADDING
from navrl.io.container.tensor_types import TORCH_DTYPES
from navrl.io.replay.codec_choice import frame_codec
from navrl.io.replay.columns import ChunkColumn, RawColumn, Ring, make_column
from navrl.io.replay.frame_codec import Array, Kind
from navrl.io.replay.frame_kernels import copy_chunks
from navrl.io.replay.links import Link
from navrl.io.replay.malformed_state import refusing_malformed
from navrl.io.replay.rounded import Rounded

__all__ = ["Parts", "pack_parts", "read_parts"]

VERSION = 1


class Parts:
    """What a store consists of."""

    kinds: dict[str, Kind]
    rounded: dict[str, Rounded]
    columns: dict[str, RawColumn | ChunkColumn]
    links: dict[str, Link]
    ring: Ring
    first: list[dict[str, Array]]


def pack_parts(parts: Parts | Any, capacity: int) -> dict[str, Any]:
    """Return the parts of a store as tensors and plain values.

    `torch.load` accepts them with `weights_only` too.
    """
    ring = parts.ring
    columns = {
        key: {**column.codec.describe(), **_with_checksum(_pack_column(column, ring))}
        for key, column in parts.columns.items()
    }
    return {
        "version": VERSION,
        "capacity": capacity,
        "size": ring.size,
        "streams": ring.streams,
        "cursor": ring.cursor,
        "total": ring.total,
        "columns": columns,
        "first": [
            _packed({key: rows.copy() for key, rows in part.items()}) for part in parts.first
        ],
        "kinds": {key: [kind.element, list(kind.shape)] for key, kind in parts.kinds.items()},
        "rounded": {key: rounded.step for key, rounded in parts.rounded.items()},
        "links": {key: _with_checksum(link.state()) for key, link in parts.links.items()},
    }


def _packed(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Return arrays as tensors; unsigned ones as signed, which every torch version can load."""
    signed = {
        name: array if array.dtype == np.uint8 else array.view(f"i{array.itemsize}")
        for name, array in arrays.items()
    }
    return {name: torch.from_numpy(array) for name, array in signed.items()}


def _with_checksum(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return arrays as tensors, with a checksum over all of them."""
    return {**_packed(arrays), "checksum": _checksum(arrays)}


def _checksum(arrays: Mapping[str, Array]) -> str:
    checksum = xxhash.xxh3_64()
    for name in sorted(arrays):
        checksum.update(name.encode())
        checksum.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


def _check_checksum(name: str, packed: Mapping[str, Any]) -> None:
    """Raise a StateError unless arrays match their checksum; older states have none."""
    arrays = {
        key: np.asarray(value)
        for key, value in packed.items()
        if isinstance(value, torch.Tensor | np.ndarray)
    }
    _expect(
        "checksum" not in packed or packed["checksum"] == _checksum(arrays),
        f"{name} was damaged: its checksum differs",
    )


def _pack_column(column: RawColumn | ChunkColumn, ring: Ring) -> dict[str, Any]:
    """Return a column as arrays: its frames, or its chunks one behind the other and the stage."""
    if isinstance(column, RawColumn):
        return {"frames": column.frames[: ring.length].copy()}
    sizes = column.arena.sizes.astype(np.int64)
    held = np.flatnonzero(sizes)
    blobs = np.zeros(int(sizes.sum()), np.uint8)
    begin = 0
    for number in held.tolist():
        column.arena.read(number, blobs[begin : begin + int(sizes[number])])
        begin += int(sizes[number])
    return {
        "blobs": blobs,
        "sizes": sizes,
        "stage": column.stage[: ring.cursor % ring.block_frames].copy(),
    }


def read_parts(state: Mapping[str, Any], capacity: int) -> Parts:
    """Return the parts of a store of some capacity.

    Raises:
        StateError: the state is not that of such a store, or is inconsistent.
    """
    with refusing_malformed("a replay store"):
        return _read_parts(state, capacity)


def _read_parts(state: Mapping[str, Any], capacity: int) -> Parts:
    _check_version(state, capacity)
    parts = Parts()
    parts.kinds = {key: _kind(*described) for key, described in state["kinds"].items()}
    parts.rounded = {key: Rounded(step) for key, step in state["rounded"].items()}
    parts.ring = ring = _ring(state, capacity)
    stored = {
        key: Kind("uint32", kind.shape) if key in parts.rounded else kind
        for key, kind in parts.kinds.items()
    }
    _check_checksums(state)
    parts.columns = {
        key: _column(key, stored[key], ring, packed) for key, packed in state["columns"].items()
    }
    parts.links = _links(state["links"], stored, parts)
    parts.first = _first(state["first"], stored, parts)
    stored_keys = {*parts.columns, *(f"next/{key}" for key in parts.links)}
    _expect(
        not parts.columns or stored_keys == set(parts.kinds),
        f"keys {sorted(stored_keys)}, expected {sorted(parts.kinds)}",
    )
    return parts


def _check_version(state: Mapping[str, Any], capacity: int) -> None:
    """Raise a StateError if a state is of another version or for another capacity."""
    if state["version"] != VERSION:
        raise StateError(
            f"a replay store of version {state['version']!r}, expected {VERSION}: update navrl"
        )
    if state["capacity"] != capacity:
        raise StateError(
            f"a replay store for {state['capacity']} frames, expected {capacity}: make one of "
            "that capacity"
        )


def _ring(state: Mapping[str, Any], capacity: int) -> Ring:
    size, streams, cursor, total = (
        int(state[name]) for name in ("size", "streams", "cursor", "total")
    )
    _expect(size in range(8, 65, 8) and 1 <= streams <= capacity and total >= 0, "impossible sizes")
    _expect(cursor == total % capacity, f"the next frame is {cursor}, expected {total % capacity}")
    return Ring(capacity, size, streams, cursor, total)


def _check_checksums(state: Mapping[str, Any]) -> None:
    for key, packed in [
        *state["columns"].items(),
        *((f"next/{key}", link) for key, link in state["links"].items()),
    ]:
        _check_checksum(key, packed)


def _links(
    packed_links: Mapping[str, Any], stored: Mapping[str, Kind], parts: Parts
) -> dict[str, Link]:
    links = {}
    for key, packed in packed_links.items():
        _expect(
            stored.get(f"next/{key}") == stored[key] and key in parts.columns,
            f"next/{key} cannot be linked",
        )
        links[key] = _link(key, stored[key], parts.ring, packed)
    return links


def _first(packed: Any, stored: Mapping[str, Kind], parts: Parts) -> list[dict[str, Array]]:
    """Return the frames that came before the store knew what to expect."""
    first = [
        {key: _words(f"first {key}", stored[key], rows, None) for key, rows in part.items()}
        for part in packed
    ]
    for part in first:
        _expect(
            part.keys() == parts.kinds.keys() and len({len(rows) for rows in part.values()}) == 1,
            "uneven first frames",
        )
    _expect(
        not (first and parts.columns) and (not first or parts.ring.total == 0),
        "first frames beside others",
    )
    _expect(
        sum(len(next(iter(part.values()))) for part in first) <= parts.ring.capacity,
        "too many first frames",
    )
    return first


def _expect(holds: bool, found: str) -> None:
    if not holds:
        raise StateError(f"not the state of a replay store: {found}; nothing was loaded")


def _kind(element: str, shape: Any) -> Kind:
    _expect(
        element in TORCH_DTYPES and all(type(n) is int and 0 <= n < 1 << 40 for n in shape),
        f"{element} {shape}",
    )
    return Kind(element, tuple(shape))


def _array(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    found = value.cpu().numpy() if isinstance(value, torch.Tensor) else value
    _expect(isinstance(found, np.ndarray), f"{name} is {type(value).__name__}, expected an array")
    if found.dtype == np.dtype(dtype.replace("u", "i")):
        found = found.view(dtype)
    _expect(
        found.dtype == np.dtype(dtype) and found.shape == shape,
        f"{name} is {found.dtype} {found.shape}, expected {np.dtype(dtype)} {shape}",
    )
    return np.ascontiguousarray(found)


def _words(name: str, kind: Kind, value: Any, count: int | None) -> Array:
    return _array(
        name, value, f"u{kind.word}", (len(value) if count is None else count, kind.features)
    ).copy()


def _column(key: str, kind: Kind, ring: Ring, packed: Mapping[str, Any]) -> RawColumn | ChunkColumn:
    column = make_column(kind, ring, frame_codec(packed["codec"], kind, packed["parameter"]))
    if isinstance(column, RawColumn):
        column.frames[: ring.length] = _words(key, kind, packed["frames"], ring.length)
        return column
    opened, staged = divmod(ring.cursor, ring.block_frames)
    column.stage[:staged] = _words(f"{key}: stage", kind, packed["stage"], staged)
    sizes = _array(f"{key}: sizes", packed["sizes"], "i8", column.arena.sizes.shape)
    _expect(bool(((sizes >= 0) & (sizes < 1 << 32)).all()), f"{key}: impossible sizes of chunks")
    blobs = _array(f"{key}: chunks", packed["blobs"], "u1", (int(sizes.sum()),))
    numbers, _, counts = ring.chunks_of(0, ring.blocks)
    needed = numbers // ring.streams < (ring.blocks if ring.total >= ring.capacity else opened)
    _expect(
        bool((sizes[numbers[needed]] > 0).all()) and int(sizes[numbers].sum()) == len(blobs),
        f"{key}: missing chunks",
    )
    held = numbers[sizes[numbers] > 0]
    padded = np.concatenate([blobs, np.zeros(PADDING, np.uint8)])
    wrong = column.codec.check(column.layout, padded, sizes[held], counts[sizes[numbers] > 0])
    _expect(wrong < 0, f"{key}: chunk {wrong} is damaged")
    copy_chunks(padded.ctypes.data, sizes[held], column.arena.place(held, sizes[held]))
    return column


def _link(key: str, kind: Kind, ring: Ring, packed: Mapping[str, Any]) -> Link:
    link = Link(kind, ring)
    slots = packed["slots"]
    slots = _array(f"{key}: exceptions", slots, "i8", (len(slots),))
    _expect(
        len(slots) == 0 or (slots.min() >= 0 and slots.max() < ring.length),
        f"{key}: exceptions of no frames",
    )
    _expect(len(np.unique(slots)) == len(slots), f"{key}: exceptions that repeat")
    tail = _words(f"{key}: tail", kind, packed["tail"], ring.streams)
    link.load(
        {
            "slots": slots,
            "frames": _words(f"{key}: exceptions", kind, packed["frames"], len(slots)),
            "tail": tail,
        }
    )
    return link
