"""Prioritised samplers as users get them with the installed torch and TorchRL."""

from __future__ import annotations

import logging

import pytest

torchrl = pytest.importorskip("torchrl")

import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.data import TensorDictReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers import samplers as torchrl_samplers  # noqa: E402

from navrl import CompressedStorage, PrioritizedSampler, PrioritizedSliceSampler  # noqa: E402
from navrl.adapters.prioritized import TREES, extension_is_there  # noqa: E402
from navrl.errors import ConfigError  # noqa: E402
from navrl.io.replay.segment_trees import SumTree  # noqa: E402


def buffer_of(sampler, count: int = 100) -> TensorDictReplayBuffer:
    storage = CompressedStorage(count)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=60)
    ends = (torch.arange(count) % 20 == 19)[:, None]
    buffer.extend(TensorDict({"x": torch.arange(count), "next": {"done": ends}}, [count]))
    return buffer


def test_frames_are_drawn_by_their_priorities():
    buffer = buffer_of(PrioritizedSampler(100, alpha=1.0, beta=1.0))
    buffer.update_priority(torch.arange(100), torch.where(torch.arange(100) == 42, 99.0, 1.0))
    drawn = torch.cat([buffer.sample()["x"] for _ in range(50)])
    assert 0.4 < (drawn == 42).float().mean() < 0.6
    batch = buffer.sample()
    weights = batch["priority_weight"]
    assert torch.allclose(weights, torch.where(batch["x"] == 42, 1 / 99, 1.0))


def test_slices_begin_by_their_priorities():
    ends = ("next", "done")
    buffer = buffer_of(PrioritizedSliceSampler(100, 1.0, 1.0, slice_len=5, end_key=ends))
    buffer.update_priority(torch.arange(100), torch.where(torch.arange(100) == 42, 1e6, 1e-3))
    assert buffer.sample()["x"].reshape(-1, 5).tolist() == [[42, 43, 44, 45, 46]] * 12


def test_a_sampler_is_restored_and_draws_the_same(tmp_path):
    buffer = buffer_of(PrioritizedSampler(100, 0.7, 0.5))
    buffer.update_priority(torch.arange(100), torch.rand(100))
    buffer.sampler.dumps(tmp_path / "sampler")
    restored = PrioritizedSampler(100, 0.7, 0.5)
    restored.loads(tmp_path / "sampler")
    other = PrioritizedSampler(100, 0.7, 0.5)
    other.load_state_dict(buffer.sampler.state_dict())
    drawn = []
    for sampler in (buffer.sampler, restored, other):
        sampler._rng = torch.Generator().manual_seed(3)
        drawn.append(sampler.sample(buffer.storage, 50)[0].tolist())
    assert drawn[0] == drawn[1] == drawn[2]


def test_it_is_a_sampler_of_torchrl_with_its_trees_where_they_load():
    assert issubclass(PrioritizedSampler, torchrl_samplers.PrioritizedSampler)
    assert issubclass(PrioritizedSliceSampler, torchrl_samplers.PrioritizedSliceSampler)
    tree = PrioritizedSampler(10, 1.0, 1.0)._sum_tree
    assert isinstance(tree, SumTree) is not extension_is_there()


def test_trees_of_torchrl_are_used_when_they_are_there(monkeypatch):
    class Theirs:
        def __init__(self, size: int) -> None:
            self.size = size

    for name in TREES:
        monkeypatch.setattr(torchrl_samplers.prioritized, name, Theirs)
    assert isinstance(PrioritizedSampler(10, 1.0, 1.0)._sum_tree, Theirs)


def test_nothing_is_logged_about_an_extension_that_is_not_needed(caplog, monkeypatch):
    logger = torchrl_samplers.prioritized.logger
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.WARNING):
        PrioritizedSampler(10, 1.0, 1.0)
        PrioritizedSliceSampler(10, 1.0, 1.0, slice_len=2)
        logger.warning("something else")
    assert {record.message for record in caplog.records} == {"something else"}


def test_torchrl_itself_is_left_as_it_is():
    before = dict(vars(torchrl_samplers.prioritized))
    PrioritizedSampler(10, 1.0, 1.0)
    assert dict(vars(torchrl_samplers.prioritized)) == before
    assert torchrl_samplers.PrioritizedSampler is not PrioritizedSampler


@pytest.mark.skipif(extension_is_there(), reason="TorchRL's own trees are used")
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"dtype": torch.int64}])
def test_what_only_the_extension_can_do_is_refused_by_name(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        PrioritizedSampler(10, 1.0, 1.0, **options)
