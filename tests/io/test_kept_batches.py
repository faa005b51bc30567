"""A batch kept beside a checkpoint is removed with its checkpoint, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from navrl.cli import main
from navrl.io import CheckpointDirectory, Retention, RolloutStorage
from navrl.io.checkpoint.listing import list_entries
from navrl.io.checkpoint.pruning import prune

BATCH = {"reward": np.arange(12.0).reshape(3, 4)}


def save(folder, *steps, batches=True, metrics=None, **rules):
    """Save checkpoints, each with its batch, as training does."""
    rules = {"with_rollouts": True, **rules}
    with CheckpointDirectory(folder, **rules) as run, RolloutStorage(folder) as beside:
        for step in steps:
            found = None if metrics is None else {"success": metrics[step]}
            run.save(step, {"weights": np.full(9, step)}, metrics=found)
            if batches:
                beside.save(BATCH, step, wait=True)
            run.flush()
        run.prune()
        return run


def checkpoints(folder):
    return [entry.step for entry in list_entries(folder)]


def batches(folder):
    return RolloutStorage(folder).list()


def test_a_pruned_checkpoint_takes_its_batch_with_it(tmp_path):
    save(tmp_path, 1, 2, 3, 4, keep_last_n=2)
    assert checkpoints(tmp_path) == batches(tmp_path) == [3, 4]


def test_a_checkpoint_with_an_alias_keeps_its_batch(tmp_path):
    save(tmp_path, 1, 2).alias("demo", 1)
    save(tmp_path, 3, 4, 5, keep_last_n=1)
    assert checkpoints(tmp_path) == batches(tmp_path) == [1, 5]
    assert np.array_equal(RolloutStorage(tmp_path).load(1)["reward"], BATCH["reward"])


def test_the_best_checkpoint_keeps_its_batch(tmp_path):
    rules = {"keep_last_n": 1, "keep_best": 1, "metric": "success"}
    save(tmp_path, 1, 2, 3, metrics={1: 0.2, 2: 0.9, 3: 0.5}, **rules)
    assert checkpoints(tmp_path) == batches(tmp_path) == [2, 3]


def test_what_a_kept_difference_builds_on_keeps_its_batch(tmp_path):
    save(tmp_path, 1, 2, 3, keep_last_n=1, delta_chain=4)
    assert checkpoints(tmp_path) == batches(tmp_path) == [1, 2, 3]


def test_a_run_that_goes_on_without_batches_still_removes_those_it_has(tmp_path):
    save(tmp_path, 1, 2, 3, keep_last_n=3)
    save(tmp_path, 4, 5, keep_last_n=3, batches=False)
    assert (checkpoints(tmp_path), batches(tmp_path)) == ([3, 4, 5], [3])


def test_other_rollouts_in_the_folder_are_left_alone_unless_asked_for(tmp_path):
    save(tmp_path, 1, 2, 3, keep_last_n=1, with_rollouts=False)
    assert (checkpoints(tmp_path), batches(tmp_path)) == ([3], [1, 2, 3])


def test_a_batch_whose_checkpoint_was_never_written_goes_with_the_next_prune(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoint_000000002.pt").unlink()
    assert batches(tmp_path) == [1, 2]
    save(tmp_path, 3)
    assert batches(tmp_path) == [1, 3]


def test_a_batch_that_is_written_before_its_checkpoint_stays(tmp_path):
    run = save(tmp_path, 1, 2)
    with RolloutStorage(tmp_path) as beside:  # its checkpoint is still on its way
        beside.save(BATCH, 3, wait=True)
    run.prune()
    assert batches(tmp_path) == [1, 2, 3]


def test_a_batch_that_cannot_be_read_is_never_removed(tmp_path):
    (tmp_path / "rollout_000000009.navrl").write_bytes(b"damaged")
    save(tmp_path, 10)
    assert (tmp_path / "rollout_000000009.navrl").exists()


def test_a_crash_while_pruning_leaves_no_batch_without_its_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 1, 2, 3)
    unlink = type(tmp_path).unlink

    def fail(path, **options):
        if path.suffix == ".pt":
            raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(type(tmp_path), "unlink", fail)
    with pytest.raises(KeyboardInterrupt):
        prune(tmp_path, Retention(keep_last_n=1), with_rollouts=True)
    monkeypatch.undo()
    assert set(batches(tmp_path)) <= set(checkpoints(tmp_path)) == {1, 2, 3}


@pytest.mark.parametrize("dry", [True, False])
def test_the_command_names_the_batches_that_go(tmp_path, capsys, dry):
    save(tmp_path, 1, 2, 3)
    (tmp_path / "checkpoint_000000002.pt").unlink()
    command = ["checkpoints", "prune", str(tmp_path), "--keep-last", "1"]
    assert main([*command, "--dry-run"] if dry else command) == 0
    printed = capsys.readouterr().out
    verb = "would remove" if dry else "removed"
    assert f"{verb} {tmp_path}/checkpoint_000000001.pt" in printed
    assert ", and the batch beside it" in printed
    assert f"{verb} {tmp_path}/rollout_000000002.navrl, a batch without its checkpoint" in printed
    assert "1 checkpoint kept" in printed
    assert batches(tmp_path) == ([1, 2, 3] if dry else [3])
