"""RunFolder: one run each, never overwritten, one trainer at a time, everything in it whole."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.training.run_folder import RunFolder, default_name, resume_command


def create(path: Path) -> RunFolder:
    return RunFolder.create(path, "seed: 0\n", ["navrl", "train", "seed=0"])


@pytest.fixture
def folder(tmp_path):
    with create(tmp_path / "runs" / "a") as made:
        yield made


@pytest.mark.parametrize(
    "path", ["runs/a", "runs/my run", "runs/训练", "a,b", "[a]", "null", "it's", "a=b", "1e3"]
)
def test_the_command_that_resumes_a_run_can_be_pasted(path):
    *command, folder = shlex.split(resume_command(Path(path)))
    assert command == ["navrl", "train", "resume=auto"]
    assert load_config([folder]).run_folder == path


def test_a_new_folder_has_everything(folder):
    assert folder.config_path.read_text() == "seed: 0\n"
    assert folder.checkpoints.is_dir()
    assert folder.evaluations.is_dir()
    assert not folder.metrics.exists()
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "evaluations",
        "run.json",
        "training.lock",
    ]


def test_the_record_says_what_ran_where(folder):
    record = folder.record()
    assert record["command"] == "navrl train seed=0"
    assert set(record["versions"]) == {"python", "navrl", "torch", "numpy", "numba"}
    assert record["machine"]["cores"] >= 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["started"])
    assert record["resumed"] == []


def test_the_record_names_the_commit_of_the_working_directory(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    (repository / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    with create(tmp_path / "clean") as folder:
        clean = folder.record()["git"]
    (repository / "file").write_text("2")
    with create(tmp_path / "dirty") as folder:
        assert folder.record()["git"] == {"commit": clean["commit"], "dirty": True}
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with create(tmp_path / "a") as folder:
        assert folder.record()["git"] is None


def test_a_folder_with_a_run_is_refused_and_left_as_it_was(folder):
    folder.close()
    before = {
        path: path.read_bytes() for path in folder.path.glob("*.*") if path.name != "training.lock"
    }
    with pytest.raises(ConfigError, match=r"holds a run already.*run_folder=.*resume=auto"):
        RunFolder.create(folder.path, "seed: 1\n", "navrl train")
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_whose_making_was_cut_short_is_made_again(tmp_path):
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    (tmp_path / "a" / "config.yaml").write_text("half")
    with create(tmp_path / "a") as folder:
        assert folder.config_path.read_text() == "seed: 0\n"


def test_a_second_training_is_refused_with_the_process_that_holds_the_folder(folder):
    for attempt in (lambda: create(folder.path), lambda: RunFolder.open(folder.path, lock=True)):
        with pytest.raises(
            ConfigError, match=rf"{folder.path}: process {os.getpid()} on .* run_folder="
        ):
            attempt()


def test_looking_needs_no_lock(folder):
    assert RunFolder.open(folder.path).record() == folder.record()


def test_a_closed_folder_can_be_trained_in_again(folder):
    folder.close()
    folder.close()
    with RunFolder.open(folder.path, lock=True) as again:
        again.record_resume("navrl train resume=auto", 40)
        assert again.record()["command"] == "navrl train seed=0"
        assert again.record()["resumed"][0]["iteration"] == 40
        assert again.record()["resumed"][0]["command"] == "navrl train resume=auto"


def test_a_run_begun_or_resumed_later_has_a_higher_number_whatever_the_clock_says(tmp_path):
    numbers = []
    for name in ("a", "b", "c"):
        with create(tmp_path / name) as folder:
            numbers.append(folder.record()["sequence"])
    with RunFolder.open(tmp_path / "a", lock=True) as folder:
        folder.record_resume("navrl train resume=auto", 40)
        numbers.append(folder.record()["sequence"])
    assert numbers == [1, 2, 3, 4]


def test_what_is_no_record_beside_a_run_does_not_count(tmp_path):
    for name, text in (
        ("x", "[" * 100_000),
        ("y", "[]"),
        ("z", '{"sequence": "9"}'),
        ("u", '{"sequence": 7}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    with create(tmp_path / "a") as folder:
        assert folder.record()["sequence"] == 8


def test_a_finished_run_that_goes_on_is_not_finished_any_more(folder):
    assert not folder.is_finished()
    folder.record_finish(40)
    assert folder.is_finished()
    folder.record_resume("navrl train resume=auto", 40)
    assert not folder.is_finished()


def test_kill_9_gives_the_lock_back(tmp_path):
    program = f"""
from navrl.training.run_folder import RunFolder
folder = RunFolder.create({str(tmp_path / "a")!r}, "", "navrl train")
print("locked", flush=True)
import time
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=f"process {process.pid}"):
            RunFolder.open(tmp_path / "a", lock=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
    RunFolder.open(tmp_path / "a", lock=True).close()


def test_opening_removes_what_a_dead_writer_left(folder):
    folder.close()
    (folder.evaluations / ".navrl-0123456789abcdef.tmp").write_text("half")
    RunFolder.open(folder.path, lock=True).close()
    assert list(folder.evaluations.iterdir()) == []


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_what_is_no_run_cannot_be_opened(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=name):
        RunFolder.open(tmp_path / name)


def test_a_damaged_record_is_named(folder):
    folder.record_path.write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json"):
        folder.record()


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", b"[1]", b"[" * 100_000])
def test_a_damaged_record_is_kept_aside_when_the_run_goes_on(folder, damage):
    for number in (1, 2):
        folder.record_path.write_bytes(damage)
        assert not folder.is_finished()
        with pytest.warns(
            RuntimeWarning,
            match=rf"run\.json: damaged .*; it is kept as run\.damaged-{number}\.json",
        ):
            folder.record_resume("navrl train resume=auto", 40)
        assert (folder.path / f"run.damaged-{number}.json").read_bytes() == damage
        assert folder.record()["command"] == "navrl train resume=auto"
        assert [resumed["iteration"] for resumed in folder.record()["resumed"]] == [40]
        assert folder.record()["sequence"] == 1


def test_a_record_with_a_wrong_list_of_resumes_gets_a_new_one(folder):
    folder.record_path.write_text('{"command": "navrl train", "resumed": 5}')
    folder.record_resume("navrl train resume=auto", 40)
    assert [resumed["iteration"] for resumed in folder.record()["resumed"]] == [40]


@pytest.mark.parametrize("path", ["file", "file/below", "/proc/nothing/here"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"{path} cannot be written.*run_folder="):
        create(tmp_path / path)


def test_an_evaluation_is_json_with_null_for_what_is_not_finite(folder):
    path = folder.save_evaluation(
        "iteration_000100", {"350 static": {"success": [0.9, math.nan], "n": 1024}}
    )
    assert path == folder.evaluations / "iteration_000100.json"
    assert json.loads(path.read_text()) == {"350 static": {"success": [0.9, None], "n": 1024}}


def test_an_evaluation_that_cannot_be_written_leaves_no_trace(folder):
    with pytest.raises(ConfigError, match="a"):
        folder.save_evaluation("bad", {"a": object()})
    with pytest.raises(ConfigError, match="no/folder"):
        folder.save_evaluation("no/folder", {})
    assert list(folder.evaluations.iterdir()) == []


def test_the_default_name_is_the_time_and_never_one_that_is_taken(tmp_path):
    first = default_name(tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", first.name)
    names = set()
    for _ in range(5):
        path = default_name(tmp_path)
        path.mkdir()
        names.add(path)
    assert len(names) == 5
    assert default_name().parent == Path("runs")
