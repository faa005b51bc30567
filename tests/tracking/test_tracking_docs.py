"""Every snippet of docs/trackers.md runs, and so does `navrl sync`."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from trainer import settings_of

import forked
from navrl.cli import main
from navrl.config import load_config
from navrl.tracking.queue import RecordQueue
from navrl.tracking.tracker import Tracking

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trackers.md").read_text()


@pytest.mark.slow
def test_each_snippet_of_the_page_runs_as_pasted(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 3
    each = "\n".join(
        f"os.mkdir('{number}'); os.chdir('{number}'); exec({block!r}, {{}}); os.chdir('..')"
        for number, block in enumerate(blocks)
    )
    done = forked.run(f"import os\n{each}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    versions, aliases = done.stdout.splitlines()[0].split(" ", 1)
    assert versions == "['v0']"
    assert ast.literal_eval(aliases) == {"latest": "v0", "best": "v0", "v1.0": "v0"}


def test_the_keys_on_the_page_are_settings():
    lines = re.findall(r"^navrl train (.*?) *(?:#.*)?$", PAGE, re.M)
    assert len(lines) == 5
    for line in lines:
        load_config(line.split())


@pytest.mark.slow
def test_the_benchmark_still_runs(run_benchmark):
    assert "navrl, hangs" in run_benchmark("tracking")


@pytest.fixture
def queued(tmp_path):
    with Tracking(
        settings_of({"wandb": {"mode": "offline"}}), {}, tmp_path / "runs" / "a"
    ) as tracking:
        tracking.log(1, {"x": 1})
    return tmp_path / "runs" / "a"


def test_sync_without_a_run_takes_all_below_runs(queued, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sync", "--dry-run"]) == 1
    assert "would deliver 3 records; 0 of 3 are there" in capsys.readouterr().out
    monkeypatch.chdir(queued)
    assert main(["sync"]) == 0
    assert "no run" in capsys.readouterr().out


def test_sync_says_what_is_wrong_with_a_run_or_a_tracker(queued, tmp_path, capsys):
    assert main(["sync", str(tmp_path)]) == 2
    assert "no queue" in capsys.readouterr().err
    assert main(["sync", str(queued), "--tracker", "mlflow"]) == 2
    assert "wandb" in capsys.readouterr().err


def test_sync_does_not_call_a_run_delivered_that_has_lost_records(tmp_path, capsys):
    with Tracking(
        settings_of({"trackers": ["tensorboard"], "patience": 20.0}), {}, tmp_path
    ) as tracking:
        tracking.log(1, {"x": 1})
    assert main(["sync", str(tmp_path)]) == 0
    records = tmp_path / "tracking" / "records.log"
    records.write_bytes(records.read_bytes().replace(b'"step":1', b'"step":7'))
    capsys.readouterr()
    assert main(["sync", str(tmp_path)]) == 1
    assert "1 damaged records" in capsys.readouterr().out


def test_sync_leaves_a_run_alone_that_is_being_delivered(queued, capsys, monkeypatch):
    killed = []
    monkeypatch.setattr("navrl.tracking.worker_processes.kill_client_processes", killed.append)
    with RecordQueue(queued).deliveries("wandb") as deliveries:
        assert deliveries.lock()
        assert main(["sync", str(queued)]) == 1
    assert os.getpid() not in killed  # this process holds the lock: it is the one that delivers
    assert "another process is delivering" in capsys.readouterr().out
