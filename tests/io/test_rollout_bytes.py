"""Rollouts as bytes: kept in memory, sent between machines, and the files of one rollout each."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import forked
from navrl import (
    CompressedTensorDict,
    RolloutStorage,
    compress_rollout,
    decompress_minibatch,
    decompress_rollout,
    save_rollout_compressed,
)
from navrl.errors import ConfigError, ContainerError, RolloutError, UnsupportedStateError

ENVS, STEPS = 24, 32
LIDAR = ("agents", "observation", "lidar")


FORMS = {
    "compressed": compress_rollout,
    "bytes": lambda data: bytes(compress_rollout(data)),
    "collector's": CompressedTensorDict,
    "plain": lambda data: data,
}


def rollout(envs=ENVS, steps=STEPS):
    torch.manual_seed(0)
    return TensorDict(
        {
            LIDAR: torch.rand(envs, steps, 1, 36, 4).round(decimals=1),
            "reward": torch.rand(envs, steps, 1),
            ("next", "done"): torch.rand(envs, steps, 1) > 0.9,
            "action": torch.randint(0, 9, (envs, steps, 2)),
        },
        [envs, steps],
    )


def equal(first, second):
    keys = set(first.keys(True, True))
    return (
        first.batch_size == second.batch_size
        and keys == set(second.keys(True, True))
        and all(torch.equal(first[key], second[key]) for key in keys)
    )


def test_a_rollout_comes_back_from_its_bytes_exact():
    data = rollout()
    compressed = compress_rollout(data)
    assert isinstance(compressed, bytes)
    assert len(compressed) < data.bytes() / 2
    for form in (compressed, bytes(compressed), bytearray(compressed), memoryview(compressed)):
        assert equal(decompress_rollout(form), data)


@pytest.mark.parametrize(
    "indices",
    [
        torch.tensor([0, 33, 511]),
        torch.tensor([[5, 4], [-1, 5]]),
        np.array([700, 3]),
        [1, 2, 3],
        slice(30, 70, 3),
        torch.arange(ENVS * STEPS) % 7 == 0,
        torch.tensor([], dtype=torch.int64),
        17,
    ],
    ids=["some", "two axes", "numpy", "list", "slice", "mask", "none", "one"],
)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_minibatch_is_what_the_flat_rollout_has_there(indices, form):
    data = rollout()
    assert equal(decompress_minibatch(form(data), indices), data.reshape(-1)[indices])


def test_a_minibatch_decompresses_only_what_it_needs():
    data = rollout(512, 32)
    compressed = bytearray(compress_rollout(data))
    compressed[len(compressed) // 4] ^= 255  # somewhere in the first environments
    with pytest.raises(ContainerError, match="damaged"):
        decompress_rollout(compressed)
    last = torch.tensor([512 * 32 - 1])
    assert equal(decompress_minibatch(compressed, last), data.reshape(-1)[last])


@pytest.mark.parametrize("batch", [[6], [3, 4, 2]], ids=["one axis", "three axes"])
def test_other_batch_sizes_come_back_too(batch):
    data = TensorDict({"a": torch.rand(*batch, 5), "b": {"c": torch.rand(*batch, 2)}}, batch)
    compressed = compress_rollout(data)
    assert equal(decompress_rollout(compressed), data)
    assert equal(decompress_minibatch(compressed, [1, 5, 0]), data.reshape(-1)[[1, 5, 0]])


def test_dicts_of_arrays_with_steps_first_are_rollouts_too():
    data = {
        "observation": {"lidar": torch.rand(STEPS, ENVS, 36)},
        "reward": np.random.default_rng(0).random((STEPS, ENVS)),
        "last_observation": torch.rand(ENVS, 36),
        "note": "flown at night",
    }
    compressed = compress_rollout(data, time_first=True, metadata={"seed": 3})
    back = decompress_rollout(compressed)
    assert torch.equal(back["observation"]["lidar"], data["observation"]["lidar"])
    assert back["note"] == "flown at night"
    some = decompress_minibatch(compressed, [0, ENVS + 3])
    assert set(some) == {"observation", "reward"}
    assert np.array_equal(some["reward"], data["reward"].reshape(-1)[[0, ENVS + 3]])
    assert torch.equal(
        some["observation"]["lidar"], data["observation"]["lidar"].reshape(-1, 36)[[0, ENVS + 3]]
    )


def test_floats_may_be_rounded_where_it_is_asked_for():
    data = rollout()
    data["reward"] = torch.randn(ENVS, STEPS, 1)
    back = decompress_rollout(compress_rollout(data, error_bounds={"reward": 0.01}))
    assert 0 < (back["reward"] - data["reward"]).abs().max() <= 0.01
    assert torch.equal(back[LIDAR], data[LIDAR])


def test_compressed_rollouts_go_to_other_processes_as_any_bytes():
    compressed = compress_rollout(rollout())
    decompress_minibatch(compressed, [0])
    again = pickle.loads(pickle.dumps(compressed))
    assert equal(decompress_rollout(again), rollout())


# ---------------------------------------------------------------------- files


def test_the_file_of_one_rollout_is_a_rollout_file(tmp_path):
    data = rollout()
    path = save_rollout_compressed(
        data, tmp_path / "new" / "rollout_000000005.navrl", metadata={"seed": 3}
    )
    storage = RolloutStorage(tmp_path / "new")
    assert storage.list() == [5]
    assert equal(storage.load(5), data)
    assert torch.equal(storage.load(5, envs=3, keys="lidar")[LIDAR], data[LIDAR][3])
    assert storage.info(5).metadata == {"seed": 3}
    assert equal(decompress_rollout(path), data)
    assert equal(decompress_rollout(str(path)), data)


def test_a_rollout_file_is_a_compressed_rollout(tmp_path):
    data = rollout()
    with RolloutStorage(tmp_path) as storage:
        path = storage.save(data, iteration=np.int64(7), wait=True)
    assert equal(decompress_rollout(path.read_bytes()), data)
    assert equal(decompress_minibatch(path, [5]), data.reshape(-1)[[5]])


@pytest.mark.parametrize(
    "form", [compress_rollout, CompressedTensorDict], ids=["bytes", "collector's"]
)
def test_what_is_compressed_already_can_be_saved(form, tmp_path):
    path = save_rollout_compressed(form(rollout()), tmp_path / "rollout_5.lz4")
    assert equal(decompress_rollout(path), rollout())


@pytest.mark.slow
def test_compressing_needs_no_tensordict(tmp_path):
    program = """
import sys, torch
from navrl import compress_rollout, decompress_minibatch, decompress_rollout
data = {"a": torch.arange(24.0).reshape(4, 6)}
compressed = compress_rollout(data)
assert torch.equal(decompress_rollout(compressed)["a"], data["a"])
assert decompress_minibatch(compressed, [7])["a"].item() == 7
assert "tensordict" not in sys.modules
"""
    done = forked.run(program)
    assert done.returncode == 0, done.stderr


def test_compressed_bytes_are_written_as_they_are(tmp_path):
    sent = compress_rollout(rollout(), time_first=True, metadata={"iteration": 7})
    save_rollout_compressed(sent, tmp_path / "x.lz4")
    assert (tmp_path / "x.lz4").read_bytes() == bytes(sent)


@pytest.mark.parametrize(
    "option", [{"time_first": True}, {"metadata": {"a": 1}}, {"compression_level": 3}], ids=str
)
def test_options_for_bytes_that_are_compressed_already_are_refused(tmp_path, option):
    with pytest.raises(ConfigError, match="give options to compress_rollout"):
        save_rollout_compressed(compress_rollout(rollout()), tmp_path / "x.lz4", **option)
    assert list(tmp_path.iterdir()) == []


def test_damaged_bytes_are_not_written(tmp_path):
    with pytest.raises(ContainerError):
        save_rollout_compressed(bytes(compress_rollout(rollout()))[:-9], tmp_path / "x.lz4")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (
            lambda: decompress_rollout(b"\x04\x22\x4d\x18 lz4"),
            RolloutError,
            "not a compressed rollout",
        ),
        (lambda: decompress_rollout(b""), RolloutError, "0 bytes"),
        (
            lambda: decompress_rollout(3),
            RolloutError,
            "is a int; expected what compress_rollout returned",
        ),
        (lambda: decompress_rollout(compress_rollout(rollout())[:-9]), ContainerError, "cut short"),
        (
            lambda: decompress_minibatch(compress_rollout(rollout()), [ENVS * STEPS]),
            RolloutError,
            "from 0 to 767",
        ),
        (
            lambda: decompress_minibatch(compress_rollout(rollout()), [0.5]),
            RolloutError,
            "expected numbers",
        ),
        (
            lambda: compress_rollout(rollout(), 17),
            ConfigError,
            "compression_level is 17; expected a whole number from 0 to 16",
        ),
        (lambda: compress_rollout(torch.zeros(3)), RolloutError, "expected a TensorDict"),
        (
            lambda: compress_rollout({"a": torch.zeros(3, 2), "b": object()}),
            UnsupportedStateError,
            "b: builtins",
        ),
    ],
    ids=[
        "another format",
        "nothing",
        "number",
        "cut",
        "frame",
        "fraction",
        "level",
        "tensor",
        "object",
    ],
)
def test_mistakes_are_refused_by_name(call, error, told):
    with pytest.raises(error, match=told):
        call()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.lz4"):
        decompress_rollout(tmp_path / "nothing.lz4")
