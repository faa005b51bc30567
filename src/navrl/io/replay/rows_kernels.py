"""Kernels of the codec `rows`: bytes predicted by the row above; every frame stands for itself.

Bytes are replaced by their ranks among the values that the chunk uses, so that neighbouring levels
differ by one whatever their values are. Eight neighbours whose ranks equal those above take one
bit; others are differences packed into as few bits as the largest needs. All eight are computed at
once, in one 64-bit integer.

A chunk: 32 bytes, one bit for each byte value that is used (0 always is); 1 byte, how many of the
lowest values are ranked from 0 up, the others being ranked down from 255 (occupied = 255 and free =
0 are then neighbours); 4 bytes a frame, where it ends, counted from the end of this table; the
frames. A frame: one bit for each group of eight (1 = differs from the row above), then 0 up to a
whole byte; 4 bits for each that does, its width minus one; then as many bytes as the width, for
each that does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from navrl.io.container.numba_memory import (
    copy_bytes,
    inner,
    leading_zeros,
    popcount,
    read_byte,
    read_u16,
    read_u64,
    trailing_zeros,
    write_byte,
    write_u16,
    write_u64,
)

__all__ = [
    "chunk_bound",
    "chunk_size",
    "decode_frame",
    "encode_chunk",
    "load_ranks",
    "scratch_size",
]

PALETTE = 33  # bytes before the table of frames
_ONE, _NONE, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_BYTE = np.uint64(255)
_LOWEST = np.uint64(0x0101010101010101)
_HIGHEST = np.uint64(0x8080808080808080)
_UNUSED = np.uint64(256)  # instead of a value: no byte of the chunk has this rank


def chunk_bound(frame_bytes: int, frames: int) -> int:
    """Return the most bytes that a chunk can take."""
    groups = (frame_bytes + 7) // 8
    return PALETTE + frames * (4 + groups // 8 + groups // 2 + 8 * groups + 8) + 64


def scratch_size(frame_bytes: int, stride: int) -> int:
    """Return the bytes of scratch that encoding and decoding need."""
    return 1024 + 2 * (frame_bytes + stride + 64) + 32 * ((frame_bytes + 7) // 8)


@inner
def _add(a: Any, b: Any) -> Any:
    """Add eight bytes to eight bytes, each modulo 256."""
    return ((a & ~_HIGHEST) + (b & ~_HIGHEST)) ^ ((a ^ b) & _HIGHEST)


@inner
def _subtract(a: Any, b: Any) -> Any:
    return ((a | _HIGHEST) - (b & ~_HIGHEST)) ^ ((a ^ ~b) & _HIGHEST)


@inner
def _zigzag(d: Any) -> Any:
    negative = ((d & _HIGHEST) >> np.uint64(7)) * _BYTE
    return ((d & ~_HIGHEST) << _ONE) ^ negative


@inner
def _unzigzag(z: Any) -> Any:
    return ((z >> _ONE) & ~_HIGHEST) ^ ((z & _LOWEST) * _BYTE)


@inner
def _masks(width: Any) -> Any:
    """Return which bits stay in place when 8, 4, 2 numbers of a width are moved apart."""
    one = (_ONE << width) - _ONE
    two = (_ONE << (width * np.uint64(2))) - _ONE
    four = (_ONE << (width * np.uint64(4))) - _ONE
    return one * np.uint64(0x0001000100010001), two * np.uint64(0x0000000100000001), four


@inner
def _spread(x: Any, width: Any) -> Any:
    """Return eight numbers of `width` bits as eight bytes."""
    one, two, four = _masks(width)
    if width < 8:
        x &= (_ONE << (width * np.uint64(8))) - _ONE
    x = (x & four) | ((x & ~four) << (np.uint64(32) - width * np.uint64(4)))
    x = (x & two) | ((x & ~two) << (np.uint64(16) - width * np.uint64(2)))
    return (x & one) | ((x & ~one) << (np.uint64(8) - width))


@inner
def _gather(x: Any, width: Any) -> Any:
    """Return eight bytes, all below 2**width, side by side."""
    one, two, four = _masks(width)
    x = (x & one) | ((x >> (np.uint64(8) - width)) & (one << width))
    x = (x & two) | (
        (x >> (np.uint64(16) - width * np.uint64(2))) & (two << (width * np.uint64(2)))
    )
    return (x & four) | (
        (x >> (np.uint64(32) - width * np.uint64(4))) & (four << (width * np.uint64(4)))
    )


@inner
def _look_up(table: int, word: Any) -> Any:
    """Return eight bytes replaced through a table of 256."""
    result = _NONE
    for i in range(8):
        result |= read_byte(table + np.int64((word >> np.uint64(8 * i)) & _BYTE)) << np.uint64(
            8 * i
        )
    return result


@inner
def _values_of(table: int, ranks: Any) -> Any:
    """Return the values of eight ranks, and whether the chunk uses all of them."""
    values, entries = _NONE, _NONE
    for i in range(0, 64, 8):
        entry = read_u16(table + 2 * np.int64((ranks >> np.uint64(i)) & _BYTE))
        values |= (entry & _BYTE) << np.uint64(i)
        entries |= entry
    return values, entries < _UNUSED


@inner
def load_ranks(source: int, table: int) -> None:
    """Fill a table of 256 entries of 2 bytes with the value of every rank of a chunk."""
    for place in range(256):
        write_u16(table + 2 * place, _UNUSED)
    lower = np.int64(read_byte(source + 32))
    total = np.int64(0)
    for i in range(4):
        total += popcount(read_u64(source + 8 * i))
    rank = np.int64(0)
    for i in range(4):
        used = read_u64(source + 8 * i)
        while used:
            value = np.uint64(64 * i + trailing_zeros(used))
            used &= used - _ONE
            upper = 256 - total + rank
            write_u16(table + 2 * (rank if rank <= lower else upper), value)
            rank += 1


@inner
def _choose_ranks(
    frames: int,
    frame_bytes: int,
    jump: int,
    number: int,
    stride: int,
    target: int,
    values: int,
    table: int,
) -> None:
    """Write the palette of a chunk, and fill `table` with the rank of every value."""
    seen, crossings = np.zeros(256, np.int64), np.zeros(258, np.int64)
    seen[0] = 1
    for t in range(number):
        copy_bytes(values, frames + t * jump * frame_bytes, frame_bytes)
        for place in range(0, frame_bytes, 8):
            word, above = read_u64(values + place), read_u64(values + place - stride)
            if word == above:
                continue
            for i in range(0, 64, 8):
                value = np.int64((word >> np.uint64(i)) & _BYTE)
                other = np.int64((above >> np.uint64(i)) & _BYTE)
                seen[value] = 1
                if t == 0:
                    crossings[min(value, other) + 1] += 1
                    crossings[max(value, other) + 1] -= 1
    for i in range(4):
        write_u64(target + 8 * i, _NONE)
    ranks = np.zeros(257, np.int64)
    total = np.int64(0)
    for level in range(256):
        ranks[level] = total
        if seen[level]:
            write_byte(
                target + level // 8, read_byte(target + level // 8) | (_ONE << np.uint64(level % 8))
            )
            total += 1
    best, fewest, running = total - 1, np.int64(1) << 60, np.int64(0)
    for level in range(1, 256):
        running += crossings[level]
        if seen[level] and running <= fewest:
            best, fewest = ranks[level] - 1, running
    write_byte(target + 32, np.uint64(best))
    for level in range(256):
        rank = ranks[level]
        write_byte(table + level, np.uint64(rank if rank <= best else 256 - total + rank) & _BYTE)


@inner
def encode_chunk(
    frames: int,
    frame_bytes: int,
    jump: int,
    number: int,
    size: int,
    stride: int,
    target: int,
    scratch: int,
) -> int:
    """Write `number` frames, `jump` rows apart, as a chunk of `size`; return the bytes written.

    Missing frames take no bytes.
    """
    groups = (frame_bytes + 7) // 8
    values = scratch + 512 + stride + 8
    ranks = values + frame_bytes + stride + 32
    packed = ranks + frame_bytes + 32
    for i in range(-stride - 8, frame_bytes + 8):
        write_byte(values + i, _NONE)
        write_byte(ranks + i, _NONE)
    _choose_ranks(frames, frame_bytes, jump, number, stride, target, values, scratch)
    begin = target + PALETTE + 4 * size
    position = begin
    for t in range(size):
        if t < number:
            copy_bytes(values, frames + t * jump * frame_bytes, frame_bytes)
            position = _encode_frame(values, ranks, groups, stride, position, packed, scratch)
        write_u64(
            target + PALETTE + 4 * t,
            np.uint64(position - begin) | (read_u64(target + PALETTE + 4 * t + 4) << np.uint64(32)),
        )
    return position - target


@inner
def _encode_frame(
    values: int, ranks: int, groups: int, stride: int, target: int, packed: int, table: int
) -> int:
    widths = target + (groups + 7) // 8
    end: Any = packed
    count, differing = 0, _NONE
    for group in range(groups):
        place = 8 * group
        word, above = read_u64(values + place), read_u64(ranks + place - stride)
        rank = above
        if word != read_u64(values + place - stride):
            rank = _look_up(table, word)
            z = _zigzag(_subtract(rank, above))
            folded = z | (z >> np.uint64(32))
            folded |= folded >> np.uint64(16)
            folded |= folded >> np.uint64(8)
            width = np.uint64(64 - leading_zeros(folded & _BYTE))
            write_u64(end, _gather(z, width))
            end += np.int64(width)
            if count % 2:
                write_byte(
                    widths + count // 2,
                    read_byte(widths + count // 2) | ((width - _ONE) << np.uint64(4)),
                )
            else:
                write_byte(widths + count // 2, width - _ONE)
            count += 1
            differing |= _ONE << np.uint64(group % 8)
        write_u64(ranks + place, rank)
        if group % 8 == 7 or group == groups - 1:
            write_byte(target + group // 8, differing)
            differing = _NONE
    first = widths + (count + 1) // 2
    copy_bytes(first, packed, end - packed)
    return first + (end - packed)


@inner
def decode_frame(
    source: int, t: int, size: int, frame_bytes: int, stride: int, out: int, scratch: int
) -> bool:
    """Write frame `t` of a chunk to an address; return False if it is damaged.

    `scratch` holds the table of `load_ranks`.
    """
    groups = (frame_bytes + 7) // 8
    table = source + PALETTE
    begin: Any = table + 4 * size
    if t:
        begin += np.int64(read_u64(table + 4 * (t - 1)) & np.uint64(0xFFFFFFFF))
    values = scratch + 512 + stride + 8
    ranks = values + frame_bytes + stride + 32
    # zeros above the first row; the first group overwrites the last write
    for i in range(-stride, 0, 8):
        write_u64(values + i, _NONE)
        write_u64(ranks + i, _NONE)
    widths = begin + (groups + 7) // 8
    marked = np.int64(0)
    for i in range((groups + 7) // 8):
        marked += popcount(read_byte(begin + i))
    data = widths + (marked + 1) // 2
    count, whole = np.int64(0), True
    for base in range(0, groups, 64):
        differing = read_u64(begin + base // 8)
        for group in range(base, min(base + 64, groups)):
            place = 8 * group
            rank, word = read_u64(ranks + place - stride), read_u64(values + place - stride)
            if differing & _ONE:
                width = (
                    (read_byte(widths + (count >> 1)) >> np.uint64(4 * (count & 1))) & np.uint64(7)
                ) + _ONE
                count += 1
                rank = _add(rank, _unzigzag(_spread(read_u64(data), width)))
                data += np.int64(width)
                if place + 8 > frame_bytes:  # bytes behind the frame stand for nothing
                    rank &= (_ONE << np.uint64(8 * (frame_bytes - place))) - _ONE
                word, known = _values_of(scratch, rank)
                whole &= known
            differing >>= _ONE
            write_u64(ranks + place, rank)
            write_u64(values + place, word)
    copy_bytes(out, values, frame_bytes)
    return whole and count == marked  # else a bit behind the last group is set


@inner
def chunk_size(source: int, stored: int, frame_bytes: int, size: int, number: int) -> int:
    """Return the bytes that a chunk claims; -1 if more than `stored`, or invalid."""
    groups = (frame_bytes + 7) // 8
    table = source + PALETTE
    begin = table + 4 * size
    if begin - source > stored or not read_u64(source) & _ONE:
        return -1
    position: Any = begin
    for t in range(size):
        end = begin + np.int64(read_u64(table + 4 * t) & np.uint64(0xFFFFFFFF))
        if t >= number and end == position:
            continue
        if end < position + (groups + 7) // 8 or end > source + stored:
            return -1
        count, width = np.int64(0), np.int64(0)
        for i in range((groups + 7) // 8):
            byte = read_byte(position + i)
            if 8 * i + 8 > groups:
                byte &= (_ONE << np.uint64(groups - 8 * i)) - _ONE
            count += popcount(byte)
        widths = position + (groups + 7) // 8
        if widths + (count + 1) // 2 > end:
            return -1
        for i in range(count):
            width += (
                np.int64((read_byte(widths + (i >> 1)) >> np.uint64(4 * (i & 1))) & np.uint64(7))
                + 1
            )
        if widths + (count + 1) // 2 + width != end:
            return -1
        position = end
    return position - source
