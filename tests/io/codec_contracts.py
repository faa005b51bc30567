"""What every codec promises. A test class inherits the contract and names its codec."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import independent_reader
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from navrl.errors import ContainerError
from navrl.io.container.codecs import MAX_EXPANSION, ChunkCodec, RowCodec, find_codec
from navrl.io.container.element_types import ITEM_BYTES, SCALAR_OF

CHUNKS = {
    "noise": lambda n: np.random.default_rng(0).integers(0, 256, n, dtype=np.uint8),
    "zeros": lambda n: np.zeros(n, np.uint8),
    "weights": lambda n: np.resize(
        np.random.default_rng(1).normal(0, 0.02, n).astype(np.float32).view(np.uint8), n
    ),
}
# one inherited test, run for every codec: their examples are stored together, and do no harm
ANY_BYTES = settings(max_examples=150, suppress_health_check=[HealthCheck.differing_executors])
GUARD = 64  # bytes beside a chunk that no decoder may touch
FILL = 170


def encode(codec: ChunkCodec, chunk: np.ndarray, element: str, level: int | None = None):
    """Return the stored form of a chunk in one array."""
    buffers = codec.encode(chunk, element, level, np.empty_like(chunk))
    return np.frombuffer(b"".join(bytes(memoryview(buffer)) for buffer in buffers), np.uint8)


def decode(codec: ChunkCodec, stored: np.ndarray, size: int, element: str) -> np.ndarray:
    """Return a chunk decoded between guard bytes, which must stay as they are."""
    memory = np.full(size + 2 * GUARD, FILL, np.uint8)
    try:
        codec.decode(stored, memory[GUARD:-GUARD], element)
    finally:
        assert (memory[:GUARD] == FILL).all()
        assert (memory[-GUARD:] == FILL).all()
    return memory[GUARD:-GUARD]


def decode_independently(codec: ChunkCodec, stored: bytes, size: int, element: str) -> bytes:
    """Return a chunk decoded by the reader that was written from docs/format.md."""
    if not isinstance(codec, RowCodec):
        return independent_reader.decode(stored, size, codec.name, element)
    count = size // ITEM_BYTES[SCALAR_OF.get(element, element)]
    array = {
        "codec": codec.name,
        "element": SCALAR_OF.get(element, element),
        "shape": [1, count],
        "part_rows": count,
        "chunk_bytes": size,
    }
    return independent_reader.decode_rows(stored, size, array, 0)


class ChunkCodecContract:
    """What every codec of files promises."""

    codec: ChunkCodec
    codec_overhead = 64  # bytes by which noise may grow: the table of parts, and maps

    def test_it_is_registered_under_its_name_and_describes_itself(self):
        assert find_codec(self.codec.describe()["codec"]) is self.codec

    def test_it_is_frozen(self):
        with pytest.raises(FrozenInstanceError):
            self.codec.name = "other"

    @pytest.mark.parametrize("element", ITEM_BYTES)
    def test_a_chunk_comes_back_bit_for_bit(self, element):
        for kind, make in CHUNKS.items():
            for count in (1, 2, 3, 1000, 70_001):
                chunk = make(count * ITEM_BYTES[element])
                stored = encode(self.codec, chunk, element)
                found = decode(self.codec, stored, chunk.size, element)
                assert np.array_equal(found, chunk), (kind, count)

    @pytest.mark.parametrize("element", ["uint8", "float32", "float64", "complex128"])
    def test_the_independent_reader_reads_what_it_stores(self, element):
        for make in CHUNKS.values():
            chunk = make(500 * ITEM_BYTES[element])
            stored = encode(self.codec, chunk, element).tobytes()
            found = decode_independently(self.codec, stored, chunk.size, element)
            assert found == chunk.tobytes()

    @pytest.mark.parametrize("level", [0, 1, 9, 16])
    def test_every_level_reads_back_the_same(self, level):
        chunk = CHUNKS["weights"](1 << 16)
        stored = encode(self.codec, chunk, "float32", level)
        assert np.array_equal(decode(self.codec, stored, chunk.size, "float32"), chunk)

    @pytest.mark.parametrize("element", ["float32", "int64", "bool"])
    def test_a_chunk_is_never_stored_smaller_than_its_limit(self, element):
        stored = encode(self.codec, np.zeros(1 << 20, np.uint8), element)
        assert stored.size * MAX_EXPANSION >= 1 << 20

    def test_noise_hardly_grows(self):
        chunk = CHUNKS["noise"](1 << 16)
        assert encode(self.codec, chunk, "float64").size <= chunk.size + self.codec_overhead

    def test_a_stored_chunk_that_is_cut_anywhere_is_refused(self):
        stored = encode(self.codec, CHUNKS["weights"](4096), "float32")
        for length in {0, 1, 3, 4, 9, stored.size // 2, stored.size - 1}:
            with pytest.raises(ContainerError):
                decode(self.codec, stored[:length], 4096, "float32")

    def test_bytes_behind_a_stored_chunk_are_refused(self):
        stored = encode(self.codec, CHUNKS["weights"](4096), "float32")
        with pytest.raises(ContainerError):
            decode(self.codec, np.append(stored, np.uint8(1)), 4096, "float32")

    def test_a_chunk_of_another_size_is_refused(self):
        stored = encode(self.codec, CHUNKS["weights"](4096), "float32")
        for size in (2048, 8192):
            with pytest.raises(ContainerError):
                decode(self.codec, stored, size, "float32")

    @ANY_BYTES
    @given(
        stored=st.binary(max_size=300), element=st.sampled_from(["float32", "uint8", "complex128"])
    )
    def test_arbitrary_bytes_are_refused_or_mean_what_the_format_says(self, stored, element):
        self._check_refused_or_right(stored, 256, element)

    @ANY_BYTES
    @given(data=st.data())
    def test_a_changed_chunk_is_refused_or_means_what_the_format_says(self, data):
        stored = encode(self.codec, CHUNKS["weights"](4096), "float32").copy()
        for _ in range(data.draw(st.integers(1, 4))):
            stored[data.draw(st.integers(0, stored.size - 1))] = data.draw(st.integers(0, 255))
        self._check_refused_or_right(stored.tobytes(), 4096, "float32")

    def _check_refused_or_right(self, stored: bytes, size: int, element: str) -> None:
        try:
            found = decode(self.codec, np.frombuffer(stored, np.uint8), size, element)
        except ContainerError:
            return
        assert found.tobytes() == decode_independently(self.codec, stored, size, element)
