"""The codecs of files: each keeps the contract of all, and what it promises beyond that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import zstandard
from codec_contracts import CHUNKS, ChunkCodecContract
from codec_contracts import decode as decode_with
from codec_contracts import encode as encode_with
from hypothesis import example, given, settings
from hypothesis import strategies as st

from navrl.errors import ConfigError, ContainerError
from navrl.io.container.codecs import CODECS, ChunkCodec, find_codec, libzstd, planes, register
from navrl.io.container.codecs.raw import RawCodec


class TestRaw(ChunkCodecContract):
    codec = find_codec("raw")


class TestLz4(ChunkCodecContract):
    codec = find_codec("lz4")


class TestZstd(ChunkCodecContract):
    codec = find_codec("zstd")


class TestPlanes(ChunkCodecContract):
    codec = find_codec("planes-zstd")


class TestRows(ChunkCodecContract):
    codec = find_codec("rows-zstd")


class TestTimeDelta(ChunkCodecContract):
    codec = find_codec("time-delta-zstd")
    codec_overhead = 96  # a map that says that all numbers changed takes a few bytes more


def test_every_registered_codec_keeps_the_contract():
    tested = {test.codec.name for test in ChunkCodecContract.__subclasses__()}
    assert tested == set(CODECS)


def test_a_codec_of_ones_own_is_found_by_its_name():
    mine = register(RawCodec("mine"))
    try:
        assert find_codec("mine") is mine
        assert register(RawCodec("mine")) == mine  # the same once more changes nothing
    finally:
        del CODECS["mine"]


def test_a_name_is_not_given_twice():
    with pytest.raises(ConfigError, match="'zstd' is registered already"):
        register(RawCodec("zstd"))


def test_a_codec_must_encode_and_decode():
    with pytest.raises(TypeError, match="abstract"):
        ChunkCodec()


def encode(codec: str, chunk: np.ndarray, element: str, level: int | None = None) -> np.ndarray:
    return encode_with(find_codec(codec), chunk, element, level)


def decode(codec: str, stored: np.ndarray, size: int, element: str) -> np.ndarray:
    return decode_with(find_codec(codec), stored, size, element)


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 70_001, 1 << 18])
def test_floats_are_split_the_same_whatever_the_order_in_which_numpy_copies(monkeypatch, count):
    chunk = CHUNKS["noise"](4 * count)
    quick = encode("planes-zstd", chunk, "float32")
    monkeypatch.setattr(planes, "_writes_in_order", lambda: False)
    assert np.array_equal(encode("planes-zstd", chunk, "float32"), quick)


def test_planes_shrink_weights_where_lz4_cannot():
    chunk = CHUNKS["weights"](1 << 20)
    assert encode("lz4", chunk, "float32").size > 0.99 * chunk.size
    assert encode("planes-zstd", chunk, "float32").size < 0.86 * chunk.size


needs_libzstd = pytest.mark.skipif(
    not libzstd.codes_entropy(), reason="the wheel of zstandard hides libzstd"
)


@needs_libzstd
def test_weights_are_coded_without_a_search_for_repetitions_where_libzstd_can_be_reached(
    monkeypatch,
):
    chunk = CHUNKS["weights"](1 << 20)
    quick = encode("planes-zstd", chunk, "float32")
    monkeypatch.setattr(planes, "entropy_code", lambda part: None)
    searched = encode("planes-zstd", chunk, "float32")
    assert quick.size < searched.size
    for stored in (quick, searched):
        assert np.array_equal(decode("planes-zstd", stored, chunk.size, "float32"), chunk)


LAYER = np.random.default_rng(0).normal(0, 0.02, 1 << 12).astype(np.float32)
REPETITIVE = {  # and how small they are at most
    "almost nothing but zeros": (
        np.where(np.arange(1 << 18) % 256, 0, 1).astype(np.float32),
        0.005,
    ),
    "64 copies of a layer": (np.tile(LAYER, 64), 0.76),
    "every number 64 times": (np.repeat(LAYER, 64), 0.76),
    "a map of labels": (
        np.kron(np.random.default_rng(0).integers(0, 20, (16, 16)), np.ones((32, 32))).astype(
            np.uint8
        ),
        0.05,
    ),
    "bytes with a period of 4096": (
        np.tile(np.random.default_rng(0).integers(0, 99, 4096, dtype=np.uint8), 64),
        0.03,
    ),
}


@pytest.mark.parametrize("kind", REPETITIVE)
def test_what_repeats_itself_is_searched_for_repetitions(kind):
    numbers, share = REPETITIVE[kind]
    assert (
        encode("planes-zstd", numbers.reshape(-1).view(np.uint8), numbers.dtype.name).size
        < share * numbers.nbytes
    )


@pytest.mark.parametrize(
    "hidden",
    [
        {"find_spec": lambda name: None},
        {"find_spec": lambda name: SimpleNamespace(origin="nowhere.so")},
    ],
)
def test_a_wheel_that_hides_libzstd_is_no_reason_to_fail(monkeypatch, hidden):
    monkeypatch.setattr(libzstd, "importlib", SimpleNamespace(util=SimpleNamespace(**hidden)))
    for cached in (libzstd.functions, libzstd.codes_entropy):
        cached.cache_clear()
    try:
        assert libzstd.entropy_code(np.zeros(9, np.uint8)) is None
        chunk = CHUNKS["weights"](1 << 16)
        assert np.array_equal(
            decode("planes-zstd", encode("planes-zstd", chunk, "float32"), chunk.size, "float32"),
            chunk,
        )
    finally:
        for cached in (libzstd.functions, libzstd.codes_entropy):
            cached.cache_clear()


@needs_libzstd
@example(part=bytes(range(8)), times=100)
@given(part=st.binary(min_size=1, max_size=3000), times=st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_a_frame_of_coded_bytes_is_read_by_zstandard_and_never_longer_than_they_are(part, times):
    part = np.frombuffer(part * times, np.uint8)
    frame = libzstd.entropy_code(part)
    assert frame.size <= part.size
    assert frame.size or part.size < 800 or len(set(part.tolist())) > 8
    if frame.size:
        assert zstandard.ZstdDecompressor().decompress(frame) == part.tobytes()


def test_threads_code_side_by_side_as_they_do_alone():
    chunks = [
        np.random.default_rng(i).normal(0, 0.02, 1 << 16).astype(np.float32).view(np.uint8)
        for i in range(8)
    ]
    alone = [encode("planes-zstd", chunk, "float32").tobytes() for chunk in chunks]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert [
                *pool.map(lambda chunk: encode("planes-zstd", chunk, "float32").tobytes(), chunks)
            ] == alone


def test_a_part_that_decompresses_to_more_than_its_chunk_is_refused():
    stored = encode("zstd", np.zeros(1 << 20, np.uint8), "uint8")
    with pytest.raises(ContainerError, match="does not hold"):
        decode("zstd", stored, 1 << 10, "uint8")


def test_an_unknown_codec_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'planes-zstd'"):
        find_codec("plane-zstd")
