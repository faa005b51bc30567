"""The codec `delta`: numbers that change little from frame to frame, feature by feature over the
frames of a chunk.

A feature that is zero in the whole chunk takes one bit. Of the others, zeros are marked in a mask
and take no more than that; what remains is stored as differences (or differences of differences) of
the bit patterns, packed into as few bits as most of them need, and as whole numbers where a
difference needs more. Frames are decoded one by one: the walk goes from the last whole number to
the frame that is wanted.

A chunk: one bit a feature (little-endian, 1 = not all zero); then for each feature that is not all
  zero 1 byte       bits 0-4: width of a difference (halved for 64-bit words), then flags: SECOND,
  HOLES, RESTARTS K/8 bytes    if HOLES: the frames in which the feature is zero K/8 bytes    if
  RESTARTS: which of the others, counted without the zeros, are whole numbers (else only the first
  is) words        the whole numbers bits         the differences, zigzag, packed from the lowest
  bit on, filled up to a byte
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
WIDEST = 56  # bits that eight bytes at any bit offset are sure to hold


def chunk_bound(features: int, word: int, frames: int) -> int:
    """Return how many bytes a chunk can take at most."""
    return (features + 7) // 8 + features * (1 + frames // 4 + word * (frames + 1)) + 16


@inner
def _below(count: int) -> Any:
    """Return a word whose lowest `count` bits are set, `count` from 0 to 64."""
    if count >= 64:
        return _ALL
    return (_ONE << np.uint64(count)) - _ONE


@inner
def _zigzag(difference: Any, bits: int) -> Any:
    """Return a difference, taken modulo 2**bits, so that small ones of either sign are small
    numbers.
    """
    lifted = np.int64(difference << np.uint64(64 - bits)) >> np.int64(64 - bits)
    return np.uint64((lifted << np.int64(1)) ^ (lifted >> np.int64(63))) & _below(bits)


@inner
def _unzigzag(number: Any) -> Any:
    return (number >> _ONE) ^ (_NONE - (number & _ONE))


@inner
def _measure(
    values: Any, count: int, bits: int, step: int, firsts: Any, seconds: Any, lengths: Any
) -> Any:
    """Fill in the differences of values and those of these; return which bit lengths occur, as two
    sets of bits.

    `lengths` counts how often each occurs; what `_cheapest` reads of it, it sets to zero again.
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
        # wider than any width there is
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
    """Return the width of a difference that makes `count` values smallest, the bits it takes, and
    how many do not fit.

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
    """Fill `coded` with differences of differences, none across a value that is stored whole;
    return which those are.
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
    """Fill in the values of a feature that are not zero; return in which frames it is zero, and how
    many are not.
    """
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
    """Return whether so many words of eight bytes are zero in all frames."""
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
    """Write `number` frames, `stride` rows from one to the next, as a chunk of `size`; return the
    bytes written.

    Frames that are missing repeat the last. `scratch` is (3, 64) uint64, `lengths` (2, 64) int64
    zeros.
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
    """Return value `i` of a feature, the slope there, and the bit at which the next difference
    begins.
    """
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
def decode_pair(
    source: int, t: int, size: int, features: int, word: int, out: int, following: int
) -> None:
    """Write frame `t` of a chunk to `out` and, unless that is 0, frame `t + 1` to `following`."""
    step = 2 if word == 8 else 1
    every = _below(size)
    position = source + (features + 7) // 8
    clear_bytes(out, features * word)
    if following:
        clear_bytes(following, features * word)
    for base in range(0, features, 64):
        live = read_u64(source + base // 8) & _below(min(64, features - base))
        while live:
            feature = base + trailing_zeros(live)
            live &= live - _ONE
            header = np.int64(read_byte(position))
            position += 1
            present, marks = every, _ONE
            if header & HOLES:
                present = every & ~read_u64(position)
                position += size // 8
            if header & RESTARTS:
                marks = read_u64(position) & every
                position += size // 8
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
    """Return the bytes that a chunk says it takes, or -1 if they are more than `stored` or make no
    sense.
    """
    position, end = source + (features + 7) // 8, source + stored
    every = _below(size)
    step = 2 if word == 8 else 1
    if position > end:
        return -1
    for base in range(0, features, 64):
        live = read_u64(source + base // 8) & _below(min(64, features - base))
        for _ in range(popcount(live)):
            if position >= end:
                return -1
            header = np.int64(read_byte(position))
            position += 1
            present, marks = every, _ONE
            if header & HOLES:
                present = every & ~read_u64(position)
                position += size // 8
            if header & RESTARTS:
                marks = read_u64(position) & every
                position += size // 8
            count, whole = popcount(present), popcount(marks)
            width = (header & 31) * step
            if count == 0 or not marks & _ONE or marks > _below(count) or width > WIDEST:
                return -1
            position += whole * word + (((count - whole) * width + 7) >> 3)
            if position > end:
                return -1
    return position - source
