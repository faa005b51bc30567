"""A device that is not there is named in one sentence, and a healthy file is not called damaged."""

from __future__ import annotations

import pytest
import torch

from navrl import (
    DictReplayBuffer,
    RolloutStorage,
    compress_rollout,
    decompress_minibatch,
    decompress_rollout,
    load_checkpoint,
    save_checkpoint,
)
from navrl.errors import ConfigError
from navrl.io.container.devices import usable_device

BAD = ["cuda:99", "mps:7", "gpu", 3.5]


@pytest.mark.parametrize("device", BAD)
def test_a_device_that_is_not_there_is_refused_with_one_that_is(device):
    with pytest.raises(ConfigError, match=f"learner is '{device}'.*cpu"):
        usable_device(device, "learner")


@pytest.mark.parametrize("write", [torch.save, save_checkpoint], ids=["torch", "navrl"])
def test_a_checkpoint_is_not_damaged_because_the_device_is_missing(tmp_path, write):
    write({"x": torch.ones(2)}, tmp_path / "x.pt")
    with pytest.raises(ConfigError, match="device is 'cuda:99'"):
        load_checkpoint(tmp_path / "x.pt", device="cuda:99")
    assert load_checkpoint(tmp_path / "x.pt")["x"].sum() == 2


def test_a_rollout_is_not_damaged_because_the_device_is_missing(tmp_path):
    with RolloutStorage(tmp_path) as storage:
        storage.save({"x": torch.zeros(2, 3)}, 0)
        with pytest.raises(ConfigError, match="device is 'cuda:99'"):
            storage.load(0, device="cuda:99")


def test_a_replay_buffer_names_a_missing_device_before_anything_is_added():
    with pytest.raises(ConfigError, match="device is 'cuda:99'"):
        DictReplayBuffer(10, ["observation"], "cuda:99")


@pytest.mark.parametrize("compressed", [True, False], ids=["bytes", "a TensorDict"])
def test_a_rollout_from_bytes_names_a_missing_device(compressed):
    tensordict = pytest.importorskip("tensordict")
    data = tensordict.TensorDict({"x": torch.zeros(2, 3)}, [2, 3])
    given = compress_rollout(data) if compressed else data
    for call in (
        decompress_rollout,
        lambda *arguments, **more: decompress_minibatch(*arguments, [0], **more),
    ):
        with pytest.raises(ConfigError, match="device is 'cuda:99'"):
            call(given, device="cuda:99")
