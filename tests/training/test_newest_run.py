"""`resume=auto` without a folder: the newest run that can be resumed, by a number that only grows, never
by the clock.
"""

from __future__ import annotations

import json
import os
import random

import pytest

from injected import ROUNDS
from navrl.errors import ConfigError
from navrl.io.checkpoint.checkpoint_file import save_checkpoint
from navrl.io.container.step_names import format_checkpoint_name
from navrl.training.resume.continued_run import newest_run
from navrl.training.run_folder import RunFolder


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a run with so many checkpoints, newer than those before."""

    def make(name, checkpoints=1, finished=False):
        with RunFolder.create(tmp_path / name, "seed: 0\n", "navrl train") as folder:
            for step in range(checkpoints):
                save_checkpoint(
                    {"iteration": step}, folder.checkpoints / format_checkpoint_name(step)
                )
            if finished:
                folder.record_finish(checkpoints)
        return folder

    return make


def chosen(tmp_path):
    return newest_run(tmp_path).name


def test_the_run_begun_last_is_the_newest_whatever_its_files_dates(tmp_path, make):
    make("b")
    make("a")
    os.utime(tmp_path / "b" / "run.json", (2e9, 2e9))
    assert chosen(tmp_path) == "a"


@pytest.mark.parametrize("number", range(2 * ROUNDS))
def test_whatever_the_clock_does_the_run_begun_or_resumed_last_is_the_newest(
    tmp_path, make, number, injected
):
    chance = random.Random(number)
    for _ in range(6):
        path = tmp_path / chance.choice("abcd")
        if path.exists():
            with RunFolder.open(path, lock=True) as folder:
                folder.record_resume("navrl train resume=auto", 0)
        else:
            make(path.name)
        started = f"{chance.randint(1971, 2100)}-01-01T00:00:00+00:00"
        path.joinpath("run.json").write_text(
            json.dumps(RunFolder(path).record() | {"started": started})
        )
        os.utime(path / "run.json", (chance.randint(0, 1 << 32),) * 2)
        injected.add()
        assert chosen(tmp_path) == path.name


def test_a_resumed_run_is_newer_than_one_begun_before(tmp_path, make):
    make("a")
    make("b")
    with RunFolder.open(tmp_path / "a", lock=True) as folder:
        folder.record_resume("navrl train resume=auto", 0)
    assert chosen(tmp_path) == "a"


def test_a_run_that_died_before_its_first_checkpoint_hides_no_good_one(tmp_path, make):
    make("good")
    make("dead", checkpoints=0)
    assert chosen(tmp_path) == "good"


def test_without_any_checkpoint_the_newest_run_starts_over(tmp_path, make):
    make("first", checkpoints=0)
    make("second", checkpoints=0)
    assert chosen(tmp_path) == "second"


def test_a_run_whose_checkpoints_are_all_damaged_hides_no_good_one(tmp_path, make):
    make("good")
    for path in make("damaged", checkpoints=2).checkpoints.iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
        path.write_bytes(content)
    assert chosen(tmp_path) == "good"


@pytest.mark.parametrize("checkpoints", [1, 0], ids=["stopped", "dead"])
def test_an_unfinished_run_goes_before_a_finished_one(tmp_path, make, checkpoints):
    make("unfinished", checkpoints=checkpoints)
    make("finished", finished=True)
    assert chosen(tmp_path) == "unfinished"


def test_where_all_are_finished_it_is_the_newest(tmp_path, make):
    make("a", finished=True)
    make("b", finished=True)
    assert chosen(tmp_path) == "b"


def test_runs_of_older_versions_come_before_by_the_time_they_say(tmp_path, make):
    make("new")
    for name, started in (
        ("old", "2031-01-01T00:00:00+00:00"),
        ("older", "2030-01-01T00:00:00+00:00"),
    ):
        folder = make(name)
        record = {key: value for key, value in folder.record().items() if key != "sequence"}
        folder.record_path.write_text(json.dumps(record | {"started": started}))
    assert chosen(tmp_path) == "new"
    (tmp_path / "new" / "run.json").unlink()
    assert chosen(tmp_path) == "old"


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[1]", '{"sequence": [], "started": {}}'])
def test_a_damaged_record_is_the_oldest(tmp_path, make, text):
    make("good")
    make("damaged").record_path.write_text(text)
    assert chosen(tmp_path) == "good"


def test_where_no_run_can_go_on_that_is_said(tmp_path, make):
    with pytest.raises(ConfigError, match="found no run in"):
        newest_run(tmp_path)
    folder = make("a", checkpoints=0)
    folder.config_path.unlink()
    with pytest.raises(ConfigError, match="that can be resumed: 1 without a whole checkpoint"):
        newest_run(tmp_path)
