"""A compressed storage under TorchRL's buffers and samplers, beside its own tensor storage: equal
batches.
"""

from __future__ import annotations

import pickle

import pytest

torchrl = pytest.importorskip("torchrl")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tensordict import NonTensorStack, TensorDict  # noqa: E402
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers.sample_units import Sequence  # noqa: E402
from torchrl.data.replay_buffers.samplers import (  # noqa: E402
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from torchrl.data.replay_buffers.writers import TensorDictMaxValueWriter  # noqa: E402

from navrl import CompressedStorage, PrioritizedSampler, PrioritizedSliceSampler  # noqa: E402
from navrl.errors import ConfigError, ReplayError, StateError  # noqa: E402

CAPACITY = 300


def flight(count: int, first: int = 0) -> TensorDict:
    steps = torch.arange(first, first + count + 1)
    lidar = torch.stack([(steps * k * 0.01).sin().clamp_min(0) for k in range(24)], 1).view(
        -1, 1, 6, 4
    )
    ended = ((steps[:-1] + 1) % 30 == 0)[:, None]
    return TensorDict(
        {
            "agents": {"lidar": lidar[:-1], "mode": steps[:-1, None] % 3},
            "action": torch.sin(steps[:-1, None] * torch.arange(3.0)),
            "episode": steps[:-1] // 30,
            "next": {
                "agents": {
                    "lidar": torch.where(ended[:, :, None, None], -1.0, lidar[1:]),
                    "mode": steps[1:, None] % 3,
                },
                "reward": steps[:-1, None].float(),
                "done": ended,
                "terminated": ended,
                "truncated": torch.zeros_like(ended),
            },
        },
        [count],
    )


SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "prioritised": lambda: PrioritizedSampler(CAPACITY, 0.7, 0.9),
    "prioritised slices": lambda: PrioritizedSliceSampler(
        CAPACITY, 0.7, 0.9, slice_len=5, end_key=("next", "done"), strict_length=False
    ),
    "slices by ends": lambda: SliceSampler(slice_len=5, end_key=("next", "done")),
    "slices by episodes": lambda: SliceSampler(slice_len=5, traj_key="episode"),
    "slices by number": lambda: SliceSampler(num_slices=4),
}


def sample(buffer, seed: int):
    torch.manual_seed(seed)
    np.random.seed(seed)
    return buffer.sample()


def assert_equal(ours, theirs) -> None:
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        assert ours[key].dtype == theirs[key].dtype
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_gives_the_batches_of_a_tensor_storage(sampler):
    buffers = []
    for storage in (CompressedStorage(CAPACITY), LazyTensorStorage(CAPACITY)):
        torch.manual_seed(7)
        buffers.append(
            TensorDictReplayBuffer(storage=storage, sampler=SAMPLERS[sampler](), batch_size=40)
        )
    first = 0
    for count in (100, 90, 150, 77):
        data = flight(count, first)
        for buffer in buffers:
            buffer.extend(data.clone())
        first += count
        batches = [sample(buffer, count) for buffer in buffers]
        assert_equal(*batches)
        if sampler.startswith("prioritised"):
            for buffer, batch in zip(buffers, batches, strict=True):
                batch["td_error"] = torch.arange(1.0, len(batch) + 1.0)
                buffer.update_tensordict_priority(batch)
    assert_equal(*(buffer[:][torch.arange(CAPACITY)] for buffer in buffers))
    assert buffers[0]._storage.store.chosen["next/agents/lidar"] == "next frame"


def test_a_plain_buffer_adds_and_gives_single_frames():
    buffer = ReplayBuffer(storage=CompressedStorage(CAPACITY), batch_size=8)
    data = flight(120)
    for row in range(100):
        buffer.add(data[row])
    assert len(buffer) == 100
    assert_equal(buffer[5], data[5])
    assert_equal(buffer[[7, 3]], data[[7, 3]])
    assert_equal(buffer[-1], data[99])
    assert buffer.sample().shape == (8,)


def test_a_list_of_frames_is_added_as_a_batch_is():
    data = mixed(6)
    buffer = ReplayBuffer(storage=CompressedStorage(CAPACITY, compilable=True), batch_size=8)
    buffer.extend([data[row] for row in range(6)])
    assert buffer[:].batch_size == (6, 5)
    assert torch.equal(buffer[:]["x"], data["x"])
    assert buffer[2]["plan"] == data[2]["plan"]


def test_frames_and_keys_can_be_rewritten_anywhere():
    ours, theirs = (
        TensorDictReplayBuffer(storage=storage, batch_size=8)
        for storage in (CompressedStorage(CAPACITY), LazyTensorStorage(CAPACITY))
    )
    data = flight(CAPACITY + 40)
    for buffer in (ours, theirs):
        buffer.extend(data[:CAPACITY].clone())
        buffer.extend(data[CAPACITY:].clone())
        rows = buffer[:][torch.tensor([3, 250, 17])]
        rows["action"] += 1
        buffer[torch.tensor([3, 250, 17])] = rows
        buffer.set_at_(("next", "reward"), torch.full((2, 1), -5.0), torch.tensor([4, 100]))
        buffer.set_at_(("agents", "lidar"), torch.ones(2, 1, 6, 4), torch.tensor([4, 100]))
    assert_equal(*(buffer[:][torch.arange(CAPACITY)] for buffer in (ours, theirs)))


def test_a_writer_that_keeps_the_best_frames_works():
    ours, theirs = (
        TensorDictReplayBuffer(
            storage=storage, batch_size=8, writer=TensorDictMaxValueWriter(rank_key="rank")
        )
        for storage in (CompressedStorage(60), LazyTensorStorage(60))
    )
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float()
    for begin in range(0, 200, 50):
        data = flight(50, begin).set("rank", order[begin : begin + 50])
        for buffer in (ours, theirs):
            buffer.extend(data.clone())
    found = sorted(ours[:]["rank"].tolist())
    assert found == list(range(140, 200))
    assert_equal(*(buffer[:][torch.arange(60)] for buffer in (ours, theirs)))


def test_a_writer_that_keeps_the_best_frames_takes_single_ones_too():
    ours, theirs = (
        ReplayBuffer(storage=storage, writer=TensorDictMaxValueWriter(rank_key="rank"))
        for storage in (CompressedStorage(20), LazyTensorStorage(20))
    )
    for buffer in (ours, theirs):
        buffer.extend(flight(15).set("rank", torch.arange(15.0)))
        for row, rank in enumerate((7.5, 3.5, 20.0, -1.0, 30.0, 9.5)):
            buffer.add(flight(1, 100 + row)[0].set("rank", torch.tensor(rank)))
        buffer.extend(flight(5, 200).set("rank", torch.arange(5.0) + 8))
    assert_equal(ours[:], theirs[:].exclude("index"))


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
def test_a_buffer_is_restored_and_goes_on_equally(way, tmp_path):
    buffer, restored = (
        TensorDictReplayBuffer(storage=CompressedStorage(CAPACITY), batch_size=16) for _ in range(2)
    )
    buffer.extend(flight(CAPACITY + 33))
    if way == "dumps":
        buffer.dumps(tmp_path / "buffer")
        restored.loads(tmp_path / "buffer")
    else:
        restored.load_state_dict(buffer.state_dict())
    data = flight(50, 1000)
    for one in (buffer, restored):
        one.extend(data.clone())
    assert_equal(sample(restored, 3), sample(buffer, 3))
    assert_equal(restored[:][torch.arange(CAPACITY)], buffer[:][torch.arange(CAPACITY)])
    buffer.empty()
    assert len(buffer) == 0


def test_prefetching_gives_whole_batches():
    buffer = TensorDictReplayBuffer(storage=CompressedStorage(CAPACITY), batch_size=32, prefetch=3)
    buffer.extend(flight(200))
    for _ in range(10):
        batch = buffer.sample()
        assert torch.equal(batch["next", "reward"][:, 0], batch["index"].float())


def test_batch_sizes_and_non_tensor_data_come_back():
    storages = (CompressedStorage(20), LazyTensorStorage(20))
    ours, theirs = (ReplayBuffer(storage=storage, batch_size=4) for storage in storages)
    for buffer in (ours, theirs):
        for first in (0, 8, 16):  # the third overwrites the oldest
            buffer.extend(mixed(8, first))
    for index in (3, -1, [5, 2], torch.tensor([[1, 2], [3, 4]]), slice(4, 9), slice(None)):
        found, wanted = ours[index], theirs[index]
        assert found.batch_size == wanted.batch_size
        assert found["inner"].batch_size == wanted["inner"].batch_size
        assert found["inner", "empty"].batch_size == wanted["inner", "empty"].batch_size
        assert torch.equal(found["x"], wanted["x"])
        for key in ("task", "plan", "robot"):
            assert found[key] == wanted[key]
    assert ours.sample().batch_size == (4, 5)


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
def test_batch_sizes_and_non_tensor_data_are_restored(way, tmp_path):
    buffer, restored = (ReplayBuffer(storage=CompressedStorage(20), batch_size=4) for _ in range(2))
    buffer.extend(mixed(8))
    if way == "dumps":
        buffer.dumps(tmp_path / "buffer")
        restored.loads(tmp_path / "buffer")
    else:
        restored.load_state_dict(buffer.state_dict())
    assert restored[:].batch_size == (8, 5)
    assert restored[3]["inner"].batch_size == (5, 3)
    assert restored[3]["plan"] == [[3, column] for column in range(5)]


def test_a_state_whose_layout_is_damaged_is_refused_and_nothing_is_loaded():
    storage = CompressedStorage(20)
    storage.set(range(8), mixed(8))
    state, other = storage.state_dict(), filled_with(3)
    damages = (
        {"layout": {"nodes": {"": [-1]}, "objects": {}}},
        {"layout": 3},
        {"objects": {}},
        {"objects": {**state["objects"], "task": ["short"]}},
    )
    for damage in damages:
        with pytest.raises(StateError, match="nothing was loaded"):
            other.load_state_dict({**state, **damage})
    assert other.get(2)["x"].item() == 2.0


def filled_with(count: int) -> CompressedStorage:
    storage = CompressedStorage(20)
    storage.set(range(count), TensorDict({"x": torch.arange(float(count))}, [count]))
    return storage


def test_non_tensor_data_that_is_missing_or_new_is_refused_and_nothing_is_stored():
    storage = CompressedStorage(20)
    storage.set(range(8), mixed(8))
    for data in (mixed(2).exclude("task"), mixed(2).set_non_tensor("more", "text")):
        with pytest.raises(ReplayError, match=r"task|more"):
            storage.set(range(8, 10), data)
    assert len(storage) == 8


def test_what_is_no_tensordict_of_tensors_is_refused():
    storage = CompressedStorage(10)
    with pytest.raises(ReplayError, match="TensorDicts"):
        storage.set(0, torch.zeros(3))
    with pytest.raises(ReplayError, match="TensorDicts, found tuple"):
        storage.set(range(2), [(torch.zeros(3), {}), (torch.zeros(3), {})])
    with pytest.raises(ReplayError, match="'/'"):
        storage.set(0, TensorDict({"a/b": torch.zeros(3)}))
    with pytest.raises(ReplayError, match="one"):
        storage.get((0, 1))
    with pytest.raises(ReplayError, match="without a tensor"):
        storage.set(0, TensorDict({"text": "only"}))
    rows = TensorDict.lazy_stack([TensorDict({"x": torch.zeros(n)}) for n in (2, 3)])
    with pytest.raises(ReplayError, match="'x' cannot be stacked"):
        storage.set(range(2), rows)
    assert len(storage) == 0


def test_limits_are_refused_by_name():
    with pytest.raises(ConfigError, match="ndim=2"):
        CompressedStorage(10, ndim=2)
    with pytest.raises(ReplayError, match="pickled"):
        pickle.dumps(CompressedStorage(10))
    storage = CompressedStorage(50)
    units = ReplayBuffer(storage=storage, batch_size=4, sample_unit=Sequence(length=2))
    units.extend(flight(40))
    with pytest.raises(TypeError, match="CompressedStorage"):
        units.sample()
    buffer = ReplayBuffer(storage=CompressedStorage(50), batch_size=4)
    buffer.extend(flight(40))
    rows, patch = torch.arange(2), {"action": torch.zeros(2, 3)}
    with pytest.raises(RuntimeError, match="CompressedStorage"):
        buffer.update_if_present(index=rows, generation=rows, patch=patch)


def mixed(count: int, first: int = 0) -> TensorDict:
    """Return frames of two batch axes, nested ones of three, with texts and lists among them."""
    inner = {"y": torch.ones(count, 5, 3), "empty": TensorDict({}, [count, 5])}
    pairs = [[[row, column] for column in range(5)] for row in range(first, first + count)]
    return TensorDict(
        {
            "x": torch.arange(first * 5, (first + count) * 5).view(count, 5),
            "inner": TensorDict(inner, [count, 5, 3]),
            "task": NonTensorStack(*(NonTensorStack(*map(str, row)) for row in pairs)),
            "plan": NonTensorStack(*(NonTensorStack(*row) for row in pairs)),
            "robot": "drone",
        },
        [count, 5],
    )


def filled(count: int = 150) -> CompressedStorage:
    storage = CompressedStorage(CAPACITY)
    frames = TensorDict(
        {"x": torch.arange(count * 8.0).reshape(count, 8), "next": {"y": torch.zeros(count, 1)}},
        [count],
    )
    storage.set(range(count), frames)
    return storage


def test_small_types_of_indices_do_not_overflow():
    storage = filled()
    assert torch.equal(
        storage.get(torch.tensor([-1, 5], dtype=torch.int8))["x"], storage.get([149, 5])["x"]
    )


def test_a_slice_of_a_storage_is_indexed_as_a_tensordict_is():
    storage = filled()
    plain = storage.get(torch.arange(10))
    for index in (
        -1,
        3,
        [1, -2],
        slice(2, 5),
        torch.tensor([[1, 2], [3, 4]]),
        torch.arange(10) > 6,
        torch.tensor(4),
    ):
        found = storage[:10][index]
        found = found if isinstance(found, TensorDict) else found[:]
        assert found.shape == plain[index].shape
        assert torch.equal(found["x"], plain[index]["x"])
    for index in (10, -11, [0, 10]):
        with pytest.raises(IndexError):
            storage[:10][index]


def test_one_frame_of_a_slice_is_rewritten_by_its_number():
    storage = filled()
    storage[:].set_at_("x", torch.full((8,), 7.0), 3)
    storage[:10].set_at_("x", torch.full((8,), 9.0), -1)
    assert storage.get(3)["x"].tolist() == [7.0] * 8
    assert storage.get(9)["x"].tolist() == [9.0] * 8


def test_samplers_look_at_one_key_without_decoding_others(monkeypatch):
    storage, read = filled(), []
    get = storage.store.get

    def noted(slots, keys=None):
        read.append((len(slots), keys))
        return get(slots, keys)

    monkeypatch.setattr(storage.store, "get", noted)
    view = storage[:]
    assert all(key in view.keys(True) for key in ("x", "next", ("next", "y")))
    assert not any(key in view.keys(True) for key in ("z", ("next", "z")))
    assert {count for count, _ in read} == {0}
    read.clear()
    assert view["next", "y"].shape == (150, 1)
    assert view.get("next").keys() == {"y"}
    assert view.get("z", 5) == 5
    assert {tuple(keys) for count, keys in read if count} == {("next/y",)}
    with pytest.raises(KeyError, match="is not held"):
        view["z"]


USES = {
    "compare": lambda data: (data == 3)["x"],
    "compare with itself": lambda data: (data == data).all(),
    "clone": lambda data: data.clone()["x"],
    "apply": lambda data: data.apply(lambda tensor: tensor + 1)["x"],
    "cat": lambda data: torch.cat([data, data])["x"],
    "stack": lambda data: torch.stack([data, data])["x"],
    "add": lambda data: (data + 1)["x"],
    "select": lambda data: data.select("x")["x"],
    "flatten": lambda data: data.flatten_keys(".")["next.y"],
    "set": lambda data: data.set("new", torch.zeros(150))["new"],
    "unbind": lambda data: data.unbind(0)[7]["x"],
    "reshape": lambda data: data.reshape(50, 3)["x"],
    "index with several axes": lambda data: data[:, None]["x"],
    "read": lambda data: data["x"],
    "to": lambda data: data.to(torch.float64)["x"],
    "pickle": lambda data: pickle.loads(pickle.dumps(data))["x"],
}


@pytest.mark.parametrize("use", USES)
def test_all_frames_of_a_buffer_are_a_tensordict(use):
    buffer = ReplayBuffer(storage=filled(), batch_size=8)
    plain = buffer[torch.arange(150)]
    assert type(plain) is TensorDict
    assert isinstance(buffer[:], TensorDict)
    assert torch.equal(torch.as_tensor(USES[use](buffer[:])), torch.as_tensor(USES[use](plain)))


def test_what_is_made_from_all_frames_is_a_plain_tensordict_and_no_part_of_the_buffer():
    buffer = ReplayBuffer(storage=filled(), batch_size=8)
    everything = buffer[:]
    clone = everything.clone()
    assert type(everything) is type(clone) is TensorDict
    everything["x"] = torch.zeros_like(everything["x"])
    clone.set_("x", torch.zeros_like(clone["x"]))
    assert buffer[:]["x"].sum() == torch.arange(1200.0).sum()


def test_a_buffer_is_queried_by_trajectories():
    storages = (CompressedStorage(CAPACITY), LazyTensorStorage(CAPACITY))
    buffers = [TensorDictReplayBuffer(storage=storage, batch_size=8) for storage in storages]
    for buffer in buffers:
        buffer.extend(flight(200))
    ours, theirs = (buffer.query() for buffer in buffers)
    assert len(ours) == len(theirs) == 7
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.reward, other.reward)
