"""A device that is not there is named in one sentence by everything that takes one."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from navrl import (
    CompressedStorage,
    CompressedTensorDict,
    PipelinedDataCollector,
    create_navrl_model,
)
from navrl.adapters.collectors import NavigationCollector
from navrl.adapters.torchrl import TorchRLNavigationEnv
from navrl.errors import ConfigError
from navrl.sim.settings import NavigationSettings


def small_task():
    settings = NavigationSettings()
    settings.env.num_envs, settings.env.num_worlds, settings.env.num_obstacles = 4, 1, 5
    settings.env_dyn.num_obstacles = 0
    return settings


TAKERS = {
    "CompressedStorage": lambda device: CompressedStorage(8, device=device),
    "CompressedTensorDict": lambda device: CompressedTensorDict(
        TensorDict({"x": torch.ones(2)}, [2]), ["x"]
    ).to(device),
    "NavigationCollector": lambda device: NavigationCollector(
        small_task(), frames_per_batch=4, device=device
    ),
    "PipelinedDataCollector": lambda device: PipelinedDataCollector([1], device, policy=None),
    "TorchRLNavigationEnv": lambda device: TorchRLNavigationEnv(small_task(), device=device),
    "create_navrl_model": lambda device: create_navrl_model(device=device),
}


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS.keys())
def test_a_missing_device_is_named_with_one_that_is_there(taker):
    with pytest.raises(ConfigError, match=r"device is 'cuda:99'.*cpu"):
        taker("cuda:99")


def test_the_device_that_batches_are_stored_on_is_named_by_its_own_argument():
    with pytest.raises(ConfigError, match="storing_device is 'cuda:99'"):
        NavigationCollector(small_task(), frames_per_batch=4, storing_device="cuda:99")
