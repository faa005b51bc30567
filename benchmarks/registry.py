"""What a registry costs: a model in, an alias moved, a name resolved; beside MLflow's store in
SQLite.

Both work in folders of the same disk, with a hundred versions of a model in them. Both flush what
they commit. MLflow is given the file through `log_artifact`, which copies it; it neither verifies
it nor remembers its content.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from navrl.benchmark import Case, Column, Gate, Results, Suite, seconds_per_call
from navrl.registry import Registry

OURS, PEER = "navrl", "MLflow, SQLite"
SIZE = 600_000  # bytes, as a policy has
NAME = "policy"


class Ours:
    """The local registry."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder / "registry")

    def register(self, file: Path) -> None:
        self.registry.register(NAME, file, lineage={"git": {}})

    def move(self, version: int) -> None:
        self.registry.set_alias(NAME, "best", version)

    def resolve(self) -> None:
        self.registry.resolve(f"{NAME}:best")

    def close(self) -> None:
        self.registry.close()


class MLflow:
    """MLflow's client on a store in SQLite, in this process."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient

        (folder / "mlflow").mkdir()
        self.client = MlflowClient(
            f"sqlite:///{folder}/mlflow/store.db", f"sqlite:///{folder}/mlflow/store.db"
        )
        experiment = self.client.create_experiment(
            "bench", artifact_location=str(folder / "mlflow" / "artifacts")
        )
        self.client.create_registered_model(NAME)
        self.experiment = experiment

    def register(self, file: Path) -> None:
        run = self.client.create_run(self.experiment)
        self.client.log_artifact(run.info.run_id, str(file))
        self.client.create_model_version(
            NAME, f"{run.info.artifact_uri}/{file.name}", run.info.run_id
        )

    def move(self, version: int) -> None:
        self.client.set_registered_model_alias(NAME, "best", str(version))

    def resolve(self) -> None:
        self.client.get_model_version_by_alias(NAME, "best")

    def close(self) -> None:
        """Nothing to close: the process ends."""


class Bench:
    """The two registries, made and filled when their turn first comes."""

    def __init__(self, smoke: bool) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="navrl-bench-", dir=os.environ.get("NAVRL_BENCHMARK_FOLDER"))
        )
        self.versions = 5 if smoke else 100
        self.seconds = 0.05 if smoke else 0.5
        self._made: dict[str, Any] = {}

    def case(self, name: str, make: Callable[[Path], Any]) -> Case:
        """Return a registry as a case of the suite."""

        def measure() -> Mapping[str, float]:
            if name not in self._made:
                self._made[name] = make(self.folder)
                for _ in range(self.versions):
                    self._made[name].register(self._new_file())
            registry, turn = self._made[name], iter(range(10**9))
            file = self._new_file()
            start = time.perf_counter()
            registry.register(file)
            return {
                "register": time.perf_counter() - start,
                "move": seconds_per_call(
                    lambda: registry.move(1 + next(turn) % self.versions), self.seconds
                ),
                "resolve": seconds_per_call(registry.resolve, self.seconds),
            }

        return Case(name, measure, note=(make.__doc__ or "").splitlines()[0])

    def _new_file(self) -> Path:
        path = self.folder / "model.pt"
        path.write_bytes(os.urandom(SIZE))
        return path

    def close(self) -> None:
        """Remove everything."""
        for registry in self._made.values():
            registry.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def suite(smoke: bool) -> Suite:
    """Return the benchmark; without MLflow, ours alone and no gates."""
    bench = Bench(smoke)
    cases, gates = [bench.case(OURS, Ours)], []
    if importlib.util.find_spec("mlflow") is not None:
        cases.append(bench.case(PEER, MLflow))
        for metric, limit in (("register", 0.7), ("move", 0.5), ("resolve", 0.2)):

            def value(results: Results, metric: str = metric) -> float:
                return results.ratio(metric, OURS, PEER)

            gates.append(Gate(f"{metric} / MLflow", value, at_most=limit))
    columns = [
        Column(metric, f"{metric} ms", ".3g", 1000) for metric in ("register", "move", "resolve")
    ]
    return Suite(
        "registry",
        "A model in, an alias moved, a name resolved",
        cases,
        columns,
        gates,
        packages=("mlflow",),
        settings={"versions": bench.versions, "bytes": SIZE},
        close=bench.close,
    )
