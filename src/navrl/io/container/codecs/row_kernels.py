"""Compiled kernels of the row codecs: a chunk is encoded or decoded in one call without the GIL.

`navrl.io.container.codecs.rows` has the same in NumPy, byte for byte. zstd is called through the
addresses of its functions inside the zstandard wheel.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import numpy as np

from navrl.io.container.codecs import libzstd
from navrl.io.container.codecs.chunk_parts import COMPRESSED
from navrl.io.container.codecs.codec import Bytes
from navrl.io.container.numba_memory import (
    WORD,
    c_call,
    copy_bytes,
    inner,
    popcount,
    read_byte,
    read_word,
    write_byte,
    write_word,
)
from navrl.kernel_cache import kernel

__all__ = ["decode_chunk", "encode_chunk", "zstd_functions"]

_NAMES = (
    "ZSTD_compressCCtx",
    "ZSTD_compressBound",
    "ZSTD_decompressDCtx",
    "ZSTD_getFrameContentSize",
)
_COMPRESS, _BOUND, _DECOMPRESS, _CONTENT_SIZE = range(4)
_FLAG, _LENGTH = np.uint64(COMPRESSED), np.uint64(COMPRESSED - 1)
_SLACK = 64  # bytes that kernels may write behind their output

_compress, _bound, _decompress, _content_size = (
    c_call(signature, WORD) for signature in ("pppppi", "p", "ppppp", "pp")
)

# exact arithmetic; the machine code is cached on disk
_entry = kernel(nogil=True, error_model="numpy")


@cache
def zstd_functions() -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the addresses of the zstd functions; None where the wheel hides them."""
    library = libzstd.functions()
    if library is None:
        return None
    return np.array(
        [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _NAMES],
        np.int64,
    )


class _Contexts(threading.local):
    """What a thread keeps between chunks: zstd contexts and scratch memory."""

    def __init__(self) -> None:
        self.compressing, self.decompressing = libzstd.Context("CCtx"), libzstd.Context("DCtx")
        self._scratch = np.empty(0, np.uint8)

    def scratch(self, size: int) -> Bytes:
        """Return memory that is valid until this thread asks again."""
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        return self._scratch


@cache
def _contexts() -> _Contexts:
    """Return the contexts of each thread; made for the first chunk, not at import."""
    return _Contexts()


def encode_chunk(chunk: Bytes, cut: Any, level: int, target: Bytes) -> Bytes | None:
    """Return the stored form of a chunk without its padding; None if zstd fails.

    It lies in `target` if that is large enough. `cut` holds: bytes of a row, bytes of a number,
    steps, rows of a group, number of the first row, and whether differences are stored.
    """
    own, functions = _contexts(), zstd_functions()
    # a reference of our own: at exit, the interpreter drops the thread-locals of other threads
    context = own.compressing
    row_bytes, width, _, group, _, _ = cut
    numbers = min(group * row_bytes, chunk.size) // width
    parts = (width + 1) * -(-chunk.size // (group * row_bytes))
    room = chunk.size + chunk.size // (8 * width) + 5 * parts + (numbers * width >> 7) + 4096
    if target.size < room:
        target = np.empty(room, np.uint8)
    scratch = own.scratch((2 * width + 1) * (numbers + _SLACK))
    size = _encode(
        chunk.ctypes.data,
        chunk.size,
        cut,
        level,
        target.ctypes.data,
        scratch.ctypes.data,
        context.address,
        functions,
    )
    return target[:size] if size >= 0 else None


def decode_chunk(stored: Bytes, chunk: Bytes, cut: Any, groups: Any) -> bool:
    """Fill these groups of a chunk from its stored form; return False if it is invalid."""
    own, functions = _contexts(), zstd_functions()
    context = own.decompressing
    row_bytes, width, _, group, _, _ = cut
    scratch = own.scratch((2 * width + 1) * (min(group * row_bytes, chunk.size) // width + _SLACK))
    if (
        not stored.flags.writeable
    ):  # another type to the compiler, which would have to do everything again
        stored = stored.copy()
    done: bool = _decode(stored, chunk, cut, groups, scratch, context.address, functions)
    return done


def _splitter(width: int) -> Any:
    """Return the kernel that writes the bitmap and the changes of a group, for one width."""
    low = np.uint64(2 ** (8 * width) - 1)

    @inner
    def split(
        source: int, lines: int, length: int, until: int, steps: int, bits: int, values: int
    ) -> Any:
        """Return how many numbers changed.

        `until` is the number of rows before the next environment begins.
        """
        found, place, mask, jump = np.int64(0), np.int64(0), np.uint64(0), length * width
        for column in range(length):
            at, start, stop = source + column * width, np.int64(0), until
            while start < lines:
                stop = min(stop, lines)
                before = np.uint64(0)
                while start < stop:
                    if place & 7 == 0 and stop - start >= 8:
                        differ = np.uint64(0)
                        for i in range(8):
                            differ |= read_word(at + i * jump, width) ^ before
                        if differ == np.uint64(0):  # most of what a drone measures
                            write_byte(bits + (place >> 3), differ)
                            place, at, start = place + 8, at + 8 * jump, start + 8
                            continue
                    number = read_word(at, width)
                    change = (number - before) & low
                    before = number
                    write_word(values + found * width, width, change)
                    differs = np.uint64(change != np.uint64(0))
                    found += np.int64(differs)
                    mask = (mask << np.uint64(1)) | differs
                    place += 1
                    if place & 7 == 0:
                        write_byte(bits + (place >> 3) - 1, mask)
                    at += jump
                    start += 1
                stop += steps
        if place & 7:
            write_byte(bits + (place >> 3), mask << np.uint64(8 - (place & 7)))
        return found

    return split


def _joiner(width: int) -> Any:
    """Return the kernel that sums up the changes of a group, for one width."""

    @inner
    def join(
        target: int, lines: int, length: int, until: int, steps: int, bits: int, values: int
    ) -> None:
        found, place, mask, jump = np.int64(0), np.int64(0), np.uint64(0), length * width
        for column in range(length):
            at, start, stop = target + column * width, np.int64(0), until
            while start < lines:
                stop = min(stop, lines)
                number = np.uint64(0)
                while start < stop:
                    if place & 7 == 0:
                        mask = read_byte(bits + (place >> 3))
                        if mask == np.uint64(0) and stop - start >= 8:
                            for i in range(8):
                                write_word(at + i * jump, width, number)
                            place, at, start = place + 8, at + 8 * jump, start + 8
                            continue
                    differs = (mask >> np.uint64(7 - (place & 7))) & np.uint64(1)
                    number += read_word(values + found * width, width) & (np.uint64(0) - differs)
                    found += np.int64(differs)
                    write_word(at, width, number)
                    place += 1
                    at += jump
                    start += 1
                stop += steps

    return join


_split_1, _split_2, _split_4, _split_8 = (_splitter(width) for width in (1, 2, 4, 8))
_join_1, _join_2, _join_4, _join_8 = (_joiner(width) for width in (1, 2, 4, 8))


@inner
def _store(
    source: int, size: int, word: int, target: int, level: int, context: int, functions: Any
) -> Any:
    """Store a part at `target` and its length at `word`; return the length, negative on error."""
    if size == 0:
        write_word(word, 4, np.uint64(0))
        return np.int64(0)
    room = _bound(functions[_BOUND], (size,))
    coded = _compress(functions[_COMPRESS], (context, target, room, source, size, level))
    if coded < 0:
        return coded
    if coded < size:
        write_word(word, 4, np.uint64(coded) | _FLAG)
        return coded
    copy_bytes(target, source, size)
    write_word(word, 4, np.uint64(size))
    return np.int64(size)


@_entry
def _encode(
    source: int,
    size: int,
    cut: Any,
    level: int,
    target: int,
    scratch: int,
    context: int,
    functions: Any,
) -> int:
    row_bytes, width, steps, group, first, differences = cut
    group_bytes, length = group * row_bytes, row_bytes // width
    count = -(-size // group_bytes)
    word, place = target, target + 4 * count * (width + 1 if differences else 1)
    for number in range(count):
        begin = number * group_bytes
        part = min(group_bytes, size - begin)
        if not differences:
            stored = _store(source + begin, part, word, place, level, context, functions)
            if stored < 0:
                return stored
            word, place = word + 4, place + stored
            continue
        lines = part // row_bytes
        until = steps - (first + number * group) % steps
        total = lines * length
        values, bits = scratch, scratch + total * width + 8
        arguments = (source + begin, lines, length, until, steps, bits, values)
        if width == 4:
            found = _split_4(*arguments)
        elif width == 1:
            found = _split_1(*arguments)
        elif width == 2:
            found = _split_2(*arguments)
        else:
            found = _split_8(*arguments)
        plane = bits + (total >> 3) + 8
        for turn in range(width + 1):
            begin_of, size_of = bits, (total + 7) >> 3
            if turn:
                begin_of, size_of = plane, found
                for i in range(found):
                    write_byte(plane + i, read_byte(values + i * width + width - turn))
            stored = _store(begin_of, size_of, word, place, level, context, functions)
            if stored < 0:
                return stored
            word, place = word + 4, place + stored
    return place - target


@inner
def _load(source: int, word: int, size: int, target: int, context: int, functions: Any) -> Any:
    """Return the address of a part that must have this size, decompressed to `target` if needed.

    0 if it is invalid.
    """
    length = np.int64(np.uint64(word) & _LENGTH)
    if np.uint64(word) & _FLAG == np.uint64(0):
        return source if length == size else np.int64(0)
    if size < 1 or _content_size(functions[_CONTENT_SIZE], (source, length)) != size:
        return np.int64(0)
    found = _decompress(functions[_DECOMPRESS], (context, target, size, source, length))
    return target if found == size else np.int64(0)


@inner
def _count(bits: int, total: int) -> Any:
    """Return how many of the first `total` bits of a bitmap are set."""
    found = np.int64(0)
    for i in range(total >> 3):
        found += popcount(read_byte(bits + i))
    if total & 7:
        found += popcount(read_byte(bits + (total >> 3)) >> np.uint64(8 - (total & 7)))
    return found


@inner
def _decode_group(
    words: int,
    source: Any,
    target: int,
    lines: int,
    cut: Any,
    scratch: int,
    context: int,
    functions: Any,
) -> bool:
    """Decode a group whose parts begin at `source`; return False if it is invalid.

    `until` of its rows belong to the environment that it begins in.
    """
    row_bytes, width, steps, _, until, _ = cut
    length = row_bytes // width
    total = lines * length
    values, held = scratch, scratch + total * width + 8
    plane = held + (total >> 3) + 8
    bits = _load(source, np.int64(read_word(words, 4)), (total + 7) >> 3, held, context, functions)
    if bits == 0:
        return False
    found = _count(bits, total)
    for turn in range(1, width + 1):
        source += np.int64(read_word(words + 4 * turn - 4, 4) & _LENGTH)
        begin = _load(
            source, np.int64(read_word(words + 4 * turn, 4)), found, plane, context, functions
        )
        if begin == 0:
            return False
        for i in range(found):
            write_byte(values + i * width + width - turn, read_byte(begin + i))
    arguments = (target, lines, length, until, steps, bits, values)
    if width == 4:
        _join_4(*arguments)
    elif width == 1:
        _join_1(*arguments)
    elif width == 2:
        _join_2(*arguments)
    else:
        _join_8(*arguments)
    return True


@_entry
def _decode(
    encoded: Any, chunk: Any, cut: Any, groups: Any, memory: Any, context: int, functions: Any
) -> bool:
    stored, stored_size = encoded.ctypes.data, encoded.size
    target, size = chunk.ctypes.data, chunk.size
    scratch = memory.ctypes.data
    row_bytes, width, steps, group, first, differences = cut
    group_bytes = group * row_bytes
    count = -(-size // group_bytes)
    parts = width + 1 if differences else np.int64(1)
    place = 4 * count * parts
    if stored_size < place:
        return False
    wanted = np.int64(0)
    for number in range(count):
        words, begin = stored + 4 * number * parts, place
        for turn in range(parts):
            place += np.int64(read_word(words + 4 * turn, 4) & _LENGTH)
        if place > stored_size:
            return False
        if wanted == len(groups) or groups[wanted] != number:
            continue
        wanted += 1
        part = min(group_bytes, size - number * group_bytes)
        output = target + number * group_bytes
        if differences:
            until = steps - (first + number * group) % steps
            known = (row_bytes, width, steps, group, until, differences)
            if not _decode_group(
                words, stored + begin, output, part // row_bytes, known, scratch, context, functions
            ):
                return False
        else:
            found = _load(
                stored + begin, np.int64(read_word(words, 4)), part, output, context, functions
            )
            if found == 0:
                return False
            if found != output:
                copy_bytes(output, found, part)
    for i in range(place, stored_size):
        if read_byte(stored + i) != np.uint64(0):
            return False
    return wanted == len(groups)
