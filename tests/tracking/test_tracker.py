"""`Tracking` returns at once, raises nothing because of a tracker, and loses no record."""

from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from trainer import settings_of

from navrl.config import load_config
from navrl.errors import ConfigError, MissingExtraError, RegistryError
from navrl.tracking import backends, line_file, tracker
from navrl.tracking.backends import open_backend
from navrl.tracking.queue import RecordQueue
from navrl.tracking.queue_writer import HELD_FILES, WAIT
from navrl.tracking.tracker import Tracking
from navrl.tracking.tracker_settings import TrackingSettings, tracker_names

OFFLINE = {"wandb": {"mode": "offline"}, "patience": 1.0}


def records(folder, kind):
    return [record for record in RecordQueue(folder).read() if record["kind"] == kind]


def test_without_a_tracker_nothing_happens(tmp_path):
    with Tracking(TrackingSettings(), {}, tmp_path) as tracking:
        tracking.log(1, {"train/kl": 0.1})
        tracking.artifact(tmp_path / "nothing.pt", "model")
    assert [*tmp_path.iterdir()] == []


def test_what_is_logged_is_on_the_disk_when_the_call_returns(tmp_path):
    with Tracking(settings_of(OFFLINE), {"seed": 3}, tmp_path) as tracking:
        tracking.log(1, {"train/kl": 0.5, "bad": float("nan")})
        assert records(tmp_path, "metrics")[0]["values"] == {"train/kl": 0.5, "bad": None}
        (tmp_path / "model.pt").write_bytes(b"weights")
        tracking.artifact(tmp_path / "model.pt", "model", ["best"], {"step": 1})
        (tmp_path / "model.pt").unlink()
        [record] = records(tmp_path, "artifact")
        assert RecordQueue(tmp_path).file(record["sha256"]).read_bytes() == b"weights"
        tracking.summary({"best": 1})
    assert [record["kind"] for record in RecordQueue(tmp_path).read()] == [
        "run",
        "metrics",
        "artifact",
        "summary",
        "end",
    ]


def test_a_model_of_an_offline_run_is_read_back_without_network(tmp_path):
    with Tracking(settings_of(OFFLINE), {}, tmp_path) as tracking:
        for step in (1, 2):
            (tmp_path / "model.pt").write_bytes(b"weights %d" % step)
            tracking.artifact(tmp_path / "model.pt", "model", ["best"] if step == 1 else [])
    backend = open_backend("wandb", mode="offline", folder=tmp_path)
    assert backend.aliases("model") == {"best": "v0", "latest": "v1"}
    assert backend.download("model:best", tmp_path / "fetched").read_bytes() == b"weights 1"


def test_a_resumed_run_keeps_its_name_and_does_not_log_again_what_it_has_logged(tmp_path):
    for first, last in ((1, 6), (4, 8)):
        with Tracking(settings_of(OFFLINE), {}, tmp_path) as tracking:
            for step in range(first, last + 1):
                tracking.log(step, {"train/kl": step})
    assert [record["step"] for record in records(tmp_path, "metrics")] == [*range(1, 9)]
    assert len({record["id"] for record in records(tmp_path, "run")}) == 1


@pytest.mark.parametrize("hostile", ["../up", "a/b", "", "a b", "x" * 200])
def test_hostile_names_are_refused_where_they_are_said(tmp_path, hostile):
    (tmp_path / "model.pt").write_bytes(b"weights")
    with Tracking(settings_of(OFFLINE), {}, tmp_path) as tracking:
        with pytest.raises(RegistryError):
            tracking.artifact(tmp_path / "model.pt", hostile)
        with pytest.raises(RegistryError):
            tracking.artifact(tmp_path / "model.pt", "model", [hostile])
        with pytest.raises(RegistryError):
            tracking.image(1, f"eval//{hostile}", tmp_path / "model.pt")
    assert records(tmp_path, "artifact") == []


def test_a_file_that_is_not_there_or_no_file_is_a_warning(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with Tracking(settings_of(OFFLINE), {}, tmp_path) as tracking:
        with pytest.warns(RuntimeWarning, match=r"nothing\.pt"):
            tracking.artifact(tmp_path / "nothing.pt", "model")
        tracking.artifact(tmp_path / "pipe", "model")  # warned once
    assert records(tmp_path, "artifact") == []


def test_a_call_returns_although_the_disk_does_not(tmp_path, monkeypatch):
    write, answers = os.write, threading.Event()

    def slow_write(descriptor, data):
        answers.wait(60)
        return write(descriptor, data)

    with Tracking(settings_of(OFFLINE | {"patience": 60.0}), {}, tmp_path) as tracking:
        tracking.log(0, {"x": 0})
        monkeypatch.setattr(line_file.os, "write", slow_write)
        for step in range(1, 21):
            tracking.log(step, {"x": step})
        assert [record["step"] for record in records(tmp_path, "metrics")] == [0]
        answers.set()
    assert [record["step"] for record in records(tmp_path, "metrics")] == [*range(21)]


def test_only_the_first_call_waits_for_a_slow_disk(tmp_path, monkeypatch):
    waits = []
    wait = threading.Event.wait

    def counted(event, timeout=None):
        if timeout == WAIT:
            waits.append(timeout)
        return wait(event, timeout)

    write, answers = os.write, threading.Event()
    with Tracking(settings_of(OFFLINE | {"patience": 60.0}), {}, tmp_path) as tracking:
        tracking.log(0, {"x": 0})
        monkeypatch.setattr(threading.Event, "wait", counted)
        monkeypatch.setattr(
            line_file.os, "write", lambda file, data: answers.wait(60) and write(file, data)
        )
        for step in range(1, 21):
            tracking.log(step, {"x": step})
        assert waits == [WAIT]
        answers.set()


def test_a_disk_that_was_full_for_a_while_costs_nothing(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        Tracking(settings_of(OFFLINE), {}, tmp_path) as tracking,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        tracking.log(1, {"x": 1})
        monkeypatch.setattr(line_file.os, "write", full)
        for step in range(2, 6):
            (tmp_path / "model.pt").write_bytes(b"weights %d" % step)
            tracking.artifact(tmp_path / "model.pt", "model")
            (tmp_path / "model.pt").unlink()
            tracking.log(step, {"x": step})
        monkeypatch.undo()
    assert [
        str(warning.message) for warning in caught if "No space left" in str(warning.message)
    ] != []
    assert [record["step"] for record in records(tmp_path, "metrics")] == [1, 2, 3, 4, 5]
    digests = [record["sha256"] for record in records(tmp_path, "artifact")]
    assert [RecordQueue(tmp_path).file(digest).read_bytes() for digest in digests] == [
        b"weights %d" % step for step in range(2, 6)
    ]


def test_a_disk_that_is_full_for_long_does_not_use_up_the_files_that_a_process_may_open(
    tmp_path, monkeypatch
):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "model.pt").write_bytes(b"weights")
    with (
        Tracking(settings_of(OFFLINE), {}, tmp_path) as tracking,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        tracking.log(1, {"x": 1})
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(line_file.os, "write", full)
        for _ in range(2 * HELD_FILES):
            tracking.artifact(tmp_path / "model.pt", "model")
        assert len(os.listdir("/proc/self/fd")) < before + HELD_FILES + 10
        tracking.log(2, {"x": 2})  # takes no file, and is kept
        monkeypatch.undo()
        assert tracking.flush()
        assert len(os.listdir("/proc/self/fd")) <= before
    assert sum("are dropped" in str(warning.message) for warning in caught) == 1
    assert len(records(tmp_path, "artifact")) == HELD_FILES
    assert [record["step"] for record in records(tmp_path, "metrics")] == [1, 2]


def test_workers_are_sent_when_the_session_is_in_the_queue_not_before(tmp_path, monkeypatch):
    settings, seen = settings_of({"trackers": ["tensorboard"], "patience": 5.0}), []

    def start(folder, trackers, environment):
        seen.append([record["kind"] for record in RecordQueue(folder).read()])
        raise OSError("no process")

    monkeypatch.setattr("navrl.tracking.tracker.WorkerProcesses", start)
    for _ in range(2):
        with pytest.warns(RuntimeWarning), Tracking(settings, {}, tmp_path):
            pass
    assert seen == [["run"], ["run", "end", "run"]]


def test_a_disk_that_stays_full_is_a_warning_and_no_more(tmp_path):
    """A real limit of the system on the size of files."""
    program = (
        "import resource, signal, sys, warnings; sys.path.insert(0, sys.argv[2])\n"
        "from trainer import settings_of; from navrl.tracking.tracker import Tracking\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "with Tracking(settings_of({'wandb': {'mode': 'offline'}, 'patience': 1.0}), {}, "
        "sys.argv[1]) as tracking:\n"
        "    for step in range(200): tracking.log(step, {'train/kl': 0.5})\n"
        "print('trained')"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "cannot be written" in done.stderr
    assert "lost to the trackers" in done.stderr
    steps = [record["step"] for record in records(tmp_path / "run", "metrics")]
    assert steps == [*range(len(steps))]
    assert len(steps) > 10


def test_the_worker_loads_neither_torch_nor_the_simulator():
    program = (
        "import sys, json, navrl.tracking.delivery_worker, navrl.tracking.worker_processes; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
    )
    assert not {"torch", "numpy", "numba", "hydra", "wandb", "mlflow", "trackio"} & {*loaded}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", ()),
        ("mlflow", ("mlflow",)),
        (["mlflow", "trackio"], ("mlflow", "trackio")),
        ("mlflow, wandb,mlflow", ("mlflow", "wandb")),
    ],
)
def test_trackers_are_named_in_a_list_or_with_commas(value, names):
    assert tracker_names(value) == names


def test_the_command_line_sets_them():
    config = load_config(
        [
            "tracker=[mlflow,trackio]",
            "mlflow.uri=http://localhost:5000",
            "wandb.mode=offline",
            "wandb.project=Mine",
        ]
    )
    settings = config.tracking
    assert settings.trackers == ("mlflow", "trackio")
    assert (settings.mlflow.uri, settings.wandb.mode, settings.wandb.project) == (
        "http://localhost:5000",
        "offline",
        "Mine",
    )
    with pytest.raises(ConfigError, match="disabled, offline, online"):
        load_config(["wandb.mode=sometimes"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"trackers": ["mlflw"]}, "mlflow"),
        ({"trackers": ["wandb"]}, "wandb.mode=online"),
        ({"wandb": {"mode": "sometimes"}}, "disabled, offline, online"),
        ({"patience": -1}, "tracker_patience"),
        ({"deadline": 0}, "tracker_deadline"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key(settings, told):
    with pytest.raises(ConfigError, match=told):
        settings_of(settings).check()


def test_what_names_no_tracker_is_refused():
    with pytest.raises(ConfigError, match="tracker is 3"):
        tracker_names(3)


def test_a_tracker_that_is_not_installed_is_named_with_the_command_that_installs_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'navrl\[mlflow\]'"):
        Tracking(TrackingSettings(("mlflow",)), {}, tmp_path)


def test_the_tracking_knows_which_trackers_keep_no_models():
    kinds = backends._CLASSES
    classes = {
        kind: getattr(importlib.import_module(f"navrl.tracking.backends.{kind}"), name)
        for kind, name in kinds.items()
    }
    assert {
        kind for kind, backend in classes.items() if not backend.keeps_models
    } == tracker.KEEP_NO_MODELS
