"""Differential checkpoints: exact, bounded, and never without what they build on."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from io_states import TinyTraining, assert_same
from test_container import rewrite_index

from navrl.errors import CheckpointError, ConfigError, ContainerError
from navrl.io import (
    AsyncCheckpointSaver,
    CheckpointDirectory,
    load_checkpoint,
    read_index,
    verify_checkpoint,
)
from navrl.io.checkpoint.differences import _subtract, _undo_zigzag
from navrl.io.container.element_types import ITEM_BYTES


@pytest.fixture
def run(tmp_path):
    """Six checkpoints one step apart, in chains of three, and what each must hold."""
    torch.manual_seed(0)
    training = TinyTraining(100)
    expected = {}
    with CheckpointDirectory(tmp_path, optimizers=training.optimizers, delta_chain=3) as run:
        for step in range(1, 7):
            training.step()
            expected[step] = copy.deepcopy(training.state())
            run.save(step, training.state())
            run.flush()
        yield run, expected


def test_every_checkpoint_of_a_chain_is_exact(run):
    run, expected = run
    for step, state in expected.items():
        assert_same(run.load(step), state)


def test_chains_are_bounded_and_start_anew_by_themselves(run):
    bases = [entry.base for entry in run[0].entries()]
    first, second, fourth, fifth = (f"checkpoint_00000000{step}.pt" for step in (1, 2, 4, 5))
    assert bases == [None, first, second, None, fourth, fifth]


def test_small_changes_are_stored_in_few_bytes(tmp_path):
    weights = torch.randn(100_000)
    with CheckpointDirectory(tmp_path, delta_chain=2) as run:
        for step in (1, 2):
            run.save(step, {"weights": weights})
            weights = weights * (1 + 1e-6)
    whole, difference = run.entries()
    assert difference.stored_bytes < 0.5 * whole.stored_bytes


def test_pruning_keeps_what_a_kept_checkpoint_builds_on(run):
    run, expected = run
    run.alias("second", 2)
    removed = copy.copy(run)
    removed.retention = type(run.retention)(keep_last_n=1)
    assert [entry.step for entry in removed.prune()] == [3]
    assert_same(run.load(6), expected[6])
    assert_same(load_checkpoint(run.folder / "second"), expected[2])


def test_a_missing_base_is_an_error_that_names_both(run):
    run, _ = run
    (run.folder / "checkpoint_000000005.pt").unlink()
    with pytest.raises(
        ContainerError, match=r"000006\.pt: needs checkpoint_000000005\.pt, which is missing"
    ):
        run.load(6)


def test_a_base_that_was_replaced_is_an_error_that_names_both(run):
    run, _ = run
    (run.folder / "checkpoint_000000005.pt").write_bytes(
        (run.folder / "checkpoint_000000004.pt").read_bytes()
    )
    with pytest.raises(
        ContainerError, match=r"000006\.pt: needs checkpoint_000000005\.pt, which was replaced"
    ):
        run.load(6)


def _flip(path):
    data = bytearray(path.read_bytes())
    data[read_index(path).arrays[0].offsets[0]] ^= 1
    path.write_bytes(data)


def test_verification_follows_the_chain_to_a_base_that_is_damaged(run):
    run, _ = run
    verify_checkpoint(run.folder / "checkpoint_000000006.pt")
    _flip(run.folder / "checkpoint_000000004.pt")
    with pytest.raises(ContainerError, match=r"000004\.pt: array .* is damaged"):
        verify_checkpoint(run.folder / "checkpoint_000000006.pt")


def test_verification_names_a_base_that_is_missing(run):
    run, _ = run
    (run.folder / "checkpoint_000000005.pt").unlink()
    with pytest.raises(
        ContainerError, match=r"000006\.pt: needs checkpoint_000000005\.pt, which is missing"
    ):
        verify_checkpoint(run.folder / "checkpoint_000000006.pt")


def test_a_damaged_base_leaves_no_half_in_live_tensors(run):
    run, expected = run
    for first in (1, 4):
        _flip(run.folder / f"checkpoint_00000000{first}.pt")
    live = copy.deepcopy(expected[1])
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        run.load(into=live)
    assert_same(live, expected[1])


def test_the_last_file_of_a_chain_is_saved_again_whole(run):
    run, expected = run
    run.save(7, expected[5])
    run.save(8, expected[6])
    run.save(8, expected[1])
    run.flush()
    assert run.latest().base is None
    assert_same(run.load(8), expected[1])


def test_a_file_that_others_build_on_is_not_overwritten(run):
    run, expected = run
    run.save(5, {})
    with pytest.raises(CheckpointError, match="later checkpoints need it"):
        run.flush()
    assert_same(run.load(5), expected[5])


def test_after_a_failed_save_the_next_is_whole(run):
    run, expected = run
    (run.folder / "checkpoint_000000007.pt").mkdir()
    run.save(7, {"x": torch.ones(5000)})
    with pytest.raises(CheckpointError, match="not saved"):
        run.flush()
    run.save(8, expected[6])
    run.flush()
    assert run.latest().base is None
    assert_same(run.load(8), expected[6])


def test_a_base_that_vanished_is_not_built_on(run):
    run, expected = run
    (run.folder / "checkpoint_000000006.pt").unlink()
    run.save(7, expected[6])
    run.flush()
    assert_same(run.load(7), expected[6])
    assert run.latest().base is None


def test_arrays_that_changed_their_shape_or_are_new_are_stored_whole(tmp_path):
    states = [
        {"a": torch.ones(3000), "b": torch.ones(3000)},
        {
            "a": torch.ones(3001),
            "b": torch.zeros(3000),
            "c": torch.ones(5000, dtype=torch.complex64),
        },
        {
            "a": torch.ones(3001).double(),
            "b": torch.ones(3000),
            "c": torch.zeros(5000, dtype=torch.complex64),
        },
    ]
    with AsyncCheckpointSaver(delta_chain=5) as saver:
        for number, state in enumerate(states):
            saver.save_async(state, tmp_path / f"{number}.pt")
    for number, state in enumerate(states):
        assert_same(load_checkpoint(tmp_path / f"{number}.pt"), state)


def test_differences_of_lossy_moments_are_exact_too(tmp_path):
    training = TinyTraining(100)
    with (
        AsyncCheckpointSaver(delta_chain=3, lossy_moments=True) as delta,
        AsyncCheckpointSaver(lossy_moments=True) as whole,
    ):
        for number in range(3):
            training.step()
            delta.save_async(training.state(), tmp_path / f"delta{number}.pt")
            whole.save_async(training.state(), tmp_path / f"whole{number}.pt")
    assert_same(load_checkpoint(tmp_path / "delta2.pt"), load_checkpoint(tmp_path / "whole2.pt"))


@pytest.mark.parametrize("element", ["float32", "bfloat16", "float64", "int64", "bool"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_two_arrays_differ_by_what_adds_up_again(element, data):
    size = ITEM_BYTES[element] * data.draw(st.integers(0, 9))
    new, old = (
        np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
        for _ in range(2)
    )
    difference = old.copy()
    _subtract(new, difference, element)
    _undo_zigzag(difference, element)
    width = f"<u{ITEM_BYTES[element]}"
    assert (old.view(width) + difference.view(width)).tobytes() == new.tobytes()


@pytest.mark.parametrize(
    "base",
    [
        7,
        {},
        {"file": "../secret.pt", "checksum": "0" * 16, "arrays": {}},
        {"file": "/etc/passwd", "checksum": "0" * 16, "arrays": {}},
        {"file": ".hidden", "checksum": "0" * 16, "arrays": {}},
        {"file": "x.pt", "checksum": "nonsense", "arrays": {}},
        {"file": "x.pt", "checksum": "0" * 16, "arrays": {"nothing": "float32"}},
        {"file": "x.pt", "checksum": "0" * 16, "arrays": {"model/3.weight": "float64"}},
        {"file": "x.pt", "checksum": "0" * 16, "arrays": None},
    ],
)
def test_a_hostile_base_cannot_leave_the_folder_or_crash(run, base):
    path = run[0].folder / "checkpoint_000000006.pt"
    rewrite_index(path, lambda index: index["document"].update(base=base))
    with pytest.raises(ContainerError, match=r"000006\.pt: invalid base"):
        load_checkpoint(path)


def test_a_file_that_builds_on_itself_is_refused(run):
    path = run[0].folder / "checkpoint_000000006.pt"
    base = {
        "file": path.name,
        "checksum": f"{read_index(path).checksum:016x}",
        "arrays": {"model/3.weight": "float32"},
    }
    rewrite_index(path, lambda index: index["document"].update(base=base))
    with pytest.raises(ContainerError, match="which was replaced"):
        load_checkpoint(path)


@pytest.mark.parametrize("length", [-1, 1])
def test_a_chain_of_no_differences_is_refused(length):
    with pytest.raises(ConfigError, match="delta_chain"):
        AsyncCheckpointSaver(delta_chain=length)
