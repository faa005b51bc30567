"""The replay against a plain list of frames: what goes in comes out, bit for bit, whatever was
overwritten meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tracemalloc

import io_states
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl import FrameStore, Rounded, load_checkpoint, save_checkpoint
from navrl.errors import ConfigError, ReplayError, ReplayIndexError
from navrl.io.replay import lz4_codec
from navrl.io.replay.row_threads import RowThreads

QUIET = settings(max_examples=30, deadline=None)


def flights(count: int, streams: int = 1, seed: int = 0, width: int = 6) -> dict[str, np.ndarray]:
    """Return frames of `streams` environments taking turns, with ends of episodes here and there."""
    rng = np.random.default_rng(seed)
    steps = -(-count // streams) + 1
    walk = rng.normal(size=(steps, streams, width)).cumsum(0).astype(np.float32)
    walk[rng.random(walk.shape) < 0.3] = 0
    ended = rng.random((steps, streams)) < 0.1
    final = np.where(
        ended[:-1, :, None], rng.normal(size=walk[1:].shape).astype(np.float32), walk[1:]
    )
    picture = (
        (walk[..., :1, None] * np.linspace(-1, 1, 16 * 8).reshape(8, 16))
        .astype(np.int8)
        .view(np.uint8)
    )
    frames = {
        "observation": walk[:-1],
        "picture": picture[:-1],
        "action": rng.normal(size=(steps - 1, streams, 3)),
        "reward": rng.normal(size=(steps - 1, streams)).astype(np.float32),
        "terminated": ended[:-1],
        "next/observation": final,
        "next/picture": np.where(ended[:-1, :, None, None], np.uint8(7), picture[1:]),
    }
    return {key: value.reshape(-1, *value.shape[2:])[:count] for key, value in frames.items()}


def bits(value: np.ndarray | torch.Tensor) -> bytes:
    return io_states.bits(value) if isinstance(value, torch.Tensor) else value.tobytes()


def assert_holds(store: FrameStore, expected: list[dict[str, np.ndarray]]) -> None:
    assert len(store) == len(expected)
    if not expected:
        return
    found = store.get(np.arange(len(store)))
    assert list(found) == list(expected[0])
    for key, tensor in found.items():
        wanted = np.stack([frame[key] for frame in expected])
        assert tensor.shape == wanted.shape
        assert tensor.numpy().dtype == wanted.dtype
        assert bits(tensor) == wanted.tobytes(), key


class Plain:
    """A ring of frames as a list."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.frames, self.cursor = capacity, [], 0

    def extend(self, frames: dict[str, np.ndarray]) -> list[int]:
        indices = []
        for row in range(len(frames["reward"])):
            frame = {key: value[row].copy() for key, value in frames.items()}
            if self.cursor == len(self.frames):
                self.frames.append(frame)
            else:
                self.frames[self.cursor] = frame
            indices.append(self.cursor)
            self.cursor = (self.cursor + 1) % self.capacity
        return indices


@QUIET
@given(
    capacity=st.integers(1, 150),
    streams=st.integers(1, 5),
    chunk=st.sampled_from([8, 16]),
    seed=st.integers(0, 99),
    pieces=st.lists(st.integers(0, 90), max_size=8),
    told=st.booleans(),
    restored=st.integers(0, 8),
)
def test_a_store_is_a_ring_of_frames(capacity, streams, chunk, seed, pieces, told, restored):
    streams = min(streams, capacity)
    store = FrameStore(capacity, chunk=chunk, streams=streams if told else None)
    plain = Plain(capacity)
    frames, done = flights(sum(pieces) + 1, streams, seed), 0
    for number, count in enumerate(pieces):
        piece = {key: value[done : done + count] for key, value in frames.items()}
        assert store.extend(piece).tolist() == plain.extend(piece)
        done += count
        if number == restored:
            state = store.state_dict()
            store = FrameStore(capacity, chunk=chunk)
            store.load_state_dict(state)
    assert store.cursor == plain.cursor
    assert_holds(store, plain.frames)


@QUIET
@given(
    capacity=st.integers(2, 90),
    streams=st.integers(1, 3),
    written=st.integers(1, 250),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_any_frame_can_be_rewritten(capacity, streams, written, seed, data):
    store, plain = FrameStore(capacity, chunk=8, streams=min(streams, capacity)), Plain(capacity)
    frames = flights(written, streams, seed)
    store.extend(frames)
    plain.extend(frames)
    for turn in range(4):
        slots = np.array(
            data.draw(st.lists(st.integers(0, len(store) - 1), min_size=1, max_size=5))
        )
        new = flights(len(slots), 1, seed + turn + 1)
        keys = data.draw(
            st.sampled_from(
                [list(new), ["observation"], ["next/picture", "reward"], ["picture", "observation"]]
            )
        )
        new = {key: new[key] for key in keys}
        store.update(slots, new)
        for row, slot in enumerate(slots):
            plain.frames[slot].update({key: value[row] for key, value in new.items()})
        more = flights(3, streams, seed + turn)
        store.extend(more)
        plain.extend(more)
        assert_holds(store, plain.frames)


def test_frames_set_where_the_next_would_go_move_the_cursor_and_others_do_not():
    store, plain, frames = FrameStore(70, chunk=8), Plain(70), flights(200)
    for begin, slots in ((0, range(70)), (70, range(9)), (79, [69, 5, 6])):
        piece = {key: value[begin : begin + len(slots)] for key, value in frames.items()}
        store.set(list(slots), piece)
        if begin < 79:
            plain.extend(piece)
        for row, slot in enumerate(slots):
            plain.frames[slot] = {key: value[row] for key, value in piece.items()}
    assert store.cursor == plain.cursor == 9
    assert_holds(store, plain.frames)
    with pytest.raises(ReplayError, match="2 frames for 1 indices"):
        store.set([3], {key: value[:2] for key, value in frames.items()})


ELEMENTS = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
]


@pytest.mark.parametrize("codec", ["raw", "delta", "lz4"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_element_type_comes_back_bit_for_bit(element, codec):
    dtype = getattr(torch, element)
    rng = np.random.default_rng(1)
    width = torch.empty(0, dtype=dtype).element_size()
    raw = rng.integers(0, 256, (100, 5 * width), dtype=np.uint8)  # with every kind of NaN
    raw[rng.random(raw.shape) < 0.2] = 0
    raw[40:80] = raw[40]
    raw = raw % 2 if element == "bool" else raw
    frames = torch.from_numpy(raw).view(dtype).reshape(100, 5)
    store = FrameStore(90, chunk=8, codecs={"x": codec})
    store.extend({"x": frames})
    found = store.get(np.arange(90))["x"]
    wanted = frames[[*range(90, 100), *range(10, 90)]]
    assert found.dtype == dtype
    assert bits(found) == bits(wanted)
    assert store.chosen == {"x": codec}


def test_negative_zeros_and_payloads_of_nan_are_kept():
    odd = np.array([0x80000000, 0x7FC00001, 0xFFC12345, 0x7F800000, 0x00000001, 0], np.uint32).view(
        np.float32
    )
    frames = np.stack([np.roll(odd, shift) for shift in range(64)])
    store = FrameStore(64, codecs={"x": "delta"})
    store.extend({"x": frames, "next/x": np.roll(frames, -1, 0)})
    assert bits(store.get(np.arange(64))["x"]) == frames.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (3, 0), (2, 3, 4)])
def test_frames_of_any_shape_are_held(shape):
    frames = np.random.default_rng(0).normal(size=(70, *shape)).astype(np.float32)
    store = FrameStore(64, codecs={"x": "delta"})
    store.extend({"x": frames})
    assert store.get([63, 0])["x"].numpy().tolist() == frames[[63, 64]].tolist()


def test_tensors_that_are_not_contiguous_and_foreign_byte_orders_are_taken():
    grid = torch.arange(7 * 80 * 3).reshape(7, 80, 3).transpose(0, 1)
    column = torch.from_numpy(np.arange(80)[:, None])  # its second axis has a stride of 0
    store = FrameStore(80)
    turned, same = grid.numpy().astype(">i8"), torch.ones(1).expand(80)
    store.extend(
        {"tensor": grid, "array": turned, "column": column, "same": same, "other": column.numpy()}
    )
    assert torch.equal(store.get(range(80))["column"], column)
    assert torch.equal(store.get(range(80))["same"], torch.ones(80))
    assert torch.equal(store.get(range(80))["tensor"], grid)
    assert torch.equal(store.get(np.arange(80))["array"], grid)


def test_codecs_are_chosen_by_what_they_save():
    frames = flights(400, width=40)
    rng = np.random.default_rng(0)
    frames["noise"] = rng.normal(size=(400, 20)).astype(np.float32)
    frames["map"] = np.repeat(rng.integers(0, 256, (4, 999), dtype=np.uint8), 100, 0)
    store = FrameStore(400)
    store.extend(frames)
    assert store.chosen["observation"] == "delta"
    assert store.chosen["picture"] == "rows"
    assert store.chosen["map"] in ("delta", "lz4")
    assert store.chosen["next/observation"] == store.chosen["next/picture"] == "next frame"
    assert all(store.chosen[key] == "raw" for key in ("noise", "reward", "terminated", "action"))


def test_smooth_frames_take_a_fraction_of_their_bytes():
    steps = np.arange(4001)[:, None] * np.linspace(0.001, 0.002, 100)
    walk = (np.sin(steps) + 2).astype(np.float32)
    store = FrameStore(4000)
    store.extend({"x": walk[:-1], "next/x": walk[1:]})
    assert store.nbytes() < 2 * walk.nbytes / 4


@pytest.mark.parametrize("streams", [1, 4, 50])
def test_environments_that_take_turns_are_found_out(streams):
    store, count = FrameStore(3000), max(100, 40 * streams)
    frames = flights(count, streams)
    for step in range(0, count, streams):
        store.extend({key: value[step : step + streams] for key, value in frames.items()})
    assert store.ring.streams == streams
    assert store.chosen["next/observation"] == "next frame"
    assert_holds(
        store, [{key: value[row] for key, value in frames.items()} for row in range(count)]
    )


def test_a_next_that_never_is_the_next_frame_is_a_key_like_any_other():
    store, frames = FrameStore(500), flights(300)
    frames["next/observation"] = frames["next/observation"][::-1].copy()
    store.extend(frames)
    assert store.chosen["next/observation"] != "next frame"
    assert (
        bits(store.get(np.arange(300))["next/observation"]) == frames["next/observation"].tobytes()
    )


def test_rounding_loses_at_most_half_a_step_and_keeps_what_is_not_finite():
    frames = np.random.default_rng(0).uniform(-5, 5, (200, 30)).astype(np.float32)
    frames[3, :3] = [np.nan, np.inf, -np.inf]
    store = FrameStore(200, codecs={"x": Rounded(1e-3)})
    store.extend({"x": frames, "y": frames})
    found = store.get(np.arange(200))
    assert bits(found["y"]) == frames.tobytes()
    with np.errstate(invalid="ignore"):
        lost = np.abs(found["x"].numpy() - frames)
    assert np.nanmax(np.where(np.isfinite(frames), lost, 0)) <= 0.5e-3 + 1e-6
    assert np.array_equal(np.isfinite(found["x"].numpy()), np.isfinite(frames))
    assert found["x"][3, 1] == np.inf


def test_without_the_functions_of_lz4_the_same_chunks_are_made(monkeypatch):
    frames = np.repeat(np.random.default_rng(0).integers(0, 9, (10, 700), dtype=np.uint8), 10, 0)
    frames[::7, 300:] = 3
    fast = FrameStore(90, codecs={"x": "lz4"})
    fast.extend({"x": frames})
    monkeypatch.setattr(lz4_codec, "lz4_functions", lambda: None)
    slow = FrameStore(90, codecs={"x": "lz4"})
    slow.extend({"x": frames})
    for store in (fast, slow):  # both are read without them
        found = store.get(np.arange(90))["x"].numpy()
        assert np.array_equal(found, frames[[*range(90, 100), *range(10, 90)]])
    monkeypatch.undo()
    assert np.array_equal(slow.get(np.arange(90))["x"].numpy(), found)


def test_a_checkpoint_holds_the_store_compressed(tmp_path):
    store, frames = FrameStore(2000), flights(2600, width=100)
    store.extend(frames)
    save_checkpoint({"replay": store.state_dict()}, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < store.nbytes() * 1.05
    restored = FrameStore(2000)
    restored.load_state_dict(load_checkpoint(tmp_path / "x.pt")["replay"])
    for one in (store, restored):
        one.extend({key: value[:500] for key, value in frames.items()})
    found, wanted = restored.get(np.arange(2000)), store.get(np.arange(2000))
    assert all(bits(found[key]) == bits(wanted[key]) for key in wanted)


def test_samples_are_uniform_and_repeat_with_the_seed():
    store = FrameStore(50)
    store.extend({"x": np.arange(70)})
    draws = store.sample(20_000, torch.Generator().manual_seed(0))["x"]
    again = store.sample(20_000, torch.Generator().manual_seed(0))["x"]
    counts = torch.bincount(draws, minlength=70)
    assert torch.equal(draws, again)
    assert counts[:20].sum() == 0
    assert counts[20:].min() > 300


def test_a_batch_never_shows_half_a_frame():
    store, stop = FrameStore(333, codecs={"a": "delta", "b": "raw", "c": "rows"}), threading.Event()

    def frames(first: int) -> dict[str, np.ndarray]:
        numbers = np.arange(first, first + 21)
        grid = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (21, 9, 9))
        return {
            "a": np.repeat(numbers[:, None], 5, 1),
            "b": numbers,
            "c": grid,
            "next/a": np.repeat(numbers[:, None] + 1, 5, 1),
        }

    def write() -> None:
        first = 21
        while not stop.is_set():
            store.extend(frames(first))
            first += 21

    store.extend(frames(0))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        for _ in range(300):
            batch = store.sample(64)
            assert (batch["a"] == batch["b"][:, None]).all()
            assert (batch["next/a"] == batch["b"][:, None] + 1).all()
            assert (batch["c"] == (batch["b"] % 251)[:, None, None]).all()
            seen.update(batch["b"].tolist())
    finally:
        stop.set()
        writer.join()
    assert max(seen) > 1000


def test_batches_are_drawn_ahead_and_errors_reach_the_caller():
    store = FrameStore(100)
    with pytest.raises(ReplayError, match="empty"):
        next(store.batches(8))
    store.extend({"x": np.arange(100)})
    drawn = store.batches(8, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        assert torch.equal(next(drawn)["x"], store.sample(8, generator)["x"])
    drawn.close()


def test_large_batches_are_decoded_by_several_threads_alike():
    grids = np.random.default_rng(0).integers(0, 3, (300, 100, 100), dtype=np.uint8)
    one, many = (FrameStore(300, threads=threads, codecs={"x": "rows"}) for threads in (1, 4))
    for store in (one, many):
        store.extend({"x": grids})
        assert np.array_equal(store.get(np.arange(300))["x"].numpy(), grids)


DECODE_TOGETHER = """
import sys
import numpy as np
from navrl import FrameStore
grids = np.random.default_rng(0).integers(0, 3, (300, 100, 100), dtype=np.uint8)
store = FrameStore(300, threads=4, codecs={"x": sys.argv[1]})
store.extend({"x": grids})
print(sum(not np.array_equal(store.get(np.arange(300))["x"].numpy(), grids) for _ in range(20)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["rows", "lz4"])
def test_threads_that_are_given_memory_from_one_heap_decode_alike(codec):
    process = subprocess.run(
        [sys.executable, "-c", DECODE_TOGETHER, codec],
        env=os.environ
        | {"MALLOC_ARENA_MAX": "1"},  # what one thread frees is then what the next is given
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (process.stdout.strip(), process.stderr) == ("0", "")


def test_memory_of_frames_that_are_gone_is_used_again():
    store, frames = FrameStore(2000), flights(2000, width=60)
    store.extend(frames)
    before = store.nbytes()
    for _ in range(10):
        store.extend(frames)
    assert store.nbytes() < 1.3 * before


def test_a_cleared_store_takes_other_frames():
    store = FrameStore(100)
    store.extend(flights(90))
    store.clear()
    assert len(store) == 0
    store.extend({"other": np.zeros(3)})
    assert list(store.get([0])) == ["other"]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ({}, "frames are {}"),
        ({"x": np.zeros((3, 2), np.float32), "y": np.zeros(2)}, "different numbers of frames"),
        ({"x": np.zeros((3, 3), np.float32)}, r"x: float32 \(3,\), expected float32 \(2,\)"),
        ({"x": np.zeros((3, 2))}, "x: float64"),
        ({"z": np.zeros((3, 2), np.float32)}, "z: float32 .* expected nothing"),
        ({"x": np.array(["a", "b"])}, "cannot be stored"),
        ({"x": 3.0}, "single number"),
    ],
)
def test_frames_that_do_not_fit_are_refused_and_nothing_is_stored(frames, message):
    store = FrameStore(100)
    store.extend({"x": np.ones((80, 2), np.float32)})
    with pytest.raises(ReplayError, match=message):
        store.extend(frames)
    assert len(store) == 80


@pytest.mark.parametrize("indices", [[80], [-1], [[1, 2]], [0.5]])
def test_indices_that_are_not_held_are_refused(indices):
    store = FrameStore(100)
    store.extend({"x": np.ones(80)})
    with pytest.raises(ReplayIndexError):
        store.get(indices)
    with pytest.raises(IndexError):
        store.update(indices, {"x": np.ones(1)})


def test_some_keys_are_read_alone_and_unknown_ones_are_named():
    store = FrameStore(100)
    store.extend(flights(90))
    assert list(store.get([3, 4], ["next/picture", "reward"])) == ["reward", "next/picture"]
    assert torch.equal(
        store.get([3, 4], ["next/picture"])["next/picture"], store.get([3, 4])["next/picture"]
    )
    with pytest.raises(ReplayError, match=r"no keys \['rward'\]"):
        store.get([0], ["rward"])


def test_an_empty_store_says_so():
    with pytest.raises(ReplayError, match="empty"):
        FrameStore(10).sample(1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"capacity": 0},
        {"capacity": 1.5},
        {"chunk": 7},
        {"streams": 0},
        {"threads": 0},
        {"codecs": {"x": "rws"}},
    ],
)
def test_impossible_settings_are_refused(arguments):
    with pytest.raises(
        ConfigError, match=next(iter(arguments)) if "codecs" not in arguments else "rows"
    ):
        FrameStore(**{"capacity": 10, **arguments})


@pytest.mark.parametrize(
    ("codecs", "message"),
    [
        ({"y": "raw"}, "which the frames do not have"),
        ({"x": "rows"}, "rows of at least 8"),
        ({"n": Rounded(1)}, "float16"),
    ],
)
def test_codecs_that_do_not_fit_the_frames_are_refused(codecs, message):
    store = FrameStore(10, codecs=codecs)
    with pytest.raises(ConfigError, match=message):
        store.extend({"x": np.zeros((3, 2), np.float32), "n": np.zeros(3, int)})
    with pytest.raises(ConfigError, match="positive step"):
        Rounded(0.0)


def test_numbers_too_large_for_a_step_are_refused():
    store = FrameStore(10, codecs={"x": Rounded(1e-6)})
    with pytest.raises(ReplayError, match="larger step"):
        store.extend({"x": np.full((3, 9), 1e6)})


def test_no_thread_works_on_when_the_first_part_of_a_batch_raises():
    begun, running = threading.Event(), threading.Event()

    def work(begin, end):
        if not begin:
            begun.wait(10)
            raise ValueError("the first part")
        running.set()
        begun.set()
        time.sleep(0.3)
        running.clear()

    with pytest.raises(ValueError, match="the first part"):
        RowThreads(2).split(work, 10, 1 << 30)
    assert not running.is_set()


@pytest.mark.parametrize("count", [40, 150])
def test_a_state_is_loaded_by_torch_with_weights_only(tmp_path, count):
    store, frames = FrameStore(100), flights(count)
    store.extend(frames)
    torch.save(store.state_dict(), tmp_path / "x.pt")
    restored = FrameStore(100)
    restored.load_state_dict(torch.load(tmp_path / "x.pt", weights_only=True))
    for key, tensor in store.get(np.arange(len(store))).items():
        assert torch.equal(restored.get(np.arange(len(store)))[key], tensor)


def test_a_state_of_arrays_as_older_versions_wrote_it_is_loaded():
    store = FrameStore(100)
    store.extend(flights(150))
    state = store.state_dict()
    unsigned = {torch.int16: "u2", torch.int32: "u4", torch.int64: "u8"}
    for part, known in [(part, ("sizes",)) for part in state["columns"].values()] + [
        (p, ("slots",)) for p in state["links"].values()
    ]:
        for name, value in part.items():
            if isinstance(value, torch.Tensor):
                array = value.numpy()
                part[name] = (
                    array if name in known else array.view(unsigned.get(value.dtype, array.dtype))
                )
    restored = FrameStore(100)
    restored.load_state_dict(state)
    for key, tensor in store.get(np.arange(100)).items():
        assert torch.equal(restored.get(np.arange(100))[key], tensor)


def test_a_refused_set_leaves_an_empty_store_open_to_other_keys():
    store = FrameStore(10)
    for indices, frames in (([5], np.zeros(1)), ([0, 1], np.zeros(1)), ([-1], np.zeros(1))):
        with pytest.raises(ReplayError):
            store.set(indices, {"x": frames})
    store.extend({"y": np.zeros(3)})
    assert list(store.kinds) == ["y"]


@pytest.mark.parametrize("indices", [[3, 9], [0, 5], [3, 4, 6], [3, -1], [3, 4, 10], [0, 1 << 40]])
def test_a_set_with_a_wrong_index_stores_nothing(indices):
    store = FrameStore(10)
    store.extend({"x": np.arange(3)})
    with pytest.raises(ReplayIndexError, match="out of range"):
        store.set(indices, {"x": np.full(len(indices), 7)})
    assert store.get(np.arange(len(store)))["x"].tolist() == [0, 1, 2]


def test_a_set_may_go_on_at_the_end_and_return_to_what_it_wrote():
    store = FrameStore(5)
    store.extend({"x": np.arange(3)})
    store.set([3, 1, 4, 3, 0], {"x": np.array([10, 11, 12, 13, 14])})
    assert store.get(np.arange(5))["x"].tolist() == [14, 11, 2, 13, 12]


def test_the_length_is_not_read_while_the_first_frames_are_moved():
    store, seen = FrameStore(1000), []
    store.extend(flights(10))
    opened = store._open

    def watched(streams):
        reader = threading.Thread(target=lambda: seen.append((len(store), store.cursor)))
        store.first, kept = [], store.first  # as it is for a moment within
        reader.start()
        reader.join(0.2)
        store.first = kept
        opened(streams)

    store._open = watched
    store.extend(flights(490))
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == [(500, 500)]


def test_a_checkpoint_takes_tensors_whose_short_axes_have_no_stride(tmp_path):
    tensors = {
        "none": torch.from_numpy(np.array([], np.int64)),
        "one": torch.zeros(3, dtype=torch.int64).as_strided((1,), (0,)),
    }
    save_checkpoint(tensors, tmp_path / "x.pt")
    loaded = load_checkpoint(tmp_path / "x.pt")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("before", [0, 20])
def test_the_first_frames_are_not_copied_as_a_whole(before):
    x = np.sin(np.arange(60_000)[:, None] * np.linspace(0.001, 0.002, 104)).astype(np.float32)
    store = FrameStore(60_000, codecs={"x": "delta"}, threads=1)
    if before:
        store.extend({"x": x[:before]})
    tracemalloc.start()
    try:
        store.extend({"x": x[before:]})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < store.nbytes() + x.nbytes // 4
    assert torch.equal(
        store.get([0, before, 59_999])["x"], torch.from_numpy(x[[0, before, 59_999]])
    )


def test_first_frames_that_wait_do_not_change_with_the_arrays_they_came_from():
    store, x = FrameStore(1000), np.arange(10.0)
    store.extend({"x": x})
    x[:] = 0
    assert store.get(np.arange(10))["x"].tolist() == list(range(10))


def test_rewriting_compressed_frames_does_not_scatter_them():
    rng, count = np.random.default_rng(0), 8000
    x = (np.sin(np.arange(count)[:, None] * np.linspace(0.001, 0.002, 50)) + 2).astype(np.float32)
    store = FrameStore(count, codecs={"x": "delta"})
    store.extend({"x": x})
    begin = store.nbytes()
    for _ in range(400):
        chosen = rng.integers(0, count, 8)
        store.update(chosen, {"x": x[chosen]})
    assert store.nbytes() < 2 * begin + 300_000
    assert torch.equal(store.get(np.arange(count))["x"], torch.from_numpy(x))


@pytest.mark.parametrize("other", ["raw", Rounded(1e-2)])
def test_a_next_frame_that_is_rounded_otherwise_is_stored_apart(other):
    frames = {key: value for key, value in flights(400).items() if "picture" not in key}
    frames = {
        key: value.astype(np.float64) if "observation" in key else value
        for key, value in frames.items()
    }
    store = FrameStore(400, codecs={"observation": Rounded(1e-3), "next/observation": other})
    store.extend(frames)
    assert store.links == {}
    bounds = {"observation": 1e-3, "next/observation": getattr(other, "step", 0.0)}
    for key, bound in bounds.items():
        found = store.get(range(400))[key].numpy()
        assert np.abs(found - frames[key]).max() <= 0.51 * bound
