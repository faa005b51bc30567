"""The store of MLflow in a run's folder: a worker that is killed while it makes one leaves none."""

from __future__ import annotations

import subprocess
import sys

import pytest
from trackers import wait_for

from navrl.tracking.backends import open_backend
from navrl.tracking.backends.interface import RunInfo

pytest.importorskip("mlflow", reason="navrl[mlflow] is not installed")
MAKE = "from navrl.tracking.backends import open_backend; open_backend('mlflow', folder={!r})"


@pytest.mark.slow
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
