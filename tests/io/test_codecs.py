"""Every codec: what goes in comes out, nothing expands beyond its limit, and no stored bytes can
crash it.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from navrl.errors import ConfigError, ContainerError
from navrl.io.container import codecs as codecs_module
from navrl.io.container import libzstd
from navrl.io.container.codecs import CODECS, MAX_EXPANSION, find_codec
from navrl.io.container.element_types import ITEM_BYTES


def encode(codec: str, chunk: np.ndarray, element: str, level: int | None = None) -> np.ndarray:
    buffers = CODECS[codec].encode(chunk, element, level, np.empty_like(chunk))
    return np.frombuffer(b"".join(bytes(memoryview(buffer)) for buffer in buffers), np.uint8)


def decode(codec: str, stored: np.ndarray, size: int, element: str) -> np.ndarray:
    chunk = np.empty(size, np.uint8)
    CODECS[codec].decode(stored, chunk, element)
    return chunk


CHUNKS = {
    "noise": lambda n: np.random.default_rng(0).integers(0, 256, n, dtype=np.uint8),
    "zeros": lambda n: np.zeros(n, np.uint8),
    "weights": lambda n: np.resize(
        np.random.default_rng(1).normal(0, 0.02, n).astype(np.float32).view(np.uint8), n
    ),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("element", ITEM_BYTES)
@pytest.mark.parametrize("kind", CHUNKS)
@pytest.mark.parametrize("count", [1, 2, 3, 1000, 70_001])
def test_a_chunk_comes_back_bit_for_bit(codec, element, kind, count):
    chunk = CHUNKS[kind](count * ITEM_BYTES[element])
    assert np.array_equal(decode(codec, encode(codec, chunk, element), chunk.size, element), chunk)


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 70_001, 1 << 18])
def test_floats_are_split_the_same_whatever_the_order_in_which_numpy_copies(monkeypatch, count):
    chunk = CHUNKS["noise"](4 * count)
    quick = encode("planes-zstd", chunk, "float32")
    monkeypatch.setattr(codecs_module, "_writes_in_order", lambda: False)
    assert np.array_equal(encode("planes-zstd", chunk, "float32"), quick)


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "raw"])
@pytest.mark.parametrize("level", [0, 1, 9, 16])
def test_every_level_reads_back_the_same(codec, level):
    chunk = CHUNKS["weights"](1 << 16)
    assert np.array_equal(
        decode(codec, encode(codec, chunk, "float32", level), chunk.size, "float32"), chunk
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("element", ["float32", "int64", "bool"])
def test_a_chunk_is_never_stored_smaller_than_its_limit(codec, element):
    stored = encode(codec, np.zeros(1 << 20, np.uint8), element)
    assert stored.size * MAX_EXPANSION >= 1 << 20


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "raw"])
def test_noise_grows_by_no_more_than_the_lengths_of_its_parts(codec):
    chunk = CHUNKS["noise"](1 << 16)
    # one that says that all numbers changed is coded in a few bytes
    maps = 64 if codec == "time-delta-zstd" else 0
    assert encode(codec, chunk, "float64").size <= chunk.size + 4 * 8 + maps


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
    monkeypatch.setattr(codecs_module, "entropy_code", lambda part: None)
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


@pytest.mark.parametrize("codec", CODECS)
@given(stored=st.binary(max_size=300), element=st.sampled_from(["float32", "uint8", "complex128"]))
@settings(max_examples=150, deadline=None)
def test_arbitrary_bytes_are_decoded_or_refused_and_nothing_else(codec, stored, element):
    with contextlib.suppress(ContainerError):
        decode(codec, np.frombuffer(stored, np.uint8), 256, element)


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "raw"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_stored_chunk_with_changed_bytes_is_decoded_or_refused_and_nothing_else(codec, data):
    stored = encode(codec, CHUNKS["weights"](4096), "float32").copy()
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, stored.size - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ContainerError):
        decode(codec, stored, 4096, "float32")


def test_a_part_that_decompresses_to_more_than_its_chunk_is_refused():
    stored = encode("zstd", np.zeros(1 << 20, np.uint8), "uint8")
    with pytest.raises(ContainerError, match="does not hold"):
        decode("zstd", stored, 1 << 10, "uint8")


def test_an_unknown_codec_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'planes-zstd'"):
        find_codec("plane-zstd")
