"""Kernels of the codec `delta`: differences from frame to frame, feature by feature.

A feature that is zero in the whole chunk takes one bit. Of the others, zeros are marked in a mask;
the rest is stored as differences (or differences of differences) of the bit patterns, packed into
as few bits as most of them need, and as whole integers where a difference needs more. Frames are
decoded one by one: the walk goes from the last whole integer to the frame that is wanted.

A chunk is one bit a feature (little-endian, 1 = not all zero), followed for each such feature by:

    1 byte     bits 0-4: width of a difference (halved for 64-bit integers); flags in bits 5-7:
               SECOND (second differences), HOLES, RESTARTS
    K/8 bytes  if HOLES: the frames in which the feature is zero
    K/8 bytes  if RESTARTS: which of the others are whole integers (else only the first is)
    integers   the whole integers
    bits       the differences, zigzag, packed from the lowest bit on, padded to a byte
"""

from __future__ import annotations

from typing import Any

import numpy as np

from navrl.io.container.numba_memory import (
    clear_bytes,
    inner,
    leading_zeros,
    popcount,
    read_byte,
    read_u64,
    read_word,
    trailing_zeros,
    write_byte,
    write_u64,
    write_word,
)

__all__ = ["chunk_bound", "chunk_size", "decode_pair", "encode_chunk"]

SECOND, HOLES, RESTARTS = 32, 64, 128
_ONE, _NONE, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
WIDEST = 56  # bits that eight bytes hold at any bit offset


def chunk_bound(features: int, word: int, frames: int) -> int:
    """Return the most bytes that a chunk can take."""
    return (features + 7) // 8 + features * (1 + frames // 4 + word * (frames + 1)) + 16


@inner
def _below(count: int) -> Any:
    """Return an integer whose lowest `count` bits are set, `count` from 0 to 64."""
    if count >= 64:
        return _ALL
    return (_ONE << np.uint64(count)) - _ONE


@inner
def _zigzag(difference: Any, bits: int) -> Any:
    """Return a difference modulo 2**bits, mapped so that small ones of either sign are small."""
    lifted = np.int64(difference << np.uint64(64 - bits)) >> np.int64(64 - bits)
    return np.uint64((lifted << np.int64(1)) ^ (lifted >> np.int64(63))) & _below(bits)


@inner
def _unzigzag(number: Any) -> Any:
    return (number >> _ONE) ^ (_NONE - (number & _ONE))


@inner
def _measure(
    values: Any, count: int, bits: int, step: int, firsts: Any, seconds: Any, lengths: Any
) -> Any:
    """Fill in first and second differences; return which bit lengths occur, as two bit sets.

    `lengths` counts how often each occurs; `_cheapest` resets what it reads of it.
    """
    previous, slope = values[0], _NONE
    seen, seen_second = _NONE, _NONE
    for i in range(1, count):
        difference = values[i] - previous
        number, second = _zigzag(difference, bits), _zigzag(difference - slope, bits)
        firsts[i] = number
        seconds[i] = second
        length, second_length = 64 - leading_zeros(number), 64 - leading_zeros(second)
        if step == 2:
            length, second_length = (length + 1) & ~1, (second_length + 1) & ~1
        # 63 is wider than any width
        length, second_length = (min(length, 63), min(second_length, 63))
        lengths[0, length] += 1
        lengths[1, second_length] += 1
        seen |= _ONE << np.uint64(length)
        seen_second |= _ONE << np.uint64(second_length)
        previous = values[i]
        slope = difference
    return seen, seen_second


@inner
def _cheapest(
    seen: Any, lengths: Any, count: int, bits: int, whole_each: int, limit: int, size: int
) -> Any:
    """Return the cheapest width of a difference, its cost in bits, and how many do not fit.

    `whole_each` is how many values are stored whole for each difference that is too wide.
    """
    best, wide = np.int64(0), count - 1
    cheapest: Any = bits * min(whole_each * wide, count - 1) + size
    narrow = np.int64(0)
    while seen:
        width = trailing_zeros(seen)
        seen &= seen - _ONE
        narrow += lengths[width]
        lengths[width] = 0
        if width <= limit:
            left: Any = count - 1 - narrow
            cost: Any = (
                width * narrow + bits * min(whole_each * left, count - 1) + (size if left else 0)
            )
            if cost < cheapest:
                best, cheapest, wide = width, cost, left
    return best, cheapest, wide


@inner
def _mark(numbers: Any, count: int, width: int) -> Any:
    """Return which values are stored whole, for first differences."""
    marks, most = _ONE, _below(width)
    for i in range(1, count):
        marks |= np.uint64(numbers[i] > most) << np.uint64(i)
    return marks


@inner
def _mark_second(values: Any, count: int, bits: int, width: int, coded: Any) -> Any:
    """Fill `coded` with second differences; return which values are stored whole.

    No difference goes across a value that is stored whole.
    """
    marks, slope = _ONE, _NONE
    for i in range(1, count):
        difference = values[i] - values[i - 1]
        number = _zigzag(difference - slope, bits)
        if number > _below(width):
            before = (marks >> np.uint64(i - 1)) & _ONE
            marks |= _ONE << np.uint64(i)
            slope = difference if before else _NONE
        else:
            coded[i] = number
            slope = difference
    return marks


@inner
def _gather(address: int, jump: int, number: int, size: int, word: int, values: Any) -> Any:
    """Fill in the nonzero values of a feature; return its zero frames, and the count of others."""
    holes, count = _NONE, np.int64(0)
    value, absent = _NONE, _NONE
    for t in range(size):
        if t < number:
            value = read_word(address, word)
            absent = np.uint64(value == _NONE)
            address += jump
        values[count] = value
        count += np.int64(_ONE - absent)
        holes |= absent << np.uint64(t)
    return holes, count


@inner
def _all_zero(address: int, jump: int, number: int, words: int) -> bool:
    """Return whether `words` 64-bit words are zero in all frames."""
    for t in range(number):
        found = _NONE
        for i in range(words):
            found |= read_u64(address + t * jump + 8 * i)
        if found:
            return False
    return True


@inner
def encode_chunk(
    frames: int,
    features: int,
    word: int,
    stride: int,
    number: int,
    size: int,
    target: int,
    scratch: Any,
    lengths: Any,
) -> int:
    """Write `number` frames, `stride` rows apart, as a chunk of `size`; return the bytes written.

    Missing frames repeat the last. `scratch` is (3, 64) uint64, `lengths` (2, 64) int64 zeros.
    """
    bits, row = word * 8, features * word
    step = 2 if word == 8 else 1
    limit = min(bits - 1, WIDEST) if word < 8 else WIDEST
    values, firsts, seconds = scratch[0], scratch[1], scratch[2]
    position = target + (features + 7) // 8
    for byte in range(0, (features + 7) // 8):
        live, last = _NONE, min(byte * 8 + 8, features)
        if last == byte * 8 + 8 and _all_zero(frames + byte * 8 * word, stride * row, number, word):
            last = 0
        for feature in range(byte * 8, last):
            holes, count = _gather(
                frames + feature * word, stride * row, number, size, word, values
            )
            if count == 0:
                continue
            live |= _ONE << np.uint64(feature - byte * 8)
            seen, seen_second = _measure(values, count, bits, step, firsts, seconds, lengths)
            width, cost, wide = _cheapest(seen, lengths[0], count, bits, 1, limit, size)
            other, other_cost, other_wide = _cheapest(
                seen_second, lengths[1], count, bits, 2, limit, size
            )
            marks, flags, chosen = _ONE, np.int64(0), firsts
            if count > 3 and other_cost < cost:
                width, flags, chosen = other, np.int64(SECOND), seconds
                if other_wide:
                    marks = _mark_second(values, count, bits, width, seconds)
            elif wide:
                marks = _mark(firsts, count, width)
            flags |= width // step
            position = _write_feature(
                position, size, word, flags, holes, marks, values, chosen, count, width
            )
        write_byte(target + byte, live)
    return position - target


@inner
def _write_feature(
    position: Any,
    size: int,
    word: int,
    flags: int,
    holes: Any,
    marks: Any,
    values: Any,
    coded: Any,
    count: int,
    width: int,
) -> int:
    if holes:
        flags |= HOLES
    if marks != _ONE:
        flags |= RESTARTS
    write_u64(position, np.uint64(flags))
    position += 1
    if flags & HOLES:
        write_u64(position, holes)
        position += size // 8
    if flags & RESTARTS:
        write_u64(position, marks)
        position += size // 8
    for i in range(count):
        if (marks >> np.uint64(i)) & _ONE:
            write_u64(position, values[i])
            position += word
    filled, held = _NONE, 0
    if width:
        for i in range(count):
            if not (marks >> np.uint64(i)) & _ONE:
                filled |= coded[i] << np.uint64(held)
                write_u64(position, filled)
                # `held` stays below 8 between values, so that 56 more bits always fit
                held += width
                position += held >> 3
                filled >>= np.uint64(held & ~7)
                held &= 7
        if held:
            write_u64(position, filled)
            position += 1
    return position


@inner
def _walk(
    i: int, marks: Any, wholes: int, differences: int, width: int, second: bool, word: int
) -> Any:
    """Return value `i` of a feature, the slope there, and the bit of the next difference."""
    upto = marks & _below(i + 1)
    restart = 63 - leading_zeros(upto)
    whole = popcount(upto) - 1
    full = _below(word * 8)
    value = read_u64(wholes + whole * word) & full
    slope = _NONE
    if second and whole > 0 and (marks >> np.uint64(restart - 1)) & _ONE:
        slope = value - (read_u64(wholes + (whole - 1) * word) & full)
    bit = (restart - whole) * width
    mask = _below(width)
    if second:
        for _ in range(i - restart):
            slope += _unzigzag((read_u64(differences + (bit >> 3)) >> np.uint64(bit & 7)) & mask)
            value += slope
            bit += width
    else:
        for _ in range(i - restart):
            value += _unzigzag((read_u64(differences + (bit >> 3)) >> np.uint64(bit & 7)) & mask)
            bit += width
    return value, slope, bit


@inner
def _read_header(position: int, size: int) -> Any:
    """Return the header of a feature, its nonzero frames, its whole values, and what follows."""
    every = _below(size)
    header = np.int64(read_byte(position))
    position += 1
    present, marks = every, _ONE
    if header & HOLES:
        present = every & ~read_u64(position)
        position += size // 8
    if header & RESTARTS:
        marks = read_u64(position) & every
        position += size // 8
    return header, present, marks, position


@inner
def decode_pair(
    source: int, t: int, size: int, features: int, word: int, out: int, following: int
) -> None:
    """Write frame `t` to `out` and, unless `following` is 0, frame `t + 1` to `following`."""
    step = 2 if word == 8 else 1
    position = source + (features + 7) // 8
    clear_bytes(out, features * word)
    if following:
        clear_bytes(following, features * word)
    for base in range(0, features, 64):
        live = read_u64(source + base // 8) & _below(min(64, features - base))
        while live:
            feature = base + trailing_zeros(live)
            live &= live - _ONE
            header, present, marks, position = _read_header(position, size)
            second, width = (header & SECOND) != 0, (header & 31) * step
            whole = popcount(marks)
            wholes, differences = position, position + whole * word
            position = differences + (((popcount(present) - whole) * width + 7) >> 3)
            here = (present >> np.uint64(t)) & _ONE
            i = popcount(present & _below(t))
            value, slope, bit = _NONE, _NONE, 0
            if here:
                value, slope, bit = _walk(i, marks, wholes, differences, width, second, word)
                write_word(out + feature * word, word, value)
            if following and (present >> np.uint64(t + 1)) & _ONE:
                i += np.int64(here)
                if here and not (marks >> np.uint64(i)) & _ONE:
                    moved = _unzigzag(
                        (read_u64(differences + (bit >> 3)) >> np.uint64(bit & 7)) & _below(width)
                    )
                    value += slope + moved
                else:
                    value, slope, bit = _walk(i, marks, wholes, differences, width, second, word)
                write_word(following + feature * word, word, value)


@inner
def chunk_size(source: int, stored: int, features: int, word: int, size: int) -> int:
    """Return the bytes that a chunk claims; -1 if more than `stored`, or invalid."""
    position, end = source + (features + 7) // 8, source + stored
    step = 2 if word == 8 else 1
    if position > end:
        return -1
    for base in range(0, features, 64):
        live = read_u64(source + base // 8) & _below(min(64, features - base))
        for _ in range(popcount(live)):
            if position >= end:
                return -1
            header, present, marks, position = _read_header(position, size)
            count, whole = popcount(present), popcount(marks)
            width = (header & 31) * step
            if count == 0 or not marks & _ONE or marks > _below(count) or width > WIDEST:
                return -1
            position += whole * word + (((count - whole) * width + 7) >> 3)
            if position > end:
                return -1
    return position - source
