"""The codecs of the replay against decoders written from their descriptions, and against damage."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from navrl import FrameStore
from navrl.errors import ReplayError, StateError

QUIET = settings(max_examples=60, deadline=None)


def bits_of(data: bytes) -> list[int]:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").tolist()


def number(bits: list[int]) -> int:
    return sum(bit << place for place, bit in enumerate(bits))


def decode_delta(blob: bytes, features: int, word: int, size: int) -> tuple[np.ndarray, int]:
    """Decode a chunk as the first lines of replay_delta.py describe it; return the frames and the
    bytes read.
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
    """Decode a chunk as the first lines of replay_rows.py describe it."""
    used = [value for value, bit in enumerate(bits_of(blob[:32])) if bit]
    lower = blob[32] + 1
    value_of = {
        rank if rank < lower else 256 - len(used) + rank: value for rank, value in enumerate(used)
    }
    ends = np.frombuffer(blob[33 : 33 + 4 * size], np.uint32).tolist()
    begin, groups = 33 + 4 * size, -(-frame_bytes // 8)
    frames, position = [], begin
    for t in range(count):
        differs = bits_of(blob[position : position + (groups + 7) // 8])[:groups]
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
                packed = bits_of(blob[position : position + width])
                position += width
                for i in range(8):
                    z = number(packed[i * width : (i + 1) * width])
                    above[i] = (above[i] + (z // 2 if z % 2 == 0 else -(z + 1) // 2)) % 256
            ranks[8 * group : 8 * group + 8] = above
        assert position == begin + ends[t]
        frames.append([value_of[rank] for rank in ranks[:frame_bytes]])
    return np.array(frames, np.uint8), position


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


def stored(codec: str) -> tuple[FrameStore, dict]:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 4, (100, 12, 12), dtype=np.uint8) * (
        rng.random((100, 12, 12)) < 0.3
    ).astype(np.uint8)
    store = FrameStore(90, chunk=8, streams=1, codecs={"x": codec})
    store.extend({"x": frames, "next/x": np.roll(frames, -1, 0)})
    state = store.state_dict()
    for part in (state["columns"]["x"], *state["links"].values()):
        del part["checksum"]  # so that what holds the frames together is looked at
    return store, state


@pytest.mark.parametrize("codec", ["delta", "rows", "lz4"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_chunks_are_refused_or_decoded_but_never_read_past_their_end(codec, data):
    store, state = stored(codec)
    before = store.get(np.arange(90))["x"]
    blobs = state["columns"]["x"]["blobs"]
    for _ in range(data.draw(st.integers(1, 3))):
        blobs[data.draw(st.integers(0, len(blobs) - 1))] = data.draw(st.integers(0, 255))
    try:
        store.load_state_dict(state)
    except StateError:
        assert store.get(np.arange(90))["x"].equal(before)
        return
    with contextlib.suppress(ReplayError) if codec == "lz4" else contextlib.nullcontext():
        assert store.get(np.arange(90))["x"].shape == before.shape


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
