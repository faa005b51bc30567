"""Lossy moments: only when asked for, only moments, and bounded."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from io_states import TinyTraining, assert_same, bits

from navrl.io import AsyncCheckpointSaver, load_checkpoint, read_index, save_checkpoint


@pytest.fixture
def state():
    training = TinyTraining(200)
    for _ in range(3):
        training.step()
    return copy.deepcopy(training.state())


@pytest.fixture(params=["blocking", "asynchronous"])
def saved(request, tmp_path, state):
    if request.param == "blocking":
        save_checkpoint(state, tmp_path / "x.pt", lossy_moments=True)
    else:
        with AsyncCheckpointSaver(lossy_moments=True) as saver:
            saver.save_async(state, tmp_path / "x.pt")
    return tmp_path / "x.pt"


def test_everything_but_the_moments_is_exact(saved, state):
    loaded = load_checkpoint(saved)
    for key in ("model", "head", "iteration"):
        assert_same(loaded[key], state[key])
    assert bits(loaded["adam"]["state"][0]["step"]) == bits(state["adam"]["state"][0]["step"])


def test_moments_come_back_as_float32_within_the_precision_of_bfloat16(saved, state):
    for number, moments in load_checkpoint(saved)["adam"]["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            expected = state["adam"]["state"][number][name]
            assert moments[name].dtype == torch.float32
            torch.testing.assert_close(moments[name], expected, rtol=2**-8, atol=0)


def test_loading_into_live_moments_widens_them(saved):
    target = TinyTraining(200)
    target.step()
    loaded = load_checkpoint(saved, into=target.state())
    live = target.adam.state_dict()["state"][0]["exp_avg"]
    assert loaded["adam"]["state"][0]["exp_avg"].data_ptr() == live.data_ptr()
    assert_same(live, load_checkpoint(saved)["adam"]["state"][0]["exp_avg"])


def test_the_file_says_what_was_rounded_and_is_much_smaller(saved, state, tmp_path):
    elements = {entry.name.rpartition("/")[2]: entry.element for entry in read_index(saved).arrays}
    assert (
        elements["exp_avg"] == elements["exp_avg_sq"] == elements["momentum_buffer"] == "bfloat16"
    )
    assert elements["3.weight"] == "float32"
    save_checkpoint(state, tmp_path / "exact.pt")
    assert saved.stat().st_size < 0.75 * (tmp_path / "exact.pt").stat().st_size


def test_what_only_has_the_name_of_a_moment_is_exact(tmp_path):
    tied = torch.randn(5000)
    state = {
        "exp_avg": torch.randn(5000),
        "model": {"exp_avg": torch.randn(5000)},
        "tied": tied,
        "adam": {
            "state": {
                0: {
                    "exp_avg": np.random.default_rng(0).normal(size=5000).astype(np.float32),
                    "momentum_buffer": tied,
                }
            }
        },
    }
    save_checkpoint(state, tmp_path / "x.pt", lossy_moments=True)
    assert_same(load_checkpoint(tmp_path / "x.pt"), state)


def test_nothing_is_rounded_unless_asked_for(tmp_path, state):
    save_checkpoint(state, tmp_path / "x.pt")
    assert_same(load_checkpoint(tmp_path / "x.pt"), state)
