"""Power loss at every moment of a save: what was reported durable is there, and all of it is whole.

The long mode adds random states at every moment: `NAVRL_TORTURE=20 pytest
tests/io/test_power_loss.py`.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from io_states import assert_same

from injected import ROUNDS
from navrl.errors import CheckpointError, ContainerError
from navrl.io import CheckpointDirectory, load_checkpoint, save_checkpoint
from navrl.io.container.atomic_files import TEMPORARY_PATTERN, AtomicFile
from navrl.io.rollouts.storage import RolloutStorage
from power_loss import write_tree
from power_loss_shim import record

STEPS = (1, 2, 3)


def state_of(step):
    generator = torch.Generator().manual_seed(step)
    return {"weights": torch.randn(2500, generator=generator), "step": step}


def batch_of(iteration):
    return {
        "noise": torch.full((4, 8, 50), float(iteration)),
        "reward": torch.full((4, 8), float(iteration)),
    }


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def each_crash(recording, folder, monkeypatch, injected, *, least=15):
    """Yield the last mark and a folder with what is left, for every crash; flushes are skipped.

    There must be at least so many crashes, or the recording has missed the writes.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    numbers = itertools.count()
    for mark, tree in recording.crashes(randomly=ROUNDS, seed=ROUNDS):
        yield mark, write_tree(tree, folder / f"crash{next(numbers)}")
    injected.add(next(numbers))
    assert injected.faults >= least


def test_a_file_that_is_replaced_is_the_old_one_or_the_new(disk, tmp_path, monkeypatch, injected):
    path = disk / "x.pt"
    save_checkpoint(state_of(1), path)
    with record(disk) as recording:
        save_checkpoint(state_of(2), path)
        recording.mark(2)
    for mark, folder in each_crash(recording, tmp_path, monkeypatch, injected, least=6):
        found = load_checkpoint(folder / "x.pt")
        assert found["step"] >= (mark or 0)
        assert_same(found, state_of(found["step"]))


def save_steps(disk, **options):
    """Save three steps, each of them durable before the next, and return what was done."""
    with record(disk) as recording, CheckpointDirectory(disk / "runs" / "a", **options) as run:
        for step in STEPS:
            run.save(step, state_of(step))
            run.flush()
            recording.mark(step)
    return recording


def check_directory(mark, folder):
    """Load what a crash left of a run, as its next start would."""
    run = folder / "runs" / "a"
    for path in run.glob("checkpoint_*.pt"):
        found = load_checkpoint(path)  # what has its name is whole
        assert_same(found, state_of(found["step"]))
    if os.path.lexists(run / "latest"):
        assert load_checkpoint(run / "latest")["step"] >= (mark or 0)
    with CheckpointDirectory(run) as directory:
        if mark is None and directory.latest() is None:
            return
        found = directory.load()
    assert found["step"] >= (mark or 0)
    assert_same(found, state_of(found["step"]))
    assert list(run.glob(TEMPORARY_PATTERN)) == []


@pytest.mark.parametrize(
    "options", [{"keep_last_n": 1}, {"keep_last_n": 1, "delta_chain": 2}, {}], ids=str
)
def test_a_run_goes_on_from_the_last_checkpoint_that_was_reported_durable(
    disk, tmp_path, monkeypatch, injected, options
):
    recording = save_steps(disk, **options)
    for mark, folder in each_crash(recording, tmp_path, monkeypatch, injected):
        check_directory(mark, folder)


def test_rollouts_that_were_reported_durable_are_there(disk, tmp_path, monkeypatch, injected):
    with (
        record(disk) as recording,
        RolloutStorage(disk / "rollouts", keep_last_n=2, workers=1) as storage,
    ):
        for iteration in STEPS:
            storage.save(batch_of(iteration), iteration, wait=True)
            recording.mark(iteration)
    for mark, folder in each_crash(recording, tmp_path, monkeypatch, injected):
        storage = RolloutStorage(folder / "rollouts")
        for iteration in storage.list():
            assert_same(storage.load(iteration), batch_of(iteration))
        assert mark is None or storage.latest() >= mark
        assert len(storage.list()) >= min(2, mark or 0)


# The harness itself: each of these writers leaves one step out, and must be caught.


def without_flushing_the_file(file, check=lambda: None):
    os.replace(file._temporary, file.path)
    descriptor = os.open(file.path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    file._close()


def without_flushing_the_folder(file, check=lambda: None):
    os.fsync(file._descriptor)
    os.replace(file._temporary, file.path)
    file._close()


def in_place(file, check=lambda: None):
    os.fsync(file._descriptor)
    with open(file._temporary, "rb") as written:
        content = written.read()
    descriptor = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.write(descriptor, content)
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    "commit", [without_flushing_the_file, without_flushing_the_folder, in_place]
)
def test_a_writer_that_leaves_a_step_out_is_caught(disk, tmp_path, monkeypatch, injected, commit):
    with monkeypatch.context() as patched:
        patched.setattr(AtomicFile, "commit", commit)
        with record(disk) as recording:
            for step in STEPS:
                save_checkpoint(state_of(step), disk / "x.pt")
                recording.mark(step)
    failures = 0
    for mark, folder in each_crash(recording, tmp_path, monkeypatch, injected):
        try:
            failures += load_checkpoint(folder / "x.pt")["step"] < (mark or 0)
        except (ContainerError, CheckpointError):
            failures += mark is not None
    assert failures


def test_a_run_that_prunes_too_early_is_caught(disk, tmp_path, monkeypatch, injected):
    with monkeypatch.context() as patched:
        patched.setattr("navrl.io.container.atomic_files.sync_folder", lambda folder: None)
        patched.setattr("navrl.io.checkpoint.pruning.sync_folder", lambda folder: None)
        recording = save_steps(disk, keep_last_n=1)
    crashes = each_crash(recording, tmp_path, monkeypatch, injected)
    with pytest.raises((AssertionError, CheckpointError)):
        any(check_directory(mark, folder) for mark, folder in crashes)


def test_an_operation_that_goes_unnoticed_is_caught(disk):
    with pytest.raises(AssertionError, match="not recorded: what changed x"), record(disk):
        (disk / "x").write_bytes(b"by the C library")
