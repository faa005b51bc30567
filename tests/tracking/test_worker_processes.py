"""One process for each tracker: restarted when it dies or hangs, gone after the run.

The workers are real; the client that they load is `fake_clients/tensorboard`, which hangs when a
test says so.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from trackers import processes_of, start_trainer, wait_for
from trainer import settings_of

from navrl.tracking.queue import RecordQueue
from navrl.tracking.tracker import Tracking
from navrl.tracking.worker_processes import WorkerProcesses

SECONDS = 120.0  # that a busy machine may take


@pytest.fixture
def client(tmp_path, monkeypatch):
    """The folder of the client; workers of this test load it."""
    pytest.importorskip("tensorboard")
    folder = tmp_path / "client"
    folder.mkdir()
    monkeypatch.setenv("FAKE_CLIENT", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "fake_clients"))
    return folder


def settings(**values):
    return settings_of({"trackers": ["tensorboard"], "patience": 60.0, "deadline": 60.0} | values)


def lines(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def children():
    """Return the state of every child of this process by its id: `Z` is a zombie."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid():
            found[int(path.parent.name)] = state
    return found


def test_a_tracker_has_one_process_and_it_is_a_child_of_the_training(client, tmp_path):
    before = {*children()}
    with Tracking(settings(), {}, tmp_path / "run") as tracking:
        tracking.log(1, {"x": 1})
        wait_for(lambda: lines(client / "events"), SECONDS)
        started = {*children()} - before
        assert started == {*lines(client / "process")} == {*processes_of(tmp_path / "run")}
    assert lines(client / "events") == [1]
    assert {*children()} <= before


@pytest.mark.slow
@pytest.mark.usefixtures("one_fault")
def test_a_worker_whose_client_hangs_is_replaced_and_the_next_one_delivers(client, tmp_path):
    (client / "hang").write_text("write 1")
    before = {*children()}
    with Tracking(settings(deadline=2.0), {}, tmp_path / "run") as tracking:
        tracking.log(1, {"x": 1})
        wait_for(lambda: lines(client / "events") == [1], SECONDS)
    [hung] = lines(client / "hung")
    assert hung not in lines(client / "process")
    assert {*children()} <= before


@pytest.mark.usefixtures("one_fault")
def test_a_worker_that_was_killed_is_replaced_while_the_training_goes_on(client, tmp_path):
    with Tracking(settings(), {}, tmp_path / "run") as tracking:
        tracking.log(1, {"x": 1})
        wait_for(lambda: lines(client / "events") == [1], SECONDS)
        [killed] = lines(client / "process")
        os.kill(killed, signal.SIGKILL)
        tracking.log(2, {"x": 2})
        wait_for(lambda: 2 in lines(client / "events"), SECONDS)
        assert killed not in children()  # reaped, not a zombie
    assert lines(client / "events")[-1] == 2


def test_a_client_that_hangs_at_the_end_of_a_run_is_given_the_patience_and_no_more(
    client, tmp_path
):
    (client / "hang").write_text("close 9")
    before = {*children()}
    tracking = Tracking(settings(patience=1.0, deadline=600.0), {}, tmp_path / "run")
    tracking.log(1, {"x": 1})
    wait_for(lambda: lines(client / "events") == [1], SECONDS)
    start = time.monotonic()
    tracking.close()
    assert time.monotonic() - start < 60  # and not the client's ten minutes
    assert {*children()} <= before
    assert processes_of(tmp_path / "run") == []
    assert RecordQueue(tmp_path / "run").deliveries("tensorboard").read().done


@pytest.mark.usefixtures("one_fault")
def test_a_worker_of_a_killed_training_ends_when_the_patience_is_over(client, tmp_path):
    (client / "hang").write_text("close 9")
    order = {"trackers": ["tensorboard"], "patience": 1.0, "deadline": 600.0}
    trainer = start_trainer(tmp_path / "run", order, steps=2, every=9, paced=True)
    wait_for(lambda: lines(client / "events") == [1], SECONDS)
    trainer.kill()
    trainer.communicate()
    wait_for(lambda: not processes_of(tmp_path / "run"), SECONDS)
    deliveries = RecordQueue(tmp_path / "run").deliveries("tensorboard").read()
    assert "tracker_patience was over" in deliveries.failure


def test_a_client_that_always_hangs_leaves_the_records_in_the_queue(client, tmp_path):
    (client / "hang").write_text("write 9")
    tracking = Tracking(settings(patience=0.5, deadline=600.0), {}, tmp_path / "run")
    tracking.log(1, {"x": 1})
    wait_for(lambda: lines(client / "hung"), SECONDS)
    with pytest.warns(RuntimeWarning, match=r"2 records have not reached tensorboard.*navrl sync"):
        tracking.close()
    queue = RecordQueue(tmp_path / "run")
    left = queue.deliveries("tensorboard").read().missing(queue.read())
    assert [record["kind"] for record in left] == ["metrics", "end"]


def test_workers_that_cannot_all_be_started_are_all_stopped(client, tmp_path, monkeypatch):
    from navrl.tracking import worker_processes

    start, before = worker_processes.start_worker, {*children()}

    def fail_for_the_second(queue, tracker, *options, environment):
        if tracker == "second":
            raise OSError("no process")
        return start(queue, tracker, *options, environment=environment)

    RecordQueue(tmp_path).append("end")
    monkeypatch.setattr(worker_processes, "start_worker", fail_for_the_second)
    with pytest.raises(OSError, match="no process"):
        WorkerProcesses(tmp_path, ["tensorboard", "second"])
    assert {*children()} <= before
