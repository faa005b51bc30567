"""What was saved last is newest, whatever the clock said when it was saved."""

from __future__ import annotations

import itertools
import os
import random
import time

import pytest
import torch
from test_container import rewrite_index

from injected import ROUNDS
from navrl.io import CheckpointDirectory, Retention, read_index, save_checkpoint
from navrl.io.checkpoint.listing import list_aliases, list_entries
from navrl.io.checkpoint.pruning import prune
from navrl.io.container.sequence import SequenceNumbers, sequence_of
from navrl.io.rollouts.storage import RolloutStorage

DAY = 86400.0


@pytest.fixture
def clock(monkeypatch):
    """A clock that can be set; mtimes follow the real one, so that neither may decide."""
    real = time.time

    def set_to(offset):
        monkeypatch.setattr(time, "time", lambda: real() + offset)

    return set_to


def save(folder, *steps, **options):
    with CheckpointDirectory(folder, **options) as run:
        for step in steps:
            run.save(step, {"step": step}, metrics={"success": 0.5})
            run.flush()


def save_batch(folder, *iterations, **options):
    with RolloutStorage(folder, **options) as storage:
        for iteration in iterations:
            storage.save({"reward": torch.full((2, 3), float(iteration))}, iteration, wait=True)


def without_number(path, created=None):
    """Make a file one of an older navrl."""

    def change(index):
        del index["document"]["sequence"]
        if created is not None:
            index["document"]["created"] = created

    rewrite_index(path, change)


def steps_of(folder):
    return [entry.step for entry in list_entries(folder)]


def test_a_clock_set_back_hides_nothing_that_is_saved_later(tmp_path, clock):
    clock(DAY)
    save(tmp_path, 1, 2, 3, 4)
    clock(0.0)
    with CheckpointDirectory(tmp_path) as run:
        run.save(5, {"step": 5})
        run.flush()
        assert run.latest().step == 5
        assert run.load() == {"step": 5}
    assert list_aliases(tmp_path) == {"latest": "checkpoint_000000005.pt"}


def test_a_clock_set_back_lets_pruning_keep_what_was_saved_last(tmp_path, clock):
    clock(DAY)
    save(tmp_path, 1, 2, 3, 4)
    clock(0.0)
    save(tmp_path, 5, 6, keep_last_n=2)
    assert steps_of(tmp_path) == [5, 6]


def test_a_clock_set_back_within_one_process_changes_nothing(tmp_path, clock):
    with CheckpointDirectory(tmp_path, keep_last_n=2) as run:
        for step, offset in ((10, DAY), (20, 0.0), (15, -DAY)):
            clock(offset)
            run.save(step, {"step": step})
        run.flush()
        assert run.load() == {"step": 15}
    assert steps_of(tmp_path) == [15, 20]


@pytest.mark.parametrize("number", range(4 * ROUNDS))
def test_whatever_the_clock_does_before_each_save_those_saved_last_are_kept(
    tmp_path, clock, number, injected
):
    chance = random.Random(number)
    order, kept = chance.sample(range(100), 8), chance.randint(1, 5)
    ends = sorted(chance.sample(range(1, 8), 2))  # of three sessions
    for begin, end in itertools.pairwise([0, *ends, 8]):
        with CheckpointDirectory(tmp_path, keep_last_n=kept) as run:
            for step in order[begin:end]:
                clock(chance.uniform(-365 * DAY, 365 * DAY))
                injected.add()
                run.save(step, {"step": step})
                run.flush()
                assert run.latest().step == step
    assert steps_of(tmp_path) == sorted(order[-kept:])


def test_the_better_of_two_equals_is_the_one_saved_last(tmp_path):
    save(tmp_path, 20, 10)
    with CheckpointDirectory(tmp_path) as run:
        assert run.best("success").step == 10


def test_queued_saves_keep_their_order(tmp_path):
    with CheckpointDirectory(tmp_path) as run:
        for step in (3, 1, 2):
            run.save(step, {"step": step})
    entries = sorted(list_entries(tmp_path), key=lambda entry: entry.sequence)
    assert [entry.step for entry in entries] == [3, 1, 2]


def test_files_of_an_older_navrl_come_before_numbered_ones(tmp_path):
    save(tmp_path, 1, 2, 3)
    without_number(tmp_path / "checkpoint_000000002.pt", created=time.time() + DAY)
    without_number(tmp_path / "checkpoint_000000003.pt", created=time.time() + 2 * DAY)
    (tmp_path / "latest").unlink()  # it would protect what it points at
    with CheckpointDirectory(tmp_path) as run:
        assert run.latest().step == 1
        assert [
            entry.step for entry in prune(tmp_path, Retention(keep_last_n=1), dry_run=True)
        ] == [2, 3]


def test_files_of_an_older_navrl_alone_go_by_time(tmp_path):
    save(tmp_path, 1, 2, 3)
    for step, created in ((1, 300.0), (2, 100.0), (3, 200.0)):
        without_number(tmp_path / f"checkpoint_00000000{step}.pt", created)
    with CheckpointDirectory(tmp_path) as run:
        assert run.load() == {"step": 1}


@pytest.mark.parametrize("number", [None, True, 0, -5, 1.5, "7", [1], 1 << 53, 10**400])
def test_what_is_no_sequence_number_counts_as_none(number):
    assert sequence_of({"sequence": number}) is None


def test_a_damaged_newest_file_keeps_no_later_one_from_being_newest(tmp_path):
    """Its number cannot be read; should the disk give it back one day, it must still be the older
    one.
    """
    save(tmp_path, 1, 2)
    newest = tmp_path / "checkpoint_000000002.pt"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    save(tmp_path, 3)
    newest.write_bytes(whole)
    with CheckpointDirectory(tmp_path) as run:
        assert run.load() == {"step": 3}


def test_files_damaged_for_many_starts_keep_no_later_one_from_being_newest(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step)  # a start each, so that the last number is far beyond the first
    paths = [tmp_path / f"checkpoint_00000000{step}.pt" for step in range(2, 6)]
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(b"")
    save(tmp_path, 9)
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    with CheckpointDirectory(tmp_path) as run:
        assert run.load() == {"step": 9}


def test_a_file_that_a_killed_process_still_writes_is_older_than_the_next_start(tmp_path):
    save(tmp_path, 1)
    with CheckpointDirectory(tmp_path) as killed:
        killed.save(2, {"step": 2})
        killed.flush()
        late = tmp_path / "checkpoint_000000002.pt"
        content = late.read_bytes()
        late.unlink()  # as if it were not there yet
        SequenceNumbers._taken.clear()  # as in another process
        save(tmp_path, 3)
        late.write_bytes(content)
    with CheckpointDirectory(tmp_path) as run:
        assert run.load() == {"step": 3}


def test_two_objects_for_one_folder_never_give_out_the_same_number(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    one = SequenceNumbers(tmp_path, [], unreadable=False)
    other = SequenceNumbers(tmp_path / "link", [], unreadable=False)
    taken = [numbers.take() for numbers in (one, other, one, other)]
    assert taken == sorted(set(taken))


def test_numbers_of_another_process_are_respected_once_they_are_seen(tmp_path):
    with CheckpointDirectory(tmp_path) as run:
        save(tmp_path, 50, 60, 70)
        SequenceNumbers._taken.clear()  # as if another process had saved them
        run.save(1, {"step": 1})
        run.flush()
        run.save(2, {"step": 2})
        run.flush()
        assert run.load() == {"step": 2}


def test_a_damaged_file_is_tried_in_the_place_of_its_step(tmp_path):
    save(tmp_path, 10, 20, 30)
    (tmp_path / "checkpoint_000000020.pt").write_bytes(b"rotten")
    with CheckpointDirectory(tmp_path) as run:
        assert run.load() == {"step": 30}
        (tmp_path / "checkpoint_000000030.pt").write_bytes(b"rotten")
        with pytest.warns(
            RuntimeWarning,
            match=r"000010\.pt was loaded, because later checkpoints are not whole: .*000030.*000020",
        ):
            assert run.load() == {"step": 10}


def test_a_foreign_file_of_a_later_step_is_loaded_with_a_warning(tmp_path):
    save(tmp_path, 10)
    torch.save({"step": 20}, tmp_path / "checkpoint_000000020.pt")
    with (
        CheckpointDirectory(tmp_path) as run,
        pytest.warns(RuntimeWarning, match="because of its step"),
    ):
        assert run.load() == {"step": 20}


def test_a_checkpoint_that_no_directory_saved_has_no_number(tmp_path):
    save_checkpoint({"x": 1}, tmp_path / "x.pt")
    assert "sequence" not in read_index(tmp_path / "x.pt").document


def test_rollouts_are_pruned_by_the_order_in_which_they_were_saved(tmp_path, clock):
    clock(DAY)
    save_batch(tmp_path, 100, 101, 102)
    clock(0.0)
    save_batch(tmp_path, 50, 51, keep_last_n=2)
    storage = RolloutStorage(tmp_path)
    assert storage.list() == [50, 51]
    assert storage.latest() == 51


def test_pruning_rollouts_does_not_look_at_file_times(tmp_path):
    save_batch(tmp_path, 1, 2)
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        os.utime(path, (time.time() + DAY - number,) * 2)
    save_batch(tmp_path, 3, keep_last_n=2)
    assert RolloutStorage(tmp_path).list() == [2, 3]


def test_the_latest_rollout_is_the_one_saved_last(tmp_path):
    assert RolloutStorage(tmp_path / "none").latest() is None
    save_batch(tmp_path, 7, 3)
    without_number(tmp_path / "rollout_000000007.navrl")
    storage = RolloutStorage(tmp_path)
    assert storage.latest() == 3
    assert storage.info(7).sequence is None
    assert storage.info(3).sequence > 0


def test_a_rollout_with_a_damaged_index_is_not_pruned_and_costs_no_whole_one(tmp_path):
    save_batch(tmp_path, 200)
    damaged = tmp_path / "rollout_000000200.navrl"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    save_batch(tmp_path, 110, 111, keep_last_n=1)
    assert RolloutStorage(tmp_path).list() == [111, 200]
