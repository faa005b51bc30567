"""A compressed storage under TorchRL's buffers and samplers, beside its own tensor storage: equal batches."""

from __future__ import annotations

from functools import partial

import pytest

torchrl = pytest.importorskip("torchrl")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers import samplers as torchrl_samplers  # noqa: E402
from torchrl.data.replay_buffers.samplers import (  # noqa: E402
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from torchrl.data.replay_buffers.writers import TensorDictMaxValueWriter  # noqa: E402

from navrl.adapters.torchrl_replay import CompressedStorage  # noqa: E402
from navrl.errors import ReplayError  # noqa: E402

CAPACITY = 300


class Tree:
    """What TorchRL's segment trees do, for where its compiled part does not load."""

    def __init__(self, size: int, join, nothing: float) -> None:
        self.values, self._join = np.full(size, nothing, np.float64), join

    def __getitem__(self, index):
        return self.values[np.asarray(index)]

    def __setitem__(self, index, value) -> None:
        self.values[np.asarray(index)] = np.asarray(value)

    def query(self, begin: int, end: int) -> float:
        return float(self._join(self.values[begin:end]))

    def scan_lower_bound(self, mass):
        return torch.as_tensor(np.searchsorted(np.cumsum(self.values), np.asarray(mass)).clip(0, len(self.values) - 1))


@pytest.fixture(autouse=True)
def _trees(monkeypatch):
    module = torchrl_samplers.prioritized
    if module.SumSegmentTreeFp32 is None:
        for kind, join, nothing in (("Sum", np.sum, 0.0), ("Min", np.min, np.inf)):
            for width in ("32", "64"):
                made = partial(Tree, join=join, nothing=nothing)
                monkeypatch.setattr(module, f"{kind}SegmentTreeFp{width}", made)


def flight(count: int, first: int = 0) -> TensorDict:
    steps = torch.arange(first, first + count + 1)
    lidar = torch.stack([(steps * k * 0.01).sin().clamp_min(0) for k in range(24)], 1).view(-1, 1, 6, 4)
    ended = ((steps[:-1] + 1) % 30 == 0)[:, None]
    return TensorDict(
        {
            "agents": {"lidar": lidar[:-1], "mode": steps[:-1, None] % 3},
            "action": torch.sin(steps[:-1, None] * torch.arange(3.0)),
            "episode": steps[:-1] // 30,
            "next": {
                "agents": {"lidar": torch.where(ended[:, :, None, None], -1.0, lidar[1:]), "mode": steps[1:, None] % 3},
                "reward": steps[:-1, None].float(), "done": ended, "terminated": ended, "truncated": torch.zeros_like(ended),
            },
        },
        [count],
    )  # fmt: skip


SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "prioritised": lambda: PrioritizedSampler(CAPACITY, 0.7, 0.9),
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
        buffers.append(TensorDictReplayBuffer(storage=storage, sampler=SAMPLERS[sampler](), batch_size=40))
    first = 0
    for count in (100, 90, 150, 77):
        data = flight(count, first)
        for buffer in buffers:
            buffer.extend(data.clone())
        first += count
        batches = [sample(buffer, count) for buffer in buffers]
        assert_equal(*batches)
        if sampler == "prioritised":
            for buffer, batch in zip(buffers, batches, strict=True):
                batch["td_error"] = torch.arange(1.0, 41.0)
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
        TensorDictReplayBuffer(storage=storage, batch_size=8, writer=TensorDictMaxValueWriter(rank_key="rank"))
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


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
def test_a_buffer_is_restored_and_goes_on_equally(way, tmp_path):
    buffer, restored = (TensorDictReplayBuffer(storage=CompressedStorage(CAPACITY), batch_size=16) for _ in range(2))
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


def test_what_is_no_tensordict_of_tensors_is_refused():
    storage = CompressedStorage(10)
    with pytest.raises(ReplayError, match="TensorDicts"):
        storage.set(0, torch.zeros(3))
    with pytest.raises(ReplayError, match="'/'"):
        storage.set(0, TensorDict({"a/b": torch.zeros(3)}))
    with pytest.raises(ReplayError, match="one"):
        storage.get((0, 1))


def filled(count: int = 150) -> CompressedStorage:
    storage = CompressedStorage(CAPACITY)
    frames = TensorDict({"x": torch.arange(count * 8.0).reshape(count, 8), "next": {"y": torch.zeros(count, 1)}}, [count])
    storage.set(range(count), frames)
    return storage


def test_small_types_of_indices_do_not_overflow():
    storage = filled()
    assert torch.equal(storage.get(torch.tensor([-1, 5], dtype=torch.int8))["x"], storage.get([149, 5])["x"])


def test_a_slice_of_a_storage_is_indexed_as_a_tensordict_is():
    storage = filled()
    plain = storage.get(torch.arange(10))
    for index in (-1, 3, [1, -2], slice(2, 5), torch.tensor([[1, 2], [3, 4]]), torch.arange(10) > 6, torch.tensor(4)):
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


def test_whether_a_key_is_held_is_told_without_decoding(monkeypatch):
    storage = filled()
    monkeypatch.setattr(storage.store, "get", None)
    view = storage[:]
    assert all(key in view for key in ("x", "next", ("next", "y")))
    assert not any(key in view for key in ("z", ("next", "z"), 3, ()))
