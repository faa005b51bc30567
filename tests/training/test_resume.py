"""A run that was stopped, killed or damaged goes on and ends as if nothing had happened, to the
last bit.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from injected import ROUNDS
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.io.container.index import read_index
from navrl.registry import Registry
from training_runs import (
    ITERATIONS,
    ONE_THREAD,
    PATIENCE,
    TINY,
    Run,
    assert_ends_alike,
    checkpoints,
    ending,
    evaluated,
    learning,
    logged,
    same,
)

pytestmark = pytest.mark.slow


def test_a_run_from_the_shell_ends_like_one_of_the_warm_server(whole, tmp_path):
    command = [sys.executable, "-m", "navrl.cli", "train", *TINY, f"run_folder={tmp_path / 'run'}"]
    subprocess.run(
        command, check=True, capture_output=True, timeout=PATIENCE, env=os.environ | ONE_THREAD
    )
    assert_ends_alike(tmp_path / "run", whole)


@pytest.mark.parametrize("number", range(2 * ROUNDS))
def test_a_run_killed_again_and_again_ends_as_if_never_stopped(
    server, whole, tmp_path, number, injected
):
    """Five kill -9 at random moments each: ten in all. A kill too late for the run begins it
    anew.
    """
    moments, kills, attempt = random.Random(number), 0, 0
    run = server.start(tmp_path / "run0")
    while kills < 5:
        run.wait_for(logged(run.folder) + moments.randint(0, 4))
        time.sleep(moments.random() * 0.05)
        run.kill()
        if run.code == -signal.SIGKILL:
            kills += 1
            injected.add()
            run = server.start(run.folder, "resume=auto")
        else:
            assert_ends_alike(run.folder, whole)
            attempt += 1
            run = server.start(tmp_path / f"run{attempt}")
    run.finish()
    assert_ends_alike(run.folder, whole)
    assert len(json.loads((run.folder / "run.json").read_text())["resumed"]) <= 5


def test_a_run_that_collects_ahead_and_is_killed_ends_as_if_never_stopped(server, tmp_path):
    server.train(tmp_path / "whole", "use_pipelined_collector=true")
    run = server.start(tmp_path / "run", "use_pipelined_collector=true")
    run.wait_for(7)
    run.kill()
    server.train(run.folder, "resume=auto")
    assert_ends_alike(run.folder, tmp_path / "whole")


def test_a_run_that_saves_differences_and_is_killed_ends_as_if_never_stopped(
    server, whole, tmp_path
):
    run = server.start(tmp_path / "run", "checkpoint_delta_chain=3", "keep_last_n=16")
    run.wait_until(lambda: len(checkpoints(run.folder)) >= 3)  # the second is a difference
    run.kill()
    bases = [read_index(path).document.get("base") for path in checkpoints(run.folder)]
    assert any(bases)
    server.train(run.folder, "resume=auto")
    ours, theirs = ending(run.folder), ending(whole)
    assert ours.pop("config")["checkpoint_delta_chain"] == 3
    theirs.pop("config")
    assert same(ours, theirs)
    assert learning(run.folder) == learning(whole)


def test_a_run_that_rounds_moments_goes_on_from_smaller_checkpoints(server, whole, tmp_path):
    run = server.start(tmp_path / "run", "checkpoint_lossy_moments=true")
    run.wait_for(7)
    run.send(signal.SIGTERM)  # saves once more: the file of iteration 0 has no moments
    run.finish(128 + signal.SIGTERM)
    arrays = read_index(checkpoints(run.folder)[-1]).arrays
    assert {one.element for one in arrays if one.name.endswith("/exp_avg")} == {"bfloat16"}
    server.train(run.folder, "resume=auto")
    assert load_checkpoint(checkpoints(run.folder)[-1])["iteration"] == ITERATIONS
    sizes = [checkpoints(folder)[-1].stat().st_size for folder in (run.folder, whole)]
    assert sizes[0] < 0.8 * sizes[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops_with_its_code_and_the_run_goes_on_from_there(
    server, whole, tmp_path, number
):
    folder = tmp_path / "run"
    run = server.start(folder)
    run.wait_for(7)
    run.send(number)
    told = run.finish(128 + number)
    assert f"resume=auto run_folder={folder}" in told
    stopped = load_checkpoint(checkpoints(folder)[-1])["iteration"]
    assert 7 <= stopped < ITERATIONS
    assert len(learning(folder)) == stopped
    server.train(folder, "resume=auto")
    assert_ends_alike(folder, whole)


def test_a_signal_does_not_cost_the_evaluation_that_was_due(server, tmp_path):
    overrides = ("eval_interval=1", "max_frame_num=1536")
    server.train(tmp_path / "whole", *overrides)
    run = server.start(tmp_path / "run", *overrides)
    run.wait_for(2)
    run.send(signal.SIGTERM)
    run.finish(128 + signal.SIGTERM)
    server.train(run.folder, *overrides, "resume=auto")
    assert (
        evaluated(run.folder)
        == evaluated(tmp_path / "whole")
        == [f"iteration_{number:06d}.json" for number in range(1, 7)]
    )
    assert same(
        *(load_checkpoint(folder / "model.pt") for folder in (run.folder, tmp_path / "whole"))
    )


def test_a_second_interrupt_ends_it_at_once_and_leaves_whole_files(server, tmp_path):
    run = server.start(
        tmp_path / "run",
        "env.num_envs=2048",
        "algo.training_frame_num=64",
        "save_interval=1",
        "max_frame_num=100_000_000",
    )
    run.wait_for(1)
    run.send(signal.SIGINT)
    run.wait_until(lambda: run.has_taken(signal.SIGINT))
    run.send(signal.SIGINT)
    told = run.finish(128 + signal.SIGINT)
    assert "stopped by a signal" not in told
    for path in checkpoints(run.folder):
        load_checkpoint(path)


def stop_before_first_checkpoint(server, folder, number) -> str:
    """Send a signal as soon as a run's folder is there, until it came before the first checkpoint."""
    while True:
        run = server.start(folder)
        run.wait_until((folder / "run.json").exists)
        run.send(number)
        run.wait()
        if not checkpoints(folder):
            assert run.code == (-number if number == signal.SIGKILL else 128 + number)
            return run.output.read_text()
        shutil.rmtree(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_before_its_first_checkpoint_starts_over_to_the_same_end(
    server, whole, tmp_path, number
):
    folder = tmp_path / "run"
    assert "Traceback" not in stop_before_first_checkpoint(server, folder, number)
    told = server.train(folder, "resume=auto")
    assert (
        "stopped before its first checkpoint: it starts over with the same settings and seed"
        in told
    )
    assert_ends_alike(folder, whole)
    assert [resumed["iteration"] for resumed in record_of(folder)["resumed"]] == [0]


def record_of(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_a_folder_that_died_before_its_record_starts_over_too(server, whole, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(whole / "config.yaml", folder)
    server.train(folder, "resume=auto")
    assert_ends_alike(folder, whole)


def test_without_a_folder_the_good_run_goes_on_and_not_the_one_that_died_later(server, tmp_path):
    (tmp_path / "runs").mkdir()
    good = server.start(tmp_path / "runs" / "good")
    good.wait_for(3)
    good.kill()
    stop_before_first_checkpoint(server, tmp_path / "runs" / "dead", signal.SIGKILL)
    output = tmp_path / "told.txt"
    answer = server.ask(
        arguments=["train", *TINY, "resume=auto"], output=str(output), folder=str(tmp_path)
    )
    told = Run(server, answer["pid"], good.folder, output).finish()
    assert "resumed after iteration" in told
    assert "finished" in record_of(good.folder)


def test_a_finished_run_is_left_as_it_is_and_says_how_to_go_on(server, whole):
    before = {path: path.read_bytes() for path in whole.glob("*.js*")}
    told = server.train(whole, "resume=auto")
    assert (
        f"{whole} is finished: iteration 16 of 16; to train longer, resume with max_frame_num above 4096"
        in told
    )
    assert {path: path.read_bytes() for path in whole.glob("*.js*")} == before


def test_a_run_killed_in_its_last_evaluation_is_finished_by_resuming(server, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder, symlinks=True)
    record = record_of(folder)
    del record["finished"]
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "evaluation.json").unlink()
    server.train(folder, "resume=auto")
    assert_ends_alike(folder, whole)
    assert "finished" in record_of(folder)


@pytest.mark.parametrize("damage", [b"nonsense\n", b"[" * 100_000 + b"\n"], ids=["words", "nested"])
def test_a_damaged_line_of_the_metrics_is_kept_aside_and_the_run_goes_on(
    server, whole, tmp_path, damage
):
    run = server.start(tmp_path / "run")
    run.wait_for(5)
    run.kill()
    metrics = run.folder / "metrics.jsonl"
    first, *others = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([first, damage, *others]))
    told = server.train(run.folder, "resume=auto")
    assert (
        "1 damaged lines, the first is line 2; the file is kept as metrics.damaged-1.jsonl" in told
    )
    assert damage in (run.folder / "metrics.damaged-1.jsonl").read_bytes()
    assert_ends_alike(run.folder, whole)


@pytest.mark.usefixtures("one_fault")
def test_a_damaged_newest_checkpoint_is_passed_over_and_said(server, whole, tmp_path):
    run = server.start(tmp_path / "run")
    run.wait_for(9)
    run.kill()
    newest = checkpoints(run.folder)[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0x40
    newest.write_bytes(content)
    assert newest.name in server.train(run.folder, "resume=auto")
    assert_ends_alike(run.folder, whole)


def test_two_processes_resume_bit_for_bit_too(server, tmp_path):
    whole = tmp_path / "whole"
    server.train(whole, "processes=2")
    run = server.start(tmp_path / "run", "processes=2")
    run.wait_for(7)
    run.kill()
    server.train(run.folder, "processes=2", "resume=auto")
    assert_ends_alike(run.folder, whole)


def test_a_setting_that_would_make_it_another_run_is_refused_by_name(server, whole):
    told = server.train(whole, "resume=auto", "algo.gamma=0.5", code=2)
    assert "algo.gamma (was 0.99, now 0.5)" in told
    assert "max_frame_num" in told


def test_a_run_that_has_ended_can_be_made_longer(server, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder, symlinks=True)
    server.train(folder, "resume=auto", "max_frame_num=4600")
    assert len(learning(folder)) == -(-4600 // 256)


def test_a_checkpoint_of_the_registry_goes_on_in_a_folder_of_its_own_to_the_same_end(
    server, whole, tmp_path
):
    with Registry() as registry:
        registry.register("resumed", checkpoints(whole)[1], aliases=["stable"])
    folder = tmp_path / "run"
    server.train(folder, "resume_checkpoint=resumed:stable")
    ends = [
        {key: value for key, value in ending(run).items() if key != "best"}
        for run in (folder, whole)
    ]
    assert same(*ends)  # but for the best model, which is that of the folder
    assert learning(folder) == learning(whole)[-len(learning(folder)) :]


def test_a_folder_with_a_run_is_not_trained_in_again(server, whole):
    assert "resume=auto" in server.train(whole, code=2)


@pytest.mark.usefixtures("one_fault")
def test_two_trainings_in_one_folder_are_refused(server, tmp_path):
    run = server.start(tmp_path / "run", "max_frame_num=10_000_000")
    run.wait_for(3)
    told = server.train(run.folder, "resume=auto", code=2)
    assert f"process {run.pid} " in told
    run.kill()


def test_resuming_where_there_is_no_run_says_so(server, tmp_path):
    assert "holds no run" in server.train(tmp_path / "nothing", "resume=auto", code=2)


def test_after_a_training_process_was_killed_all_start_again_and_end_as_if_nothing_happened(
    server, tmp_path
):
    whole = tmp_path / "whole"
    server.train(whole, "processes=2")
    run = server.start(tmp_path / "run", "processes=2")
    run.wait_for(5)
    os.kill(ranks_of(run.pid)[-1], signal.SIGKILL)
    assert "started again" in run.finish()
    assert_ends_alike(run.folder, whole)


def ranks_of(launcher: int) -> list[int]:
    """Return the training processes that `navrl train processes=N` has started."""
    children = [
        int(child)
        for thread in Path(f"/proc/{launcher}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return sorted(
        child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
