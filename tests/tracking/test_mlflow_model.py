"""An uploaded model in MLflow's own client: it loads, predicts, and has its card."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from navrl.errors import ActionError
from navrl.evaluation import PRETRAINED, load_policy
from navrl.registry import Registry
from navrl.registry.tracker_sync import push
from navrl.tracking.backends import RunInfo, open_backend

pytestmark = pytest.mark.slow  # MLflow takes seconds to make its tables
OBSERVATION = {"lidar": (3, 1, 36, 4), "dynamic_obstacle": (3, 1, 5, 10), "state": (3, 8)}


@pytest.fixture(scope="module")
def mlflow():
    """The package, which takes seconds to import."""
    return pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def pushed(mlflow, tmp_path_factory):
    """The address of a store of MLflow with the policy of the package and a run."""
    folder = tmp_path_factory.mktemp("mlflow")
    backend = open_backend("mlflow", folder=folder)
    with Registry(folder / "registry") as registry:
        registry.register("navigation", PRETRAINED, aliases=["best"], lineage={"git": {}})
        push(registry, "navigation:best", backend, "mlflow")
    backend.start(RunInfo("run", "run", folder))
    backend.log(1, {"eval/350 static + 80 moving": 0.5}, number=1, moment=1.0)
    backend.finish()
    return f"sqlite:///{folder}/mlflow/mlflow.db"


@pytest.fixture(scope="module")
def loaded(mlflow, pushed):
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(pushed)
    yield mlflow.pyfunc.load_model("models:/navigation@best")
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def observation():
    generator = np.random.default_rng(0)
    return {name: generator.random(shape, np.float32) for name, shape in OBSERVATION.items()}


def test_a_model_that_mlflow_loads_predicts_what_the_policy_does(loaded, observation):
    expected = load_policy("pretrained")(
        {name: torch.from_numpy(array) for name, array in observation.items()}
    )
    assert np.array_equal(loaded.predict(observation), expected.numpy())


def test_it_predicts_for_the_rows_of_a_table_too(loaded, observation):
    import pandas

    table = pandas.DataFrame({name: list(array) for name, array in observation.items()})
    assert np.array_equal(loaded.predict(table), loaded.predict(observation))


def test_an_observation_without_a_part_is_refused_by_name(loaded, observation):
    with pytest.raises(ActionError, match="'lidar'"):
        loaded.predict({"state": observation["state"]})


def test_the_version_in_mlflow_has_the_model_card_the_metrics_and_the_number_of_parameters(
    mlflow, pushed
):
    client = mlflow.MlflowClient(tracking_uri=pushed, registry_uri=pushed)
    version = client.get_model_version_by_alias("navigation", "best")
    known = json.loads(version.tags["navrl.metadata"])
    assert version.description.startswith("# navigation, version 1")
    assert known["file_size"] == PRETRAINED.stat().st_size
    assert known["total_parameters"] > 10_000
    assert known["metrics"]["success_100"] > 0


def test_the_name_of_a_metric_stays_readable(mlflow, pushed):
    client = mlflow.MlflowClient(tracking_uri=pushed)
    runs = client.search_runs([client.get_experiment_by_name("NavRL").experiment_id])
    assert {"eval/350 static and 80 moving": 0.5} in [run.data.metrics for run in runs]
