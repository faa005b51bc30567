"""Checkpoints and the performance monitor, called as the user's documents call them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

import forked
from navrl import (
    AsyncCheckpointSaver,
    PerformanceMonitor,
    format_checkpoint_name,
    get_model_size,
    load_checkpoint,
    print_model_info,
)
from navrl.errors import ConfigError, NavrlError


def printed_by(program):
    """Return all that a script of the user's prints."""
    done = forked.run(program)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def saved(network):
    """A checkpoint as the first example of the documents saves it."""
    saver = AsyncCheckpointSaver(max_queue_size=3)
    state = {"model_state_dict": network.state_dict()}
    saver.save_async(checkpoint=state, path="checkpoint_1000.pt", compress=True)
    saver.shutdown(timeout=60)
    return state["model_state_dict"]


@pytest.mark.parametrize("name", ["checkpoint_1000.pt", "checkpoint_1000.pt.lz4"])
def test_a_checkpoint_loads_by_its_name_and_by_the_compressed_one(saved, network, name):
    state = load_checkpoint(name)["model_state_dict"]
    network.load_state_dict(state)
    assert all(torch.equal(state[key], saved[key]) for key in saved)


def test_the_statistics_have_the_documented_names():
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"zeros": torch.zeros(100_000)}, "zeros.pt", compress=True)
        saver.flush()
        stats = saver.get_stats()
    assert (stats["total_saved"], stats["queue_size"]) == (1, 0)
    assert stats["compression_ratio"] > 10  # raw over stored


@pytest.mark.slow
def test_a_verbose_saver_prints_each_file():
    told = printed_by(
        "import torch; from navrl import AsyncCheckpointSaver\n"
        "with AsyncCheckpointSaver(verbose=True) as saver:\n"
        "    saver.save_async({'a': torch.zeros(1000)}, 'verbose.pt', compress=True)\n"
    )
    assert "verbose.pt" in told


@pytest.mark.slow
def test_a_full_queue_warns():
    told = printed_by(
        "import torch; from navrl import AsyncCheckpointSaver\n"
        "with AsyncCheckpointSaver(max_queue_size=1) as saver:\n"
        "    for number in range(8):\n"
        "        saver.save_async({'a': torch.randn(1_000_000)}, f'{number}.pt', compress=True)\n"
    )
    assert re.search("queue is full", told)


@pytest.mark.parametrize("place", ["checkpoint_1000.pt", "old.pt"])
def test_a_missing_device_is_not_a_damaged_file(saved, place):
    torch.save({"model": saved}, "old.pt")
    with pytest.raises(ConfigError, match=r"'cuda:99'.*cpu") as caught:
        load_checkpoint(place, device="cuda:99")
    assert "damaged" not in str(caught.value)


def test_an_old_torch_file_with_numpy_in_it_loads(network):
    content = {"model": network.state_dict(), "best": np.float64(0.5), "table": np.arange(5)}
    torch.save(content, "old.pt")
    state = load_checkpoint("old.pt")
    assert state["best"] == 0.5
    assert state["table"].tolist() == [0, 1, 2, 3, 4]


def test_a_batch_of_experience_goes_into_a_checkpoint(network):
    lidar = torch.rand(8, 1, 36, 4)
    batch = TensorDict(
        {("agents", "observation", "lidar"): lidar, "action": torch.zeros(8, 2)}, [8]
    )
    with AsyncCheckpointSaver() as saver:
        state = {"model_state_dict": network.state_dict(), "replay_data": batch}
        saver.save_async(state, "with_batch.pt", compress=True)
    back = load_checkpoint("with_batch.pt")["replay_data"]
    assert back.batch_size == batch.batch_size
    assert torch.equal(back["agents", "observation", "lidar"], lidar)


def test_a_configuration_and_a_path_go_into_a_checkpoint():
    config = OmegaConf.create({"env": {"num_envs": 4}, "algo": {"lr": 3e-4}})
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"cfg": config, "where": Path("runs/a"), "iteration": 3}, "cfg.pt")
    state = load_checkpoint("cfg.pt")
    assert state["cfg"] == config
    assert state["where"] == Path("runs/a")


def test_the_functions_for_names_and_sizes(network, capsys):
    print_model_info(network)
    assert "771 parameters" in capsys.readouterr().out
    assert "1000" in format_checkpoint_name(1000)
    assert get_model_size(network)["parameters"] == 771


def test_the_monitor_times_a_block_and_sums_up():
    monitor = PerformanceMonitor()
    for _ in range(3):
        with monitor.timer("policy_training"):
            pass
    assert monitor.get_stats(window=100)["policy_training"]["count"] == 3
    summary = monitor.get_summary(window=100)
    assert "=== Performance Summary ===" in summary
    assert "policy_training" in summary


def test_the_monitor_reports_mean_and_deviation_by_name():
    monitor = PerformanceMonitor()
    for seconds in (0.5, 1.5):
        monitor.record("training", seconds)
    report = monitor.report()
    assert report["training_mean"] == pytest.approx(1.0)
    assert report["training_std"] == pytest.approx(0.5)


def test_a_name_without_a_file_is_an_error_of_navrl():
    with pytest.raises(NavrlError, match="no such checkpoint"):
        load_checkpoint("checkpoint_7.pt")
