"""Whole episodes against a plain list of them; prefix sums against sums; images as bytes."""

from __future__ import annotations

import contextlib
import struct
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from navrl import (
    DictReplayBuffer,
    PrefixSum,
    compress_image,
    compress_image_seq,
    decompress_image,
    decompress_image_seq,
    load_checkpoint,
    save_checkpoint,
)
from navrl.errors import ConfigError, ContainerError, ReplayError, ReplayIndexError, StateError

QUIET = settings(max_examples=50, deadline=None)


@QUIET
@given(
    max_len=st.one_of(st.none(), st.integers(1, 8)),
    operations=st.lists(st.integers(0, 9), max_size=60),
)
def test_a_prefix_sum_finds_what_a_list_finds(max_len, operations):
    sums, plain = PrefixSum(max_len), []
    for operation in operations:
        if operation:
            sums.add(operation)
            plain = [*plain, operation][-(max_len or 1000) :]
        elif plain:
            assert sums.popleft() == plain.pop(0)
        assert (len(sums), sums.total) == (len(plain), sum(plain))
        assert sums.ar == plain
        assert sums.prefix_sum.tolist() == [0, *np.cumsum(plain, dtype=int).tolist()]
        expected = [(part, offset) for part, length in enumerate(plain) for offset in range(length)]
        assert [sums.find(index) for index in range(sums.total)] == expected
        for index, (part, offset) in enumerate(expected):
            assert sums.get_range_idx(index) == part
            assert sums.get_range_relative_idx(index, part) == offset


def test_a_prefix_sum_takes_and_finds_integers_of_numpy():
    sums = PrefixSum(lengths=np.array([10, 20, 15]))
    assert sums.find(np.int64(25)) == (1, 15)
    assert sums.get_range_relative_idx(np.int32(25), np.int64(1)) == 15


def test_a_prefix_sum_refuses_what_is_outside():
    sums = PrefixSum(lengths=[2, 3])
    for index in (-1, 5):
        with pytest.raises(ReplayIndexError, match=f"index {index} "):
            sums.find(index)
        with pytest.raises(ReplayIndexError, match=f"index {index} "):
            sums.get_range_idx(index)
    with pytest.raises(ReplayIndexError, match="part 2"):
        sums.get_range_relative_idx(0, 2)
    with pytest.raises(ReplayIndexError, match="part 1, which holds 2 to 4"):
        sums.get_range_relative_idx(1, 1)
    with pytest.raises(IndexError, match="no parts yet"):
        PrefixSum().find(0)
    with pytest.raises(IndexError):
        PrefixSum().popleft()


@pytest.mark.parametrize("length", [0, -1, 2.5, "3", True])
def test_a_prefix_sum_refuses_lengths_that_are_no_counts(length):
    sums = PrefixSum()
    with pytest.raises(ConfigError, match="length is"):
        sums.add(length)
    assert len(sums) == 0


@pytest.mark.parametrize("max_len", [0, [10, 20], 1.5])
def test_a_prefix_sum_refuses_an_impossible_max_len(max_len):
    with pytest.raises(ConfigError, match="max_len is"):
        PrefixSum(max_len)


def episode(length: int, seed: int) -> dict[str, np.ndarray | torch.Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 3, (length, 3, 20, 20), dtype=np.uint8)
        * (np.arange(20) < 5).astype(np.uint8),
        "edges": rng.integers(0, 1 << 40, (length, 50, 2)),
        "lidar": torch.from_numpy(rng.normal(size=(length, 100))).to(torch.bfloat16),
        "done": np.arange(length) == length - 1,
    }


@pytest.mark.parametrize("mode", [False, True, "frame", "episode"])
@settings(max_examples=12, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12), restored=st.booleans())
def test_a_buffer_is_a_queue_of_episodes(mode, lengths, restored):
    buffer, plain = DictReplayBuffer(40, img_compressed=mode), []
    for number, length in enumerate(lengths):
        buffer.add(episode(length, number))
        plain.append(episode(length, number))
        while sum(len(one["done"]) for one in plain) > 40:
            plain.pop(0)
    if restored:
        state, buffer = buffer.state_dict(), DictReplayBuffer(40)
        buffer.load_state_dict(state)
    assert buffer.num_episodes == len(plain)
    assert len(buffer) == sum(len(one["done"]) for one in plain)
    found = buffer.get(torch.arange(len(buffer)))
    for key, tensor in found.items():
        wanted = torch.cat([torch.as_tensor(one[key]) for one in plain])
        assert tensor.dtype == wanted.dtype
        assert torch.equal(tensor, wanted)


@pytest.mark.parametrize("mode", ["frame", "episode"])
def test_compressed_episodes_are_smaller_and_a_checkpoint_holds_them(mode, tmp_path):
    buffer = DictReplayBuffer(1000, keys=["image", "done"], img_compressed=mode, threads=3)
    for number in range(20):
        buffer.add(episode(30, number))
    assert buffer.nbytes() < 600 * 1201 * 0.6
    save_checkpoint(buffer.state_dict(), tmp_path / "x.pt")
    restored = DictReplayBuffer(1000)
    restored.load_state_dict(load_checkpoint(tmp_path / "x.pt"))
    ours, theirs = (one.sample(500, torch.Generator().manual_seed(1)) for one in (buffer, restored))
    assert list(ours) == ["image", "done"]
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("mode", [False, "frame", "episode"])
def test_lists_of_frames_are_episodes_as_arrays_are(mode):
    whole = episode(6, 0)
    lists = {key: list(value) for key, value in whole.items()}
    lists["edges"] = [frame.tolist() for frame in whole["edges"]]
    buffers = [DictReplayBuffer(100, img_compressed=mode) for _ in range(2)]
    for buffer, one in zip(buffers, (whole, lists), strict=True):
        buffer.add(one)
    ours, theirs = (buffer.get(range(6)) for buffer in buffers)
    for key, tensor in ours.items():
        assert tensor.dtype == theirs[key].dtype
        assert torch.equal(tensor, theirs[key])


def test_the_index_of_the_episodes_follows_eviction():
    buffer = DictReplayBuffer(50)
    for number, length in enumerate((10, 20, 15, 30)):
        buffer.add({"episode": np.full(length, number), "place": np.arange(length)})
    index, frames = buffer.episode_lens_prefix_sum, buffer.get(range(len(buffer)))
    assert index.ar == [15, 30]
    for frame in range(len(buffer)):
        part = index.get_range_idx(frame)
        assert frames["episode"][frame] == part + 2
        assert frames["place"][frame] == index.get_range_relative_idx(frame, part)


@pytest.mark.parametrize("batch_size", [0, -3, 2.5, None])
def test_an_impossible_batch_size_is_refused(batch_size):
    buffer = DictReplayBuffer(5)
    buffer.add({"x": np.zeros(2)})
    with pytest.raises(ConfigError, match="batch_size is"):
        buffer.sample(batch_size=batch_size)


def test_samples_come_from_all_frames_equally():
    buffer = DictReplayBuffer(100)
    buffer.add({"x": np.arange(90)})
    buffer.add({"x": np.arange(90, 100)})
    counts = torch.bincount(
        buffer.sample(20_000, torch.Generator().manual_seed(0))["x"], minlength=100
    )
    assert counts.min() > 120
    assert counts.max() < 300


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"x": np.zeros((3, 2))}, "without"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, "lengths"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "lengths"),
        ({"x": np.zeros((11, 2)), "y": np.zeros(11)}, "from 1 to 10"),
        ({"x": np.zeros((3, 3)), "y": np.zeros(3)}, "differs from the first"),
        ({"x": np.array(["a"]), "y": np.zeros(1)}, "x:"),
        ({"x": [np.zeros(2), np.zeros(3)], "y": np.zeros(2)}, "x:.*alike"),
        ({"x": [torch.zeros(2), torch.zeros(3)], "y": np.zeros(2)}, "x:.*alike"),
        ({"x": 1.0, "y": np.zeros(1)}, "single number"),
    ],
)
def test_episodes_that_do_not_fit_are_refused_and_nothing_is_stored(added, message):
    buffer = DictReplayBuffer(10)
    buffer.add({"x": np.zeros((4, 2)), "y": np.zeros(4)})
    with pytest.raises(ReplayError, match=message):
        buffer.add(added)
    assert len(buffer) == 4


def test_impossible_settings_empty_buffers_and_foreign_states_are_refused():
    for arguments in (
        {"max_size": 0},
        {"max_size": 5, "img_compressed": "jpeg"},
        {"max_size": 5, "keys": "image"},
    ):
        with pytest.raises(ConfigError):
            DictReplayBuffer(**arguments)
    with pytest.raises(ReplayError, match="empty"):
        DictReplayBuffer(5).sample(1)
    buffer = DictReplayBuffer(50, img_compressed="frame")
    buffer.add(episode(5, 0))
    for damage in (
        {"max_size": 4},
        {"mode": "x"},
        {"episodes": [{}]},
        {"keys": ["z"]},
        {"episodes": None},
    ):
        with pytest.raises(StateError):
            buffer.load_state_dict({**buffer.state_dict(), **damage})
    state = buffer.state_dict()
    state["episodes"][0]["image"]["frames"][4:] = 0
    with pytest.raises(StateError):
        buffer.load_state_dict(state)
    assert torch.equal(buffer.get([4])["done"], torch.tensor([True]))


any_array = arrays.arrays(
    st.sampled_from(["?", "u1", "i2", "<i4", ">i4", "u8", "f2", "f4", "f8", "c8"]),
    arrays.array_shapes(min_dims=0, min_side=0),
)


any_codec = st.sampled_from(["raw", "lz4", "zstd", "planes-zstd"])
any_level = st.one_of(st.none(), st.integers(0, 16))


@QUIET
@given(image=any_array, codec=any_codec, level=any_level, tensor=st.booleans())
def test_any_array_comes_back_from_its_bytes(image, codec, level, tensor):
    wanted = torch.from_numpy(image.astype(image.dtype.newbyteorder("="))) if tensor else image
    found = decompress_image(compress_image(wanted, level, codec))
    assert type(found) is type(wanted)
    assert found.shape == wanted.shape
    assert np.asarray(found).tobytes() == image.astype(image.dtype.newbyteorder("=")).tobytes()


@QUIET
@given(
    images=any_array.filter(lambda array: array.ndim),
    codec=any_codec,
    level=any_level,
    axes=st.integers(0, 2),
)
def test_a_sequence_comes_back_in_the_shape_that_is_asked_for(images, codec, level, axes):
    count, *shape = images.shape
    native = images.dtype.newbyteorder("=")
    data = compress_image_seq(images, level, codec)
    found = decompress_image_seq(data, [1] * axes + shape, count, dtype=native)
    assert found.shape == (count, *[1] * axes, *shape)
    assert found.tobytes() == images.astype(native).tobytes()


small = st.integers(1, 3)
any_kind = st.tuples(st.lists(small, max_size=3), small, st.sampled_from(["u1", "f4"]))


@QUIET
@given(held=any_kind, asked=any_kind)
def test_a_sequence_of_another_number_shape_or_type_is_refused(held, asked):
    shape, count, element = held
    data = compress_image_seq(np.zeros((count, *shape), element))
    if asked[1:] == held[1:] and [n for n in asked[0] if n > 1] == [n for n in shape if n > 1]:
        assert decompress_image_seq(data, *asked).shape == (count, *asked[0])
    else:
        message = f"hold {count} images of shape .*expected {asked[1]} of shape"
        with pytest.raises(ContainerError, match=message):
            decompress_image_seq(data, *asked)


def test_a_type_of_torch_or_numpy_is_asked_for_by_either():
    data = compress_image_seq(torch.zeros(3, 4, dtype=torch.bfloat16))
    assert decompress_image_seq(data, dtype=torch.bfloat16).dtype == torch.bfloat16
    array = compress_image_seq(np.zeros((2, 3), "f4"))
    assert decompress_image_seq(array, dtype=torch.float32).dtype == np.float32
    with pytest.raises(ContainerError, match="float32"):
        decompress_image_seq(data, dtype=np.float32)
    with pytest.raises(ConfigError, match="dtype="):
        decompress_image_seq(data, dtype="fancy")


@pytest.mark.parametrize("level", [-1, 17, 2.5, True, "zstd"])
def test_a_level_that_is_none_is_refused(level):
    for compress in (compress_image, compress_image_seq):
        with pytest.raises(ConfigError, match="level is"):
            compress(np.zeros((2, 2)), level)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "I", "F", "I;16", "HSV"])
def test_a_picture_comes_back_as_a_picture(mode):
    shown = Image.effect_noise((31, 17), 90).convert("RGB")
    shown = shown.convert("L" if mode in ("1", "I", "F", "LA", "I;16") else mode)
    shown = shown.convert("I").convert(mode) if mode == "I;16" else shown.convert(mode)
    found = decompress_image(compress_image(shown))
    assert found.mode == shown.mode
    assert found.size == shown.size
    assert found.tobytes() == shown.tobytes()


def test_sequences_come_back_as_arrays():
    images = np.random.default_rng(0).integers(0, 9, (5, 8, 8), dtype=np.uint8)
    for form in (images, list(images), [Image.fromarray(image) for image in images]):
        assert np.array_equal(decompress_image_seq(compress_image_seq(form)), images)
    assert torch.equal(
        decompress_image_seq(compress_image_seq(list(torch.from_numpy(images)))),
        torch.from_numpy(images),
    )
    still = np.repeat(images[:1], 50, 0)
    assert len(compress_image_seq(still)) < 2 * len(compress_image(still[0]))


@pytest.mark.parametrize(
    "thing", [[], "text", [np.zeros(2), np.zeros(3)], np.float32(1.0) * np.ones(())]
)
def test_what_is_no_sequence_is_refused(thing):
    with pytest.raises(ReplayError):
        compress_image_seq(thing)


def test_what_is_no_image_is_refused():
    for thing in ("text", 3, None, [1, 2], np.array(["a"]), Image.new("P", (3, 3))):
        with pytest.raises(ReplayError):
            compress_image(thing)
    with pytest.raises(ContainerError, match="one image"):
        decompress_image_seq(compress_image(np.zeros(())))


@QUIET
@given(cut=st.integers(0, 200), place=st.integers(0, 63), value=st.integers(0, 255))
def test_damaged_bytes_are_refused_or_give_an_image_of_bounded_size(cut, place, value):
    whole = bytearray(compress_image(np.arange(300, dtype=np.int16) // 7))
    whole[place % len(whole)] = value
    for data in (bytes(whole), bytes(whole[:cut])):
        with contextlib.suppress(ContainerError):
            assert decompress_image(data, largest=1 << 16).nbytes <= 1 << 16


def test_a_small_file_cannot_ask_for_much_memory():
    bomb = bytearray(compress_image(np.zeros((4, 4), np.uint8)))
    bomb[8:16] = (1 << 50).to_bytes(8, "little")
    with pytest.raises(ContainerError, match="claims"):
        decompress_image(bytes(bomb))
    big = compress_image(np.zeros(1 << 20, np.uint8))
    with pytest.raises(ContainerError, match="more than allowed"):
        decompress_image(big, largest=1 << 19)


@pytest.mark.parametrize("mode", [False, "frame", "episode"])
def test_a_state_is_loaded_by_torch_with_weights_only(tmp_path, mode):
    buffer = DictReplayBuffer(100, img_compressed=mode)
    buffer.add({"a": np.arange(30), "grid": np.zeros((30, 20, 20), np.uint8)})
    torch.save(buffer.state_dict(), tmp_path / "x.pt")
    restored = DictReplayBuffer(100)
    restored.load_state_dict(torch.load(tmp_path / "x.pt", weights_only=True))
    assert restored.get([7, 29])["a"].tolist() == [7, 29]


def test_a_state_with_more_keys_than_the_buffer_is_loaded_without_them():
    more = DictReplayBuffer(100)
    more.add({"a": np.arange(5), "b": np.zeros(5)})
    buffer = DictReplayBuffer(100, keys=["a"])
    buffer.load_state_dict(more.state_dict())
    assert buffer.get([3])["a"].tolist() == [3]
    assert list(buffer.sample(2)) == ["a"]
    with pytest.raises(StateError, match="c"):
        DictReplayBuffer(100, keys=["c"]).load_state_dict(more.state_dict())


def test_a_state_of_an_unknown_mode_is_told_as_such():
    with pytest.raises(StateError, match="mode 'tape'"):
        DictReplayBuffer(100).load_state_dict(
            {**DictReplayBuffer(100).state_dict(), "mode": "tape"}
        )


@pytest.mark.parametrize("what", [0, 1])
def test_an_image_with_impossible_axes_is_refused(what):
    with pytest.raises(ContainerError):
        decompress_image(
            struct.pack("<4sBBBB", b"NVI1", what, 0, 0, 2) + struct.pack("<2Q", 2**63 + 5, 0)
        )


def test_the_length_is_not_read_while_an_episode_makes_room():
    buffer, seen = DictReplayBuffer(10), []
    buffer.add({"a": np.zeros(10)})
    with buffer._lock:
        reader = threading.Thread(target=lambda: seen.append((len(buffer), buffer.num_episodes)))
        reader.start()
        reader.join(0.2)
        assert not seen
    reader.join(10)
    assert seen == [(10, 1)]
