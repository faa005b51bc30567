"""A disk that takes no more: training goes on or stops as asked, says what failed, and the exit
code tells.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from injected import ROUNDS
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from training_runs import assert_ends_alike, checkpoints, evaluated, learning, same, steps

pytestmark = pytest.mark.slow

ENDLESS = ("max_frame_num=100_000_000", "eval_interval=0")  # each test stops its own
FRAMES = 256  # of an iteration
ROOM_TO_TELL = 4096  # bytes, of the file that takes what the training prints


def limit_files(pid: int, size: int) -> None:
    """Let a process write no file beyond a size: its writes fail with EFBIG, as on a full disk with
    ENOSPC.
    """
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def newest_whole(folder: Path) -> str:
    path = checkpoints(folder)[-1]
    load_checkpoint(path)
    return f"the newest whole checkpoint is {path}"


def assert_no_iteration_is_missing(folder: Path) -> None:
    logged = [record["iteration"] for record in learning(folder)]
    assert logged == list(range(1, steps(folder)[-1] + 1))


def go_on(server, folder: Path) -> None:
    """Resume a run for a few iterations more, to its end."""
    server.train(
        folder, *ENDLESS, "resume=auto", f"max_frame_num={FRAMES * (steps(folder)[-1] + 4)}"
    )
    assert_no_iteration_is_missing(folder)


@pytest.fixture
def limit(server, tmp_path, injected):
    """Return a function that starts a training, lets it write no more files at a random moment, and
    returns it.
    """

    def limit(seed: int):
        moments = random.Random(seed)
        run = server.start(tmp_path / "run", *ENDLESS, "on_save_failure=continue")
        run.wait_for(moments.randint(5, 12))
        present = (run.folder / "metrics.jsonl").stat().st_size
        limit_files(run.pid, moments.randint(max(present // 2, ROOM_TO_TELL), present))
        run.wait_for_words("(3 in a row failed): File too large")
        injected.add()
        return run

    return limit


@pytest.mark.parametrize("number", range(ROUNDS))
def test_what_failed_is_written_as_soon_as_there_is_room_again(limit, number):
    run = limit(number)
    limit_files(run.pid, resource.RLIM_INFINITY)
    run.wait_for_words("checkpoints are written again")
    run.send(signal.SIGTERM)
    told = run.finish(128 + signal.SIGTERM)
    assert told.count("metrics.jsonl cannot be written: File too large") == 1
    assert_no_iteration_is_missing(run.folder)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_run_whose_last_checkpoint_failed_ends_with_1_and_names_the_newest_whole_one(
    server, limit, number
):
    run = limit(ROUNDS + number)
    run.send(signal.SIGTERM)
    told = run.finish(1)
    assert "the last checkpoint was not written: File too large" in told
    assert newest_whole(run.folder) in told
    assert f"records of {run.folder / 'metrics.jsonl'}" in told
    assert "Traceback" not in told
    go_on(server, run.folder)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_three_failures_in_a_row_stop_the_training_in_order_and_it_goes_on_later(
    server, tmp_path, number, injected
):
    """Where the checkpoints were there is a file: not even root can write below it."""
    run = server.start(tmp_path / "run", *ENDLESS)
    run.wait_for(random.Random(number).randint(3, 10))
    aside = run.folder / "aside"
    with run.paused():
        (run.folder / "checkpoints").rename(aside)
        (run.folder / "checkpoints").write_text("")
    injected.add()
    told = run.finish(1)
    assert "3 checkpoints in a row failed; the last checkpoint was not written" in told
    assert f"there is no whole checkpoint in {run.folder / 'checkpoints'}" in told
    assert f"`navrl train resume=auto run_folder={run.folder}`" in told
    assert "Traceback" not in told
    (run.folder / "checkpoints").unlink()
    aside.rename(run.folder / "checkpoints")
    go_on(server, run.folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nothing be written into a folder, as on a disk that the system has mounted read-only
    after an error.
    """
    bound = ["mount", "--bind", folder, folder]
    if subprocess.run(bound, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a folder read-only")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # also under a living training


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_disk_that_becomes_read_only_stops_the_training_in_order_and_it_goes_on_later(
    server, tmp_path, number, injected
):
    run = server.start(tmp_path / "run", *ENDLESS)
    run.wait_for(random.Random(number).randint(3, 10))
    with read_only(run.folder / "checkpoints"):
        injected.add()
        told = run.finish(1)
        assert newest_whole(run.folder) in told
    assert "3 checkpoints in a row failed" in told
    assert "Read-only file system" in told
    assert "Traceback" not in told
    go_on(server, run.folder)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_training_whose_checkpoints_were_deleted_stops_and_starts_over_later(
    server, tmp_path, number, injected
):
    run = server.start(tmp_path / "run", *ENDLESS)
    run.wait_for(random.Random(number).randint(3, 10))
    with run.paused():
        shutil.rmtree(run.folder / "checkpoints")
    injected.add()
    told = run.finish(1)
    assert "3 checkpoints in a row failed" in told
    assert "No such file or directory" in told
    assert "Traceback" not in told
    server.train(run.folder, *ENDLESS, "resume=auto", f"max_frame_num={FRAMES * 4}")
    assert_no_iteration_is_missing(run.folder)


@pytest.mark.usefixtures("one_fault")
def test_evaluations_and_the_best_model_are_written_later(server, whole, tmp_path):
    run = server.start(tmp_path / "run")
    run.wait_until((tmp_path / "run" / "run.json").exists)
    with run.paused():  # before the first evaluation: it comes after six iterations
        assert not evaluated(run.folder)
        (run.folder / "evaluations").rename(run.folder / "aside")
        (run.folder / "evaluations").write_text("")
        (run.folder / "model.pt" / "in the way").mkdir(parents=True)
    run.wait_for_words("model.pt was not written")
    with run.paused():
        (run.folder / "evaluations").unlink()
        (run.folder / "aside").rename(run.folder / "evaluations")
        (run.folder / "model.pt" / "in the way").rmdir()
        (run.folder / "model.pt").rmdir()
    told = run.finish()
    assert "iteration_000006.json was not written: Not a directory; it is tried again" in told
    assert evaluated(run.folder) == evaluated(whole)
    assert_ends_alike(run.folder, whole)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 24 megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.usefixtures("one_fault")
def test_a_full_disk_from_the_beginning_ends_with_1_and_with_space_the_run_starts_over(
    server, whole, small_disk, tmp_path
):
    room = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(bytes(room - (64 << 10)))
    folder = small_disk / "run"
    run = server.start(folder, output=str(tmp_path / "run.txt"))
    told = run.finish(1)
    assert "No space left on device" in told
    assert "there is no whole checkpoint" in told
    assert "Traceback" not in told
    (small_disk / "ballast").unlink()
    told = server.start(folder, "resume=auto", output=str(tmp_path / "again.txt")).finish()
    assert "starts over with the same settings and seed" in told
    assert_ends_alike(folder, whole)


@pytest.mark.usefixtures("one_fault")
def test_results_that_cannot_be_written_at_the_end_are_told_and_the_run_can_be_finished_later(
    server, whole, tmp_path
):
    (tmp_path / "run" / "evaluation.json" / "in the way").mkdir(parents=True)
    run = server.start(tmp_path / "run")
    told = run.finish(1)
    assert f"{run.folder / 'evaluation.json'} was not written" in told
    assert "Traceback" not in told
    (run.folder / "evaluation.json" / "in the way").rmdir()
    (run.folder / "evaluation.json").rmdir()
    server.train(run.folder, "resume=auto")
    assert "finished" in json.loads((run.folder / "run.json").read_text())
    assert same(*(load_checkpoint(folder / "model.pt") for folder in (run.folder, whole)))
