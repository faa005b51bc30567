"""The store of MLflow in a run's folder, when a worker is killed while it makes one and when two
make one at once.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from trackers import wait_for

from navrl.tracking.backends import open_backend
from navrl.tracking.backends.interface import RunInfo

# importing it takes a second, of every process that collects tests
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mlflow") is None, reason="navrl[mlflow] is not installed"),
]
MAKE = "from navrl.tracking.backends import open_backend; open_backend('mlflow', folder={!r})"


def test_a_worker_killed_while_it_makes_the_store_keeps_no_later_one_from_it(tmp_path):
    store = tmp_path / "mlflow"
    worker = subprocess.Popen([sys.executable, "-c", MAKE.format(str(tmp_path))])
    try:
        wait_for(lambda: any(file.stat().st_size for file in store.glob(".mlflow.db.*")), 180)
    finally:
        worker.kill()
        worker.wait()
    assert not (store / "mlflow.db").exists()
    backend = open_backend("mlflow", folder=tmp_path)
    assert [file.name for file in store.iterdir()] == ["mlflow.db"]
    assert backend.start(RunInfo("id", "name", tmp_path, {"seed": 1})) == 0
    backend.finish()


def test_two_workers_that_want_a_store_at_once_share_it(tmp_path):
    store = tmp_path / "mlflow"
    with ThreadPoolExecutor(2) as workers:
        first = workers.submit(open_backend, "mlflow", folder=tmp_path)
        wait_for(lambda: first.done() or list(store.glob(".mlflow.db.*")), 180)
        second = workers.submit(open_backend, "mlflow", folder=tmp_path)
    runs = [RunInfo(f"id {number}", "name", tmp_path, {}) for number in range(2)]
    for worker, run in zip((first, second), runs, strict=True):
        assert worker.result().start(run) == 0
        worker.result().finish()
    assert [file.name for file in store.iterdir()] == ["mlflow.db"]
