"""Plausible mistakes in arguments of public functions are told in a sentence that names the
argument.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import navrl
from navrl.arguments import as_mapping, as_path, whole_number
from navrl.errors import ConfigError, NavrlError

ROLLOUT = TensorDict({"x": torch.zeros(2, 3, 4)}, [2, 3])
STATE = {"x": torch.ones(3)}
EPISODE = {"a": np.ones((5, 2), np.float32)}


@pytest.mark.parametrize(
    "value", [3, np.int64(3), np.uint8(3), torch.tensor(3), 3.0, np.float64(3.0)]
)
def test_a_whole_number_of_any_library_is_taken(value):
    assert type(whole_number("size", value, 1)) is int
    assert whole_number("size", value, 1) == 3


@pytest.mark.parametrize(
    "value", [None, "3", 3.7, True, [], float("nan"), np.float64("inf"), 0, 11, torch.ones(2)]
)
def test_what_is_no_whole_number_within_its_limits_is_refused(value):
    with pytest.raises(ConfigError, match=r"size is .*; expected a whole number from 1 to 10"):
        whole_number("size", value, 1, 10)


@pytest.mark.parametrize("value", [None, 3, b"a.pt", ["a.pt"]])
def test_what_is_no_path_is_refused(value):
    with pytest.raises(ConfigError, match=r"folder is .*; expected a path"):
        as_path("folder", value)


def test_nothing_is_no_values_and_text_is_refused():
    assert as_mapping("metrics", None) == {}
    with pytest.raises(ConfigError, match="metrics is 'good'; expected values by name"):
        as_mapping("metrics", "good")


def in_folder(call):
    with navrl.CheckpointDirectory("run") as directory:
        return call(directory)


def in_buffer(call):
    buffer = navrl.DictReplayBuffer(10)
    buffer.add(EPISODE)
    return call(buffer)


def in_store(call):
    store = navrl.FrameStore(10)
    store.extend(EPISODE)
    return call(store)


def in_saver(**arguments):
    with navrl.AsyncCheckpointSaver() as saver:
        saver.save_async(**({"checkpoint": STATE, "path": "a.pt"} | arguments))


NUMPY = {
    "saver": lambda: navrl.AsyncCheckpointSaver(np.int64(3)).shutdown(),
    "step": lambda: in_folder(lambda folder: folder.save(np.int64(3), STATE)),
    "buffer": lambda: navrl.DictReplayBuffer(np.int64(10)),
    "batch": lambda: in_buffer(lambda buffer: buffer.sample(np.int64(3))),
    "store": lambda: navrl.FrameStore(np.int64(10)),
    "storage": lambda: navrl.CompressedStorage(np.int64(10)),
    "sampler": lambda: navrl.PrioritizedSampler(np.int64(10), 0.7, 0.5),
    "level": lambda: navrl.compress_image(np.ones((4, 4), np.uint8), np.int64(3)),
    "prefetch": lambda: navrl.PipelinedDataCollector([1], prefetch_count=np.int64(3), policy=None),
    "window": lambda: navrl.PerformanceMonitor().get_stats(np.int64(3)),
}


@pytest.mark.parametrize("call", NUMPY.values(), ids=NUMPY.keys())
def test_numpy_counts_are_counts(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call()


MISTAKES = {
    "AsyncCheckpointSaver": (lambda: navrl.AsyncCheckpointSaver("3"), "max_queue_size is '3'"),
    "save_async path": (lambda: in_saver(path=None), "path is None"),
    "save_async metadata": (lambda: in_saver(metadata="best"), "metadata is 'best'"),
    "load_checkpoint": (lambda: navrl.load_checkpoint(None), "path is None"),
    "load_checkpoint workers": (
        lambda: navrl.load_checkpoint("a.pt", workers="2"),
        "workers is '2'",
    ),
    "save_checkpoint": (lambda: navrl.save_checkpoint(STATE, None), "path is None"),
    "save_checkpoint level": (
        lambda: navrl.save_checkpoint(STATE, "a.pt", level="9"),
        "level is '9'",
    ),
    "CheckpointDirectory": (lambda: navrl.CheckpointDirectory(None), "folder is None"),
    "keep_last_n": (
        lambda: navrl.CheckpointDirectory("run", keep_last_n="3"),
        "keep_last_n is '3'",
    ),
    "save step": (lambda: in_folder(lambda folder: folder.save(2.5, STATE)), "step is 2.5"),
    "save metrics": (
        lambda: in_folder(lambda folder: folder.save(1, STATE, metrics=0.5)),
        "metrics is 0.5",
    ),
    "load step": (lambda: in_folder(lambda folder: folder.load("latest")), "step is 'latest'"),
    "format_checkpoint_name": (lambda: navrl.format_checkpoint_name("1000"), "step is '1000'"),
    "get_model_size": (lambda: navrl.get_model_size({}), "model is a dict"),
    "print_model_info": (lambda: navrl.print_model_info(None), "model is a NoneType"),
    "RolloutStorage": (lambda: navrl.RolloutStorage(None), "save_dir is None"),
    "compression_level": (lambda: navrl.RolloutStorage("r", "9"), "compression_level is '9'"),
    "save_rollout_compressed": (
        lambda: navrl.save_rollout_compressed(ROLLOUT, None),
        "path is None",
    ),
    "compress_rollout": (
        lambda: navrl.compress_rollout(ROLLOUT, None),
        "compression_level is None",
    ),
    "DictReplayBuffer": (lambda: navrl.DictReplayBuffer(10, 3), "keys is 3"),
    "add": (lambda: navrl.DictReplayBuffer(10).add(None), "an episode is None"),
    "sample": (lambda: in_store(lambda store: store.sample("3")), "batch_size is '3'"),
    "extend": (lambda: navrl.FrameStore(10).extend([1, 2]), "frames are"),
    "CompressedStorage": (lambda: navrl.CompressedStorage(None), "max_size is None"),
    "PrefixSum": (lambda: navrl.PrefixSum(None, [10]).get_range_idx("3"), "index is '3'"),
    "decompress_image": (lambda: navrl.decompress_image(None), "data is None"),
    "decompress_image_seq": (
        lambda: navrl.decompress_image_seq(navrl.compress_image_seq(np.ones((2, 4))), 4),
        "image_shape is 4",
    ),
    "CompressedTensorDict": (lambda: navrl.CompressedTensorDict({}), "data is a dict"),
    "CompressedDataCollector": (
        lambda: navrl.CompressedDataCollector(None),
        "base_collector is a NoneType",
    ),
    "record": (lambda: navrl.PerformanceMonitor().record("x", None), "None.*expected seconds"),
    "NavigationEnv": (
        lambda: navrl.NavigationEnv({"env": {}}),
        "settings is .*expected NavigationSettings",
    ),
    "find_model": (lambda: navrl.find_model(None), "the model is None"),
    "load_policy": (lambda: navrl.load_policy(3), "the model is 3"),
    "act_spec": (lambda: navrl.create_navrl_model(None, None, 3), "act_spec has the shape"),
    "obs_spec": (lambda: navrl.create_navrl_model(None, 3), "obs_spec has no 'lidar'"),
    "upload a module": (
        lambda: navrl.upload_model_to_wandb(torch.nn.Linear(1, 1), 3),
        "model_state_dict is a Linear; expected what model.state_dict",
    ),
    "one optimiser": (
        lambda: navrl.AsyncCheckpointSaver(
            optimizers=torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
        ),
        "optimizers is a SGD; expected a list, such as",
    ),
    "a folder to load": (
        lambda: navrl.load_checkpoint("."),
        "found a directory, expected a checkpoint",
    ),
    "run": (lambda: navrl.Run(3), "folder is 3; expected a path"),
    "folder of a run": (lambda: navrl.train([], folder=5), "folder is 5; expected a path"),
    "observation": (
        lambda: navrl.load_policy("pretrained").act({"state": torch.zeros(4, 8)}),
        "an observation is .'state'.; expected tensors by name, lidar",
    ),
    "upload step": (lambda: navrl.upload_model_to_wandb(STATE, "3"), "step is '3'"),
    "upload metrics": (lambda: navrl.upload_model_to_wandb(STATE, 3, 0.5), "eval_metrics is 0.5"),
    "best metrics": (
        lambda: navrl.save_and_upload_best_model(STATE, 3, None),
        "eval_metrics has no 'mean_reward'",
    ),
    "best value": (
        lambda: navrl.save_and_upload_best_model(STATE, 3, {"mean_reward": None}),
        r"eval_metrics\['mean_reward'\] is None",
    ),
}


@pytest.mark.parametrize(("call", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_by_the_name_of_the_argument(call, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    with pytest.raises(NavrlError, match=told):
        call()
