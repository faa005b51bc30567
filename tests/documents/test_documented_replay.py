"""Replay buffers, images and collectors, called as the user's documents call them."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from PIL import Image
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl import collectors
from torchrl.envs import GymEnv

from navrl import (
    CompressedDataCollector,
    CompressedLidarTransform,
    CompressedTensorDict,
    DictReplayBuffer,
    PipelinedDataCollector,
    PrefixSum,
    compress_image,
    compress_image_seq,
    decompress_image,
    decompress_image_seq,
)
from navrl.errors import NavrlError

FRAMES = 200


def pendulum():
    """Return a collector of TorchRL's around Gymnasium's pendulum, and its policy, which always
    answers its bias.
    """
    policy = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])
    torch.nn.init.zeros_(policy.module.weight)
    torch.nn.init.zeros_(policy.module.bias)
    collector = getattr(collectors, "SyncDataCollector", collectors.Collector)
    base = collector(
        GymEnv("Pendulum-v1"), policy, frames_per_batch=FRAMES, total_frames=4 * FRAMES
    )
    return base, policy


def test_an_image_takes_the_level_second():
    image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    assert np.array_equal(decompress_image(compress_image(image, 9)), image)
    assert np.array_equal(decompress_image(compress_image(image, level=9)), image)
    picture = Image.fromarray(image)
    assert np.array_equal(np.asarray(decompress_image(compress_image(picture, level=9))), image)


def test_a_sequence_of_images_takes_shape_number_and_element_type():
    images = np.random.default_rng(0).random((5, 1, 8, 8)).astype(np.float32)
    data = compress_image_seq(images, level=9)
    assert np.array_equal(decompress_image_seq(data, (1, 8, 8), 5, dtype=np.float32), images)
    named = decompress_image_seq(data, image_shape=(1, 8, 8), batch_size=5, dtype=np.float32)
    assert np.array_equal(named, images)
    with pytest.raises(NavrlError, match="8"):
        decompress_image_seq(data, (1, 8, 9), 5, dtype=np.float32)


def test_a_prefix_sum_finds_the_episode_of_a_frame():
    sums = PrefixSum(max_len=1000)
    for length in (10, 20, 15):
        sums.add(length)
    assert (sums.get_range_idx(25), sums.get_range_relative_idx(25, 1)) == (1, 15)
    assert list(sums.ar) == [10, 20, 15]
    assert list(sums.prefix_sum) == [0, 10, 30, 45]


def episode(length):
    return {
        "node_inputs": np.zeros((length, 4), np.float32),
        "gridmap_inputs": np.zeros((length, 1, 32, 32), np.float32),
        "action": np.zeros((length, 2), np.float32),
        "reward": np.zeros(length, np.float32),
        "done": np.zeros(length, bool),
    }


def test_a_replay_buffer_takes_whole_episodes_and_gives_batches():
    keys = ["node_inputs", "gridmap_inputs", "action", "reward", "done"]
    buffer = DictReplayBuffer(max_size=100, keys=keys, device="cpu", img_compressed=True)
    for length in (10, 20, 15, 40, 40):
        buffer.add(episode(length))
    assert len(buffer) <= 100
    assert buffer.sample(batch_size=64)["gridmap_inputs"].shape == (64, 1, 32, 32)
    assert buffer.sample(64)["action"].shape == (64, 2)
    assert buffer.episode_lens_prefix_sum.get_range_idx(0) == 0


def test_an_episode_may_be_lists_of_frames():
    buffer = DictReplayBuffer(1000, ["obs", "done"])
    buffer.add({"obs": [np.ones(3, np.float32)] * 5, "done": [False] * 4 + [True]})
    assert buffer.sample(7)["obs"].shape == (7, 3)


def test_every_batch_collected_ahead_comes_from_one_version_of_the_weights():
    base, policy = pendulum()
    collector = PipelinedDataCollector(base, device="cpu", prefetch_count=2)
    versions = []
    for batch in collector:
        versions.append(len(batch["action"].unique()))
        for _ in range(40):
            with torch.no_grad():
                policy.module.bias.add_(0.01)
            time.sleep(0.001)  # so that the next batch is collected meanwhile
    collector.shutdown()
    assert versions == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda base: PipelinedDataCollector(base, device="cpu"),
        lambda base: CompressedDataCollector(base, compression_level=1),
    ],
    ids=["pipelined", "compressed"],
)
def test_a_wrapped_collector_still_counts_frames(wrap):
    collector = wrap(pendulum()[0])
    next(iter(collector))
    assert collector._frames >= FRAMES
    assert collector._fps > 0
    collector.shutdown()


@pytest.mark.parametrize("compress", [True, False])
def test_compression_of_a_collector_can_be_switched(compress):
    collector = CompressedDataCollector(pendulum()[0], compress=compress)
    assert next(iter(collector))["observation"].shape[-1] == 3
    collector.shutdown()


def test_a_nested_key_is_held_compressed():
    lidar, key = torch.rand(32, 1, 36, 4), ("agents", "observation", "lidar")
    small = CompressedTensorDict(
        TensorDict({key: lidar, "action": torch.zeros(32, 2)}, [32]), compress_keys=[key]
    )
    assert torch.equal(small[key], lidar)
    assert small["action"].shape == (32, 2)


def test_the_lidar_transform_is_made_by_its_level():
    assert CompressedLidarTransform(compression_level=1) is not None
