"""The frame codecs: one contract for all, decoders written from their descriptions, and damage."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError

import lz4.block
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from navrl import FrameStore
from navrl.errors import ConfigError, ReplayError, StateError
from navrl.io.container.codecs import codecs_of, find_codec
from navrl.io.container.numba_memory import PADDING
from navrl.io.replay.codec_choice import frame_codec
from navrl.io.replay.columns import ChunkColumn, Ring, make_column
from navrl.io.replay.frame_codec import ChunkLayout, FrameChunks, FrameCodec, Kind

QUIET = settings(max_examples=60, deadline=None)


def bits_of(data: bytes) -> list[int]:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").tolist()


def number(bits: list[int]) -> int:
    return sum(bit << place for place, bit in enumerate(bits))


def decode_delta(blob: bytes, features: int, word: int, size: int) -> tuple[np.ndarray, int]:
    """Decode a chunk as the first lines of delta_kernels.py describe it.

    Return the frames and the bytes read.
    """
    live = bits_of(blob[: (features + 7) // 8])
    position, frames = (features + 7) // 8, np.zeros((size, features), f"u{word}")

    def take(count: int) -> bytes:
        nonlocal position
        position += count
        return blob[position - count : position]

    for feature in range(features):
        if not live[feature]:
            continue
        header = take(1)[0]
        width = (header & 31) * (2 if word == 8 else 1)
        zero = bits_of(take(size // 8)) if header & 64 else [0] * size
        present = [t for t in range(size) if not zero[t]]
        whole = bits_of(take(size // 8)) if header & 128 else [1] + [0] * (size - 1)
        wholes = [int.from_bytes(take(word), "little") for _ in range(sum(whole))]
        packed = bits_of(take(-(-(len(present) - sum(whole)) * width // 8)))
        value = slope = 0
        for i, t in enumerate(present):
            if whole[i]:
                new = wholes.pop(0)
                slope = new - value if header & 32 and i and whole[i - 1] else 0
                value = new
            else:
                z, packed = number(packed[:width]), packed[width:]
                difference = z // 2 if z % 2 == 0 else -(z + 1) // 2
                slope = slope + difference if header & 32 else difference
                value += slope
            frames[t, feature] = value % (1 << 8 * word)
            value %= 1 << 8 * word
    return frames, position


def decode_rows(
    blob: bytes, frame_bytes: int, stride: int, size: int, count: int
) -> tuple[np.ndarray, int]:
    """Decode a chunk as the first lines of rows_kernels.py describe it."""
    used = [value for value, bit in enumerate(bits_of(blob[:32])) if bit]
    lower = blob[32] + 1
    value_of = {
        rank if rank < lower else 256 - len(used) + rank: value for rank, value in enumerate(used)
    }
    ends = np.frombuffer(blob[33 : 33 + 4 * size], np.uint32).tolist()
    begin, groups = 33 + 4 * size, -(-frame_bytes // 8)
    frames, position = [], begin
    for t in range(count):
        differs = bits_of(blob[position : position + (groups + 7) // 8])
        assert not any(differs[groups:])
        position += (groups + 7) // 8
        nibbles = [
            nibble
            for byte in blob[position : position + (sum(differs) + 1) // 2]
            for nibble in (byte & 15, byte >> 4)
        ]
        position += (sum(differs) + 1) // 2
        ranks = [0] * (8 * groups)
        for group in range(groups):
            above = [
                ranks[i - stride] if i >= stride else 0 for i in range(8 * group, 8 * group + 8)
            ]
            if differs[group]:
                width = nibbles.pop(0) + 1
                assert width <= 8
                packed = bits_of(blob[position : position + width])
                position += width
                for i in range(8):
                    z = number(packed[i * width : (i + 1) * width])
                    above[i] = (above[i] + (z // 2 if z % 2 == 0 else -(z + 1) // 2)) % 256
            ranks[8 * group : 8 * group + 8] = above
        assert position == begin + ends[t]
        frames.append([value_of[rank] for rank in ranks[:frame_bytes]])
    return np.array(frames, np.uint8), position


def decode_lz4(blob: bytes, frame_bytes: int, size: int, count: int) -> tuple[np.ndarray, int]:
    """Decode a chunk: where each frame ends, and the frames, each with the first as dictionary."""
    ends = np.frombuffer(blob[: 4 * size], np.uint32).tolist()
    blocks = [
        blob[4 * size + begin : 4 * size + end]
        for begin, end in zip([0, *ends[: count - 1]], ends[:count], strict=True)
    ]
    first = lz4.block.decompress(blocks[0], uncompressed_size=frame_bytes)
    rest = [
        lz4.block.decompress(block, uncompressed_size=frame_bytes, dict=first)
        for block in blocks[1:]
    ]
    frames = np.frombuffer(b"".join([first, *rest]), np.uint8).reshape(count, frame_bytes)
    return frames, 4 * size + ends[-1]


def blobs_of(store: FrameStore, key: str) -> list[bytes]:
    packed = {
        name: np.asarray(value)
        for name, value in store.state_dict()["columns"][key].items()
        if name != "checksum"
    }
    ends = np.cumsum(packed["sizes"])
    return [
        packed["blobs"].tobytes()[end - size : end]
        for end, size in zip(ends, packed["sizes"], strict=True)
    ]


smooth = st.builds(
    lambda seed, word, width, scale, zeros: (
        (np.random.default_rng(seed).normal(size=(48, width)).cumsum(0) * scale).astype(np.int64)
        * (np.random.default_rng(seed).random((48, width)) > zeros)
    ).astype(f"i{word}"),
    st.integers(0, 999),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 80),
    st.sampled_from([1.0, 50.0, 1e4, 1e12]),
    st.sampled_from([0.0, 0.2, 0.9]),
)


@QUIET
@given(frames=smooth | arrays.arrays(np.int64, (24, 3)), chunk=st.sampled_from([8, 16, 24, 64]))
def test_delta_is_what_its_description_says(frames, chunk):
    frames = np.resize(frames, (2 * chunk, frames.shape[1]))
    store = FrameStore(2 * chunk, chunk=chunk, streams=1, codecs={"x": "delta"})
    store.extend({"x": frames})
    assert store.get(np.arange(2 * chunk))["x"].numpy().tobytes() == frames.tobytes()
    size = store.ring.size
    decoded = [
        decode_delta(blob, frames.shape[1], frames.itemsize, size) for blob in blobs_of(store, "x")
    ]
    assert np.concatenate([part for part, _ in decoded])[: 2 * chunk].tobytes() == frames.tobytes()
    assert [read for _, read in decoded] == [len(blob) for blob in blobs_of(store, "x")]


@QUIET
@given(
    seed=st.integers(0, 999),
    height=st.integers(2, 9),
    width=st.integers(8, 21),
    values=st.sampled_from(
        [[0, 255], [0, 1, 2, 3, 255], [0], [7], list(range(256)), list(range(3, 250, 9))]
    ),
    count=st.integers(1, 30),
)
def test_rows_is_what_its_description_says(seed, height, width, values, count):
    rng = np.random.default_rng(seed)
    grids = np.array(values, np.uint8)[rng.integers(0, len(values), (count, height, width))]
    grids[:, 1:][rng.random((count, height - 1, width)) < 0.6] = 0
    store = FrameStore(count, chunk=8, streams=1, codecs={"x": "rows"})
    store.extend({"x": grids})
    assert np.array_equal(store.get(np.arange(count))["x"].numpy(), grids)
    done = 0
    for blob in blobs_of(store, "x"):
        frames, read = decode_rows(blob, height * width, width, 8, min(8, count - done))
        assert np.array_equal(frames, grids.reshape(count, -1)[done : done + 8])
        assert read == len(blob)
        done += 8


def frames_of(kind: Kind, count: int, seed: int = 0) -> np.ndarray:
    """Return frames as integers, (count, features): most change little, and a part is zero."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 5, (count, kind.features)).cumsum(0)
    numbers[:, rng.random(kind.features) < 0.3] = 0
    return numbers.astype(f"u{kind.word}")


class FrameCodecContract:
    """What every codec of frames promises."""

    name: str
    kinds: tuple[Kind, ...]

    def test_it_is_registered_under_its_name(self):
        assert find_codec(self.name, FrameCodec).name == self.name

    def test_it_is_frozen(self):
        with pytest.raises(FrozenInstanceError):
            find_codec(self.name, FrameCodec).name = "other"

    def test_it_is_found_again_by_its_description(self):
        for kind in self.kinds:
            codec = frame_codec(self.name, kind)
            described = codec.describe()
            assert frame_codec(described["codec"], kind, described["parameter"]) == codec

    @pytest.mark.parametrize("streams", [1, 3])
    @pytest.mark.parametrize("count", [1, 7, 8, 21, 50])
    def test_frames_and_those_after_them_come_back_bit_for_bit(self, streams, count):
        for kind in self.kinds:
            ring = Ring(50, 8, streams)
            column = make_column(kind, ring, frame_codec(self.name, kind))
            frames = frames_of(kind, count)
            fill(column, ring, frames)
            indices = np.random.default_rng(1).permutation(count)
            paired = (indices + streams < count).astype(np.uint8)
            out, following = np.empty_like(frames), np.zeros_like(frames)
            column.read(indices, paired, out, following, lambda work, rows, _: work(0, rows))
            assert np.array_equal(out, frames[indices]), kind
            chosen = paired.astype(bool)
            assert np.array_equal(following[chosen], frames[indices[chosen] + streams]), kind

    def test_a_frame_can_be_rewritten(self):
        for kind in self.kinds:
            ring = Ring(50, 8, 2)
            column = make_column(kind, ring, frame_codec(self.name, kind))
            frames = frames_of(kind, 50)
            fill(column, ring, frames)
            frames[[3, 20, 49]] = frames_of(kind, 3, seed=9)
            column.write(np.array([3, 20, 49]), frames[[3, 20, 49]])
            out = np.empty_like(frames)
            none = np.zeros(50, np.uint8)
            column.read(np.arange(50), none, out, out, lambda work, rows, _: work(0, rows))
            assert np.array_equal(out, frames), kind


def fill(column, ring: Ring, frames: np.ndarray) -> None:
    """Write frames as a store does: whole blocks encoded, the rest into the stage."""
    count = len(frames)
    if isinstance(column, ChunkColumn):
        blocks = ring.blocks if count == ring.capacity else count // ring.block_frames
        whole = min(blocks * ring.block_frames, ring.capacity)
        if blocks:
            column.commit(*column.encode(0, blocks, frames[:whole]))
        column.stage[: count - whole] = frames[whole:]
    else:
        column.write(np.arange(count), frames)
    ring.total, ring.cursor = count, count % ring.capacity


class ChunkedCodecContract(FrameCodecContract):
    """What every codec that compresses chunks of frames promises beyond that."""

    def chunk(self, kind: Kind, count: int = 8):
        """Return codec, layout, and the stored bytes of a chunk, followed by padding."""
        codec, layout = frame_codec(self.name, kind), ChunkLayout(kind, 8)
        target = np.zeros(codec.bound(layout) + PADDING, np.uint8)
        chunks = FrameChunks(frames_of(kind, count), np.array([0]), np.array([count]), 1)
        (size,) = codec.encode(layout, chunks, target)
        return codec, layout, target, int(size)

    def decode_independently(self, blob: bytes, kind: Kind, count: int) -> np.ndarray:
        raise NotImplementedError

    @pytest.mark.parametrize("count", [1, 5, 8])
    def test_a_chunk_is_what_its_description_says_and_within_its_bound(self, count):
        for kind in self.kinds:
            codec, layout, target, size = self.chunk(kind, count)
            assert size <= codec.bound(layout)
            frames, read = self.decode_independently(target[:size].tobytes(), kind, count)
            assert np.array_equal(frames[:count], frames_of(kind, count)), kind
            assert read == size

    def test_a_chunk_that_is_cut_or_too_long_is_found(self):
        for kind in self.kinds:
            codec, layout, target, size = self.chunk(kind)
            count = np.array([8])
            assert codec.check(layout, target, np.array([size]), count) == -1
            for wrong in (0, 1, size // 2, size - 1, size + 1):
                assert codec.check(layout, target, np.array([wrong]), count) == 0, (kind, wrong)

    @settings(max_examples=60, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_a_damaged_state_is_refused_or_means_what_the_format_says(self, data):
        store, state = stored(self.name, 90)  # all in chunks, none in the stage
        before = store.get(np.arange(90))["x"]
        blobs = state["columns"]["x"]["blobs"]
        for _ in range(data.draw(st.integers(1, 3))):
            blobs[data.draw(st.integers(0, len(blobs) - 1))] = data.draw(st.integers(0, 255))
        try:
            store.load_state_dict(state)
        except StateError:
            assert store.get(np.arange(90))["x"].equal(before)
            return
        kind = Kind("uint8", (12, 12))
        for chunk, blob in enumerate(blobs_of(store, "x")):
            indices = np.arange(8 * chunk, min(8 * chunk + 8, 90))
            try:
                expected = self.decode_independently(blob, kind, len(indices))[0]
            except Exception:  # bytes that the format gives no meaning; the store must survive them
                expected = None
            try:
                found = store.get(indices, ["x"])["x"].numpy().reshape(len(indices), -1)
            except ReplayError:
                assert expected is None
                continue
            if expected is not None:
                assert np.array_equal(found, expected[: len(indices)])


BYTES = (Kind("uint8", (12, 12)), Kind("uint8", (5, 9, 3)), Kind("bool", (2, 300)))
NUMBERS = (
    Kind("float32", (7,)),
    Kind("float64", (3,)),
    Kind("int16", (20,)),
    Kind("uint8", (5,)),
    Kind("complex64", (2,)),
)


class TestRaw(FrameCodecContract):
    name, kinds = "raw", (*NUMBERS, *BYTES)


class TestDelta(ChunkedCodecContract):
    name, kinds = "delta", (*NUMBERS, *BYTES)

    def decode_independently(self, blob, kind, count):
        return decode_delta(blob, kind.features, kind.word, 8)


class TestRows(ChunkedCodecContract):
    name, kinds = "rows", BYTES

    def decode_independently(self, blob, kind, count):
        length = frame_codec("rows", kind).parameter
        return decode_rows(blob, kind.nbytes, length, 8, count)

    def test_a_bit_behind_the_last_group_is_damage(self):
        store, state = stored(self.name, 90)
        groups, table = 12 * 12 // 8, 33 + 4 * 8  # 18 groups: the third byte has six bits left
        state["columns"]["x"]["blobs"][table + groups // 8] |= 0x80
        store.load_state_dict(state)
        with pytest.raises(ReplayError, match="a stored frame is damaged"):
            store.get(np.arange(1))


class TestLz4(ChunkedCodecContract):
    name, kinds = "lz4", (*NUMBERS, *BYTES)

    def decode_independently(self, blob, kind, count):
        frames, read = decode_lz4(blob, kind.nbytes, 8, count)
        return frames.view(f"u{kind.word}"), read


def test_every_registered_codec_of_frames_keeps_the_contract():
    contracts = [*FrameCodecContract.__subclasses__(), *ChunkedCodecContract.__subclasses__()]
    tested = {test.name for test in contracts if hasattr(test, "name")}
    assert tested == set(codecs_of(FrameCodec))


@pytest.mark.parametrize("kind", [Kind("float32", (4, 8)), Kind("uint8", (64,)), Kind("uint8", ())])
def test_rows_are_refused_for_frames_that_have_none(kind):
    with pytest.raises(ConfigError, match="'rows' is for frames of bytes"):
        frame_codec("rows", kind)


def test_codecs_of_files_and_of_frames_may_share_a_name():
    assert find_codec("lz4") != find_codec("lz4", FrameCodec)
    with pytest.raises(ConfigError, match="expected one of raw, delta, lz4, rows"):
        find_codec("zstd", FrameCodec)


def stored(codec: str, count: int = 100) -> tuple[FrameStore, dict]:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 4, (count, 12, 12), dtype=np.uint8) * (
        rng.random((count, 12, 12)) < 0.3
    ).astype(np.uint8)
    store = FrameStore(90, chunk=8, streams=1, codecs={"x": codec})
    store.extend({"x": frames, "next/x": np.roll(frames, -1, 0)})
    state = store.state_dict()
    for part in (state["columns"]["x"], *state["links"].values()):
        del part["checksum"]  # so that the chunks themselves are checked
    return store, state


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("kinds"),
        lambda state: state.update(capacity=91),
        lambda state: state.update(version=2),
        lambda state: state.update(cursor=5),
        lambda state: state.update(streams=0),
        lambda state: state.update(size=9),
        lambda state: state.update(size="x"),
        lambda state: state.update(total=float("inf")),
        lambda state: state["kinds"].update(x=["uint8", [1 << 39, 1 << 39]]),
        lambda state: state["kinds"].update(x=["uint8"]),
        lambda state: state["kinds"].update(x=["float99", [12, 12]]),
        lambda state: state["kinds"].update(x=["uint8", [12, 13]]),
        lambda state: state["columns"].pop("x"),
        lambda state: state["columns"]["x"].update(codec="zip"),
        lambda state: state["columns"]["x"].update(parameter=-40),
        lambda state: state["columns"]["x"].update(blobs=state["columns"]["x"]["blobs"][:-1]),
        lambda state: state["columns"]["x"].update(sizes=state["columns"]["x"]["sizes"] * 0),
        lambda state: state["columns"]["x"].update(stage=None),
        lambda state: state["links"]["x"].update(slots=np.array([90])),
        lambda state: state["links"]["x"].update(tail=np.zeros((2, 144), np.uint8)),
        lambda state: state["links"].update(y=state["links"]["x"]),
        lambda state: state.update(first=[{"x": np.zeros((1, 144), np.uint8)}]),
    ],
)
def test_a_state_that_does_not_hold_together_is_refused(damage):
    store, state = stored("rows")
    before = store.get(np.arange(90))
    state = copy.deepcopy(state)
    damage(state)
    with pytest.raises(StateError):
        store.load_state_dict(state)
    assert all(store.get(np.arange(90))[key].equal(value) for key, value in before.items())


@pytest.mark.parametrize("codec", ["raw", "delta", "rows", "lz4"])
def test_a_bit_that_changed_in_a_state_is_found_by_its_checksum(codec):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 4, (91, 12, 12), dtype=np.uint8)
    store = FrameStore(90, codecs={"x": codec})
    store.extend({"x": pictures[:-1], "next/x": pictures[1:]})
    for name in ("columns", "links"):
        state = copy.deepcopy(store.state_dict())
        part = state[name]["x"]
        flat = part["tail" if name == "links" else "frames" if codec == "raw" else "blobs"].reshape(
            -1
        )
        flat[len(flat) // 2] ^= 1
        with pytest.raises(StateError, match="checksum"):
            FrameStore(90).load_state_dict(state)
    FrameStore(90).load_state_dict(store.state_dict())


def test_a_palette_that_lacks_a_value_of_the_frames_is_an_error_when_they_are_read():
    store, state = stored("rows", 90)
    state["columns"]["x"]["blobs"][0] = 1  # of the values 0 to 3 only 0 is left
    store.load_state_dict(state)
    with pytest.raises(ReplayError, match="a stored frame is damaged"):
        store.get(np.arange(8))
    store.get(np.arange(8, 16))  # the next chunk has a palette of its own
