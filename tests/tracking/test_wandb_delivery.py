"""The real W&B client: every record arrives once, whatever happens to servers and processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from trackers import processes_of, result_of, start_trainer, wait_for
from trainer import model_of

from navrl.cli import main
from navrl.tracking.queue import RecordQueue

pytestmark = pytest.mark.usefixtures("wandb_environment")
PATIENT = ("--deadline", "60")
SETTINGS = {"wandb": {"mode": "online", "project": "P"}, "patience": 6.0, "deadline": 3.0}


def orphans():
    """Return the processes of W&B's client whose workers are dead."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if (
                words[0].endswith(b"/wandb-core")
                and not Path("/proc", words[words.index(b"--pid") + 1].decode()).exists()
            ):
                found.add(path.parent.name)
    return found


def run_id(folder):
    return RecordQueue(folder).read()[0]["id"]


def check_arrived(emulator, folder, steps, every):
    """All rows once and in order; all models once, the last one with the alias."""
    rows = emulator.history(run_id(folder))
    assert [row["iteration"] for row in rows] == [*range(1, steps + 1)]
    assert [row["train/kl"] for row in rows] == [1 / step for step in range(1, steps + 1)]
    models = [artifact for artifact in emulator.collection("model") if artifact["project"] == "P"]
    contents = [emulator.blobs[key] for artifact in models for key in artifact["files"].values()]
    assert contents == [model_of(step) for step in range(every, steps + 1, every)]
    assert models[-1]["aliases"] == {"latest", "best"}


@pytest.fixture(autouse=True)
def _forget(emulator):
    """Begin each test without models."""
    emulator.artifacts.clear()


@pytest.mark.slow
def test_a_training_with_a_good_server_ends_with_everything_delivered(
    emulator, tmp_path, monkeypatch
):
    # of a script's own run of W&B, which may have ended
    monkeypatch.setenv("WANDB_SERVICE", "3-1-1-unix-/nowhere/socket")
    patient = SETTINGS | {"patience": 45.0, "deadline": 60.0}
    measured = result_of(start_trainer(tmp_path / "run", patient, pause=0.05))
    assert measured["warnings"] == []
    check_arrived(emulator, tmp_path / "run", 20, 5)
    assert main(["sync", str(tmp_path / "run"), *PATIENT]) == 0


@pytest.mark.slow
def test_every_fault_of_a_server_costs_training_nothing_and_loses_nothing(
    emulator, proxy, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("WANDB_BASE_URL", proxy.url)
    folder, before = tmp_path / "run", orphans()
    faults = ("slow", "error", "hang", "refused")
    trainer = start_trainer(
        folder,
        SETTINGS | {"patience": 1.0, "deadline": 60.0},
        steps=len(faults),
        every=1,
        paced=True,
    )
    for fault in faults:
        trainer.stdout.readline()
        proxy.fault = fault
        if fault != "refused":
            wait_for(lambda fault=fault: proxy.seen.get(fault), 60)
        trainer.stdin.write("\n")
        trainer.stdin.flush()
    measured = result_of(trainer)
    assert measured["exit"] < 60  # W&B's own client would wait for minutes
    assert ["navrl sync" in told for told in measured["warnings"]] == [True]
    assert main(["sync", str(folder), "--deadline", "1"]) == 1
    wait_for(lambda: orphans() <= before)
    assert "records are left" in capsys.readouterr().out
    proxy.fault = "ok"
    assert main(["sync", str(folder), *PATIENT]) == 0
    check_arrived(emulator, folder, len(faults), 1)


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_of_an_upload_gets_the_whole_file_later(
    emulator, proxy, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_BASE_URL", proxy.url)
    proxy.fault = "die"
    settings = SETTINGS | {"patience": 0.5, "deadline": 60.0}
    trainer = start_trainer(tmp_path / "run", settings, steps=1, every=1, paced=True)
    wait_for(lambda: proxy.seen.get("died"), 60)
    result_of(trainer)
    assert emulator.collection("model") == []
    proxy.fault = "ok"
    assert main(["sync", str(tmp_path / "run"), *PATIENT]) == 0
    check_arrived(emulator, tmp_path / "run", 1, 1)


@pytest.mark.slow
def test_killed_workers_and_a_killed_trainer_lose_nothing_and_deliver_nothing_twice(
    emulator, tmp_path
):
    folder, before = tmp_path / "run", orphans()
    trainer = start_trainer(
        folder, SETTINGS | {"patience": 0.5, "deadline": 60.0}, steps=6, every=2, paced=True
    )
    for step in range(1, 7):
        assert trainer.stdout.readline().strip() == str(step)
        if step == 2:
            wait_for(lambda: emulator.collection("model"), 60)  # a worker is at work
            for process in processes_of(folder):
                os.kill(process, signal.SIGKILL)
        if step < 6:
            trainer.stdin.write("\n")
            trainer.stdin.flush()
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    # they do not outlive their patience; one that was just being started may still deliver
    wait_for(lambda: not processes_of(folder))
    wait_for(lambda: main(["sync", str(folder), *PATIENT]) == 0, 180)
    check_arrived(emulator, folder, 6, 2)
    wait_for(lambda: orphans() <= before)
    deliveries, queue = RecordQueue(folder).deliveries("wandb").read(), RecordQueue(folder)
    assert deliveries.missing(queue.read()) == []


@pytest.mark.slow
def test_a_run_that_was_offline_is_delivered_by_sync_and_a_resumed_one_repeats_nothing(
    emulator, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")  # still so in the shell that calls sync
    folder = tmp_path / "run"
    offline = SETTINGS | {"wandb": {"mode": "offline", "project": "P"}}
    result_of(start_trainer(folder, offline, steps=8, every=4))
    # resumed from a checkpoint of step 4
    result_of(start_trainer(folder, offline, first=5, steps=12, every=4))
    assert run_id(folder) not in emulator.runs
    assert main(["sync", str(folder), *PATIENT]) == 0
    check_arrived(emulator, folder, 12, 4)
