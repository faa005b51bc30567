"""A disk that takes no more: training goes on or stops as asked, says what failed, and the exit code tells."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from navrl.io.checkpoint import load_checkpoint
from training_runs import assert_ends_alike, checkpoints, evaluated, learning, same, steps

pytestmark = pytest.mark.slow

LONG = ("max_frame_num=20480", "eval_interval=0")  # 80 iterations: long enough to be disturbed
LONG_ITERATIONS = list(range(1, 81))


def limit_files(pid: int, size: int) -> None:
    """Let a process write no file beyond a size: its writes fail with EFBIG, as on a full disk with ENOSPC."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def newest_whole(folder: Path) -> str:
    path = checkpoints(folder)[-1]
    load_checkpoint(path)
    return f"the newest whole checkpoint is {path}"


@pytest.fixture
def limited(server, tmp_path):
    """A training that goes on although neither checkpoints nor metrics can be written any more."""
    run = server.start(tmp_path / "run", *LONG, "on_save_failure=continue")
    run.wait_for(5)
    limit_files(run.pid, (run.folder / "metrics.jsonl").stat().st_size)
    run.wait_for_words("(3 in a row failed): File too large")
    return run


def test_what_failed_is_written_as_soon_as_there_is_room_again(limited):
    limit_files(limited.pid, resource.RLIM_INFINITY)
    told = limited.finish()
    assert "checkpoints are written again" in told
    assert told.count("metrics.jsonl cannot be written: File too large") == 1
    assert [record["iteration"] for record in learning(limited.folder)] == LONG_ITERATIONS
    assert steps(limited.folder)[-1] == LONG_ITERATIONS[-1]


def test_a_run_whose_last_checkpoint_failed_ends_with_1_and_names_the_newest_whole_one(server, limited):
    told = limited.finish(1)
    assert "the last checkpoint was not written: File too large" in told
    assert newest_whole(limited.folder) in told
    assert f"records of {limited.folder / 'metrics.jsonl'}" in told
    assert "Traceback" not in told
    server.train(limited.folder, *LONG, "resume=auto")
    assert [record["iteration"] for record in learning(limited.folder)] == LONG_ITERATIONS


def test_three_failures_in_a_row_stop_the_training_in_order_and_it_goes_on_later(server, tmp_path):
    """Where the checkpoints were there is a file: not even root can write below it."""
    run = server.start(tmp_path / "run", *LONG)
    run.wait_for(5)
    aside = run.folder / "aside"
    with run.paused():
        (run.folder / "checkpoints").rename(aside)
        (run.folder / "checkpoints").write_text("")
    told = run.finish(1)
    assert "3 checkpoints in a row failed; the last checkpoint was not written" in told
    assert f"there is no whole checkpoint in {run.folder / 'checkpoints'}" in told
    assert f"`navrl train resume=auto run_folder={run.folder}`" in told
    assert "Traceback" not in told
    (run.folder / "checkpoints").unlink()
    aside.rename(run.folder / "checkpoints")
    server.train(run.folder, *LONG, "resume=auto")
    assert [record["iteration"] for record in learning(run.folder)] == LONG_ITERATIONS


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
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_from_the_beginning_ends_with_1_and_with_space_the_run_starts_over(server, whole, small_disk, tmp_path):
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


def test_results_that_cannot_be_written_at_the_end_are_told_and_the_run_can_be_finished_later(server, whole, tmp_path):
    run = server.start(tmp_path / "run")
    run.wait_until((tmp_path / "run" / "run.json").exists)
    (run.folder / "evaluation.json" / "in the way").mkdir(parents=True)
    told = run.finish(1)
    assert f"{run.folder / 'evaluation.json'} was not written" in told
    assert "Traceback" not in told
    (run.folder / "evaluation.json" / "in the way").rmdir()
    (run.folder / "evaluation.json").rmdir()
    server.train(run.folder, "resume=auto")
    assert "finished" in json.loads((run.folder / "run.json").read_text())
    assert same(*(load_checkpoint(folder / "model.pt") for folder in (run.folder, whole)))
