"""CheckpointDirectory: steps, metrics, aliases, and what is kept."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from io_states import TinyTraining, assert_same

from navrl.errors import CheckpointError, ConfigError, ContainerError
from navrl.io import CheckpointDirectory, Retention, load_checkpoint
from navrl.io.checkpoint.listing import list_aliases, list_entries
from navrl.io.checkpoint.pruning import prune


@pytest.fixture
def run(tmp_path):
    with CheckpointDirectory(tmp_path, keep_last_n=2, keep_best=1, metric="success") as run:
        for step, success in ((10, 0.1), (20, 0.9), (30, 0.5), (40, 0.4)):
            run.save(step, {"step": step}, metrics={"success": success}, config={"rate": 0.1})
            run.flush()
        yield run


def test_what_no_rule_keeps_is_gone(run):
    assert [entry.step for entry in run.entries()] == [20, 30, 40]


def test_the_latest_and_the_best_are_found(run):
    assert run.latest().step == 40
    assert run.best().step == 20
    assert run.best("success", "min").step == 40


def test_metrics_and_config_are_listed_without_reading_arrays(run):
    latest = run.latest()
    assert (latest.metrics, latest.config) == ({"success": 0.4}, {"rate": 0.1})


def test_load_gives_the_newest_or_the_one_asked_for(run):
    assert run.load() == {"step": 40}
    assert run.load(20) == {"step": 20}


def test_the_name_latest_follows_the_newest(run):
    assert list_aliases(run.folder) == {"latest": "checkpoint_000000040.pt"}
    assert load_checkpoint(run.folder / "latest") == {"step": 40}


def test_a_checkpoint_with_a_name_is_never_pruned(run):
    run.alias("v1.0", 30)
    for step in (50, 60, 70):
        run.save(step, {"step": step})
    run.flush()
    assert [entry.step for entry in run.entries()] == [20, 30, 60, 70]


def test_a_run_that_resumed_from_an_older_step_keeps_and_finds_what_it_writes(run):
    run.save(35, {"step": 35})
    run.flush()
    assert list_aliases(run.folder)["latest"] == "checkpoint_000000035.pt"
    assert run.latest().step == 35
    assert run.load() == {"step": 35}
    assert [entry.step for entry in run.entries()] == [20, 35, 40]


def test_a_name_on_its_way_or_just_gone_is_not_listed(run, monkeypatch):
    (run.folder / ".navrl-0123.tmp").symlink_to("checkpoint_000000020.pt")
    assert set(list_aliases(run.folder)) == {"latest"}

    def vanished(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", vanished)
    assert list_aliases(run.folder) == {}


def test_an_absolute_link_pins_its_checkpoint_too(run):
    (run.folder / "mine").symlink_to(run.folder / "checkpoint_000000030.pt")
    assert [entry.step for entry in prune(run.folder, Retention(keep_last_n=1))] == [20]


def test_a_name_does_not_replace_a_file(run):
    (run.folder / "notes").write_text("mine")
    with pytest.raises(CheckpointError, match="found a file or folder"):
        run.alias("notes", 40)
    assert (run.folder / "notes").read_text() == "mine"


def test_loading_into_live_tensors_waits_for_the_copy(run, monkeypatch):
    waited = []
    monkeypatch.setattr(run.saver, "barrier", lambda: waited.append(True))
    run.load(into={"x": torch.ones(3)})
    assert waited


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "checkpoint_000000020.pt"])
def test_a_name_cannot_leave_the_folder_or_hide_a_checkpoint(run, name):
    with pytest.raises(ConfigError, match="alias"):
        run.alias(name, 40)


def test_a_name_for_nothing_is_refused(run):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        run.alias("best", 10)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(run):
    path = run.latest().path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(
        RuntimeWarning,
        match=rf"checkpoint_000000030.pt was loaded, because later checkpoints are not whole: .*{path.name}: cut short",
    ):
        assert run.load() == {"step": 30}


def test_a_checkpoint_that_the_disk_cannot_read_gives_way_to_the_one_before(run, monkeypatch):
    run.save(50, {"x": torch.ones(3)})
    run.flush()

    def broken(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.warns(
        RuntimeWarning,
        match=r"000040\.pt was loaded, because later checkpoints are not whole: .*000050\.pt: array 'x' cannot be read",
    ):
        assert run.load() == {"step": 40}


def test_a_checkpoint_whose_index_the_disk_cannot_read_gives_way_to_the_one_before(
    run, monkeypatch
):
    run.save(50, {"step": 50})
    run.flush()
    broken = os.stat(run.folder / "checkpoint_000000050.pt").st_ino
    pread = os.pread

    def failing(descriptor, *arguments):
        if os.fstat(descriptor).st_ino == broken:
            raise OSError(5, "Input/output error")
        return pread(descriptor, *arguments)

    monkeypatch.setattr(os, "pread", failing)
    assert [entry.step for entry in run.entries()][-1] == 40
    with pytest.warns(
        RuntimeWarning,
        match=r"000040\.pt was loaded, because later checkpoints are not whole: .*000050\.pt: cannot be read: OSError: .*Input",
    ):
        assert run.load() == {"step": 40}


def test_a_checkpoint_that_may_not_be_read_gives_way_to_the_one_before(run, monkeypatch):
    run.save(50, {"step": 50})
    run.flush()
    opened = os.open

    def refusing(path, *arguments, **options):
        if "000050" in str(path):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.warns(
        RuntimeWarning,
        match=r"000040\.pt was loaded, because later checkpoints are not whole: .*000050\.pt: cannot be read: PermissionError",
    ):
        assert run.load() == {"step": 40}


def test_a_pickle_that_would_run_code_gives_way_to_the_one_before(run):
    (run.folder / "checkpoint_000000050.pt").write_bytes(pickle.dumps(os.getcwd, protocol=2))
    with pytest.warns(
        RuntimeWarning,
        match=r"000040\.pt was loaded, because later checkpoints are not whole: .*000050\.pt",
    ):
        assert run.load() == {"step": 40}


def test_a_damaged_checkpoint_asked_for_by_step_is_an_error(run):
    path = run.latest().path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ContainerError, match=path.name):
        run.load(40)


def test_an_empty_folder_has_no_latest_and_nothing_to_load(tmp_path):
    with CheckpointDirectory(tmp_path / "new") as run:
        assert run.latest() is None
        assert run.best("success") is None
        with pytest.raises(CheckpointError, match="no whole checkpoint"):
            run.load()


def test_foreign_files_are_neither_listed_nor_pruned(run):
    for name in ("notes.txt", "checkpoint_1.pt", "checkpoint_000000001.pt.bak"):
        (run.folder / name).write_text("mine")
    run.save(90, {"step": 90})
    run.flush()
    assert {"notes.txt", "checkpoint_1.pt", "checkpoint_000000001.pt.bak"} < set(
        os.listdir(run.folder)
    )


def test_a_metric_that_is_not_finite_does_not_stop_the_save(run):
    run.save(50, {"step": 50}, metrics={"success": float("nan")})
    run.flush()
    assert run.latest().metrics == {"success": None}
    assert run.best().step == 20


def test_pruning_dry_removes_nothing(run):
    assert [entry.step for entry in prune(run.folder, Retention(keep_last_n=1), dry_run=True)] == [
        20,
        30,
    ]
    assert len(list_entries(run.folder)) == 3


def test_training_goes_on_bit_for_bit_from_a_checkpoint(tmp_path):
    torch.manual_seed(0)
    training = TinyTraining()
    with CheckpointDirectory(tmp_path, optimizers=training.optimizers) as run:
        for _ in range(3):
            training.step()
        run.save(3, {**training.state(), "random": torch.get_rng_state()})
        for _ in range(3):
            training.step()
    other = TinyTraining()
    other.step()  # a fresh training, whose optimisers hold moments already
    with CheckpointDirectory(tmp_path) as run:
        state = run.load(into={"model": other.model.state_dict(), "head": other.head.state_dict()})
    other.adam.load_state_dict(state["adam"])
    other.momentum.load_state_dict(state["momentum"])
    other.iteration = state["iteration"]
    torch.set_rng_state(state["random"])
    for _ in range(3):
        other.step()
    assert_same(other.state(), training.state())
