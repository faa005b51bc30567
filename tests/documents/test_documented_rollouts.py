"""Rollouts on disk, in memory and on their way to another machine, called as the user's documents
call them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from navrl import (
    RolloutStorage,
    compress_rollout,
    decompress_minibatch,
    decompress_rollout,
    save_rollout_compressed,
)

LIDAR = ("agents", "observation", "lidar")


@pytest.fixture
def data():
    return TensorDict(
        {LIDAR: torch.rand(16, 32, 1, 36, 4), "reward": torch.rand(16, 32, 1)}, [16, 32]
    )


def test_a_rollout_comes_back_from_the_disk_with_its_nested_keys(data):
    storage = RolloutStorage(save_dir="rollout_data", compression_level=9)
    path = storage.save(data, iteration=np.int64(100))
    assert Path(path).name.startswith("rollout_")
    back = storage.load(100, device="cpu")
    storage.close()
    assert torch.equal(back[LIDAR], data[LIDAR])
    assert torch.equal(back["reward"], data["reward"])


def test_a_rollout_is_sent_as_bytes(data):
    back = decompress_rollout(bytes(compress_rollout(data)))
    assert back.batch_size == data.batch_size
    assert (back == data).all()


def test_some_frames_are_read_from_a_compressed_rollout(data):
    frames = torch.tensor([0, 33, 511])
    some = decompress_minibatch(compress_rollout(data), frames)
    assert torch.equal(some["reward"], data.reshape(-1)["reward"][frames])


def test_one_rollout_is_kept_in_one_file(data):
    save_rollout_compressed(data, "rollouts/rollout_5.lz4")
    back = decompress_rollout(Path("rollouts/rollout_5.lz4").read_bytes())
    assert torch.equal(back["reward"], data["reward"])
