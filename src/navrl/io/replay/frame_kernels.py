"""Compiled entry points of the replay store, without the GIL: encode chunks, decode a batch.

Frame `i` of the ring is in block `i // (K * N)`, with N streams and K frames of each in a block.
The frames of one stream (every N-th) in a block form a chunk, so that a chunk follows one drone
through time. The open block, which is being filled, is in a stage, uncompressed; its frames that
were not overwritten yet are still in the chunks of the previous round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from navrl.io.container.numba_memory import copy_bytes, inner, read_byte, read_u64, write_u64
from navrl.io.replay import delta_kernels, rows_kernels
from navrl.io.replay.liblz4 import (
    COMPRESS,
    COMPRESS_WITH,
    DECOMPRESS,
    DECOMPRESS_WITH,
    LOAD_DICTIONARY,
    LZ4_STATE,
    call_compress,
    call_compress_with,
    call_decompress,
    call_decompress_with,
    call_load_dictionary,
)
from navrl.kernel_cache import kernel

__all__ = [
    "DELTA",
    "LZ4",
    "ROWS",
    "copy_chunks",
    "decode_bytes",
    "decode_delta",
    "encode_bytes",
    "encode_delta",
    "first_bad_chunk",
    "scratch_bytes",
    "unequal_rows",
]

# exact arithmetic; the machine code is cached on disk
_entry = kernel(nogil=True, error_model="numpy")

DELTA, ROWS, LZ4 = range(3)  # formats
_LOW = np.uint64(0xFFFFFFFF)


@_entry
def copy_chunks(source: int, sizes: Any, targets: Any) -> None:
    """Copy blobs that lie one behind the other to their addresses."""
    for i in range(len(sizes)):
        copy_bytes(targets[i], source, sizes[i])
        source += sizes[i]


@_entry
def unequal_rows(one: int, other: int, rows: int, row_bytes: int, unequal: Any) -> None:
    """Set which rows at one address differ from those at the other in any byte."""
    for i in range(rows):
        differs, place = np.uint64(0), 0
        while place + 32 <= row_bytes and not differs:
            differs = read_u64(one + place) ^ read_u64(other + place)
            for ahead in range(8, 32, 8):
                differs |= read_u64(one + place + ahead) ^ read_u64(other + place + ahead)
            place += 32
        while place < row_bytes and not differs:
            differs = read_byte(one + place) ^ read_byte(other + place)
            place += 1
        unequal[i] = differs != np.uint64(0)
        one += row_bytes
        other += row_bytes


@_entry
def encode_delta(
    frames: int,
    features: int,
    word: int,
    starts: Any,
    counts: Any,
    stride: int,
    size: int,
    target: int,
    sizes: Any,
) -> None:
    """Encode chunks of `counts` frames from `starts` on, one behind the other at `target`."""
    scratch, lengths = np.empty((3, 64), np.uint64), np.zeros((2, 64), np.int64)
    for i in range(len(starts)):
        first = frames + starts[i] * features * word
        sizes[i] = delta_kernels.encode_chunk(
            first, features, word, stride, counts[i], size, target, scratch, lengths
        )
        target += sizes[i]


@_entry
def decode_delta(
    indices: Any,
    begin: int,
    end: int,
    paired: Any,
    ring: Any,
    stage: int,
    addresses: Any,
    out: int,
    following: int,
    features: int,
    word: int,
) -> None:
    """Fill rows `begin` to `end` of `out` with frames and, where `paired`, `following` too.

    `following` gets the frames after those. `ring` holds the capacity, K, N, the open block and
    how many of its frames are in the stage.
    """
    capacity, size, streams, opened, staged = ring[0], ring[1], ring[2], ring[3], ring[4]
    block_frames, row = size * streams, features * word
    for j in range(begin, end):
        index, target, rest = indices[j], out + j * row, 0
        if paired[j]:
            rest = following + j * row
        while target:
            block, place = index // block_frames, index % block_frames
            t, both = place // streams, 0
            if block == opened and place < staged:
                copy_bytes(target, stage + place * row, row)
            else:
                if rest and t + 1 < size and index + streams < capacity:
                    both = rest
                source = addresses[block * streams + place % streams]
                delta_kernels.decode_pair(source, t, size, features, word, target, both)
            target = 0 if both else rest
            rest = 0
            index = (index + streams) % capacity


def scratch_bytes(kind: int, frame_bytes: int, stride: int) -> int:
    """Return how much scratch `encode_bytes` and `decode_bytes` need from their caller.

    They cannot allocate it: compiled code frees an array after its last use as an array, even if
    its address is still in use.
    """
    return (
        rows_kernels.scratch_size(frame_bytes, stride)
        if kind == ROWS
        else max(LZ4_STATE, frame_bytes + 16)
    )


@_entry
def encode_bytes(
    kind: int,
    frames: int,
    frame_bytes: int,
    starts: Any,
    counts: Any,
    jump: int,
    size: int,
    stride: int,
    target: int,
    sizes: Any,
    bound: int,
    state: int,
    functions: Any,
) -> None:
    """Encode chunks of byte frames, as `encode_delta` does.

    `stride` is the length of a row; `state` is scratch of `scratch_bytes`.
    """
    for i in range(len(starts)):
        first = frames + starts[i] * frame_bytes
        if kind == ROWS:
            sizes[i] = rows_kernels.encode_chunk(
                first, frame_bytes, jump, counts[i], size, stride, target, state
            )
        else:
            room = bound - 4 * size
            sizes[i] = _compress_chunk(
                first, frame_bytes, jump, counts[i], size, target, room, state, functions
            )
        target += sizes[i]


@inner
def _compress_chunk(
    reference: int,
    frame_bytes: int,
    jump: int,
    number: int,
    size: int,
    target: int,
    room: int,
    state: int,
    functions: Any,
) -> int:
    """Write a chunk of lz4 blocks; return its bytes.

    It has the ends of all frames (4 bytes each), the first frame, and the others with the first as
    dictionary.
    """
    begin = target + 4 * size
    position: Any = np.int64(0)
    for t in range(size):
        if t < number:
            source = reference + t * jump * frame_bytes
            if t == 0:
                position += call_compress(
                    functions[COMPRESS], (source, begin + position, frame_bytes, room - position)
                )
            else:
                call_load_dictionary(functions[LOAD_DICTIONARY], (state, reference, frame_bytes))
                arguments = (state, source, begin + position, frame_bytes, room - position, 1)
                position += call_compress_with(functions[COMPRESS_WITH], arguments)
        write_u64(
            target + 4 * t, np.uint64(position) | (read_u64(target + 4 * t + 4) << np.uint64(32))
        )
    return 4 * size + position


@inner
def _decompress_frame(
    source: int, t: int, size: int, frame_bytes: int, out: int, held: int, functions: Any
) -> bool:
    """Write frame `t` to `out`; return False if it is damaged.

    `held` holds the first frame of the chunk.
    """
    begin = source + 4 * size
    start = np.int64(read_u64(source + 4 * t - 4) & _LOW) if t else 0
    length = np.int64(read_u64(source + 4 * t) & _LOW) - start
    if t == 0:
        copy_bytes(out, held, frame_bytes)
        return True
    arguments = (begin + start, out, length, frame_bytes, held, frame_bytes)
    return call_decompress_with(functions[DECOMPRESS_WITH], arguments) == frame_bytes


@_entry
def decode_bytes(
    kind: int,
    indices: Any,
    begin: int,
    end: int,
    paired: Any,
    ring: Any,
    stage: int,
    addresses: Any,
    out: int,
    following: int,
    frame_bytes: int,
    stride: int,
    held: int,
    functions: Any,
) -> bool:
    """Do what `decode_delta` does, for byte frames; return False if any is damaged.

    `held` is scratch of `scratch_bytes`.
    """
    capacity, size, streams, opened, staged = ring[0], ring[1], ring[2], ring[3], ring[4]
    block_frames = size * streams
    held_from, whole = np.int64(0), True
    for j in range(begin, end):
        for turn in range(2 if paired[j] else 1):
            index = indices[j] if turn == 0 else (indices[j] + streams) % capacity
            target = (out if turn == 0 else following) + j * frame_bytes
            block, place = index // block_frames, index % block_frames
            if block == opened and place < staged:
                copy_bytes(target, stage + place * frame_bytes, frame_bytes)
                continue
            source, t = addresses[block * streams + place % streams], place // streams
            if source != held_from:
                held_from = source
                if kind == ROWS:
                    rows_kernels.load_ranks(source, held)
                else:
                    length = np.int64(read_u64(source) & _LOW)
                    arguments = (source + 4 * size, held, length, frame_bytes)
                    whole &= call_decompress(functions[DECOMPRESS], arguments) == frame_bytes
            if kind == ROWS:
                whole &= rows_kernels.decode_frame(
                    source, t, size, frame_bytes, stride, target, held
                )
            else:
                whole &= _decompress_frame(source, t, size, frame_bytes, target, held, functions)
    return whole


@_entry
def first_bad_chunk(
    kind: int, source: int, stored: Any, counts: Any, features: int, word: int, size: int
) -> int:
    """Return the number of the first chunk that does not take exactly its bytes, or -1."""
    place = source
    for i in range(len(stored)):
        found: Any = np.int64(0)
        if kind == DELTA:
            found = delta_kernels.chunk_size(place, stored[i], features, word, size)
        elif kind == ROWS:
            found = rows_kernels.chunk_size(place, stored[i], features, size, counts[i])
        else:
            found = 4 * size
            for t in range(size if stored[i] >= 4 * size else 0):
                end = 4 * size + np.int64(read_u64(place + 4 * t) & _LOW)
                found = end if end >= found else np.int64(1) << 40
        if found != stored[i]:
            return i
        place += stored[i]
    return -1
