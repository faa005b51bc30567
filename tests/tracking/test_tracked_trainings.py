"""Trainings with trackio, TensorBoard and MLflow at once: faults, killed processes, pictures."""

from __future__ import annotations

import os
import signal

import pytest
from faulty_proxy import FaultyProxy
from trackers import processes_of, result_of, start_trainer, wait_for
from trainer import model_of, settings_of

from navrl.cli import main
from navrl.tracking.queue import RecordQueue
from navrl.tracking.tracker import Tracking

STEPS, EVERY = 6, 3
PATIENT = ("--deadline", "300")  # on a busy machine MLflow takes long to load


@pytest.fixture
def proxy(mlflow_server):
    proxy = FaultyProxy(mlflow_server)
    yield proxy
    proxy.close()


def run_of(client, folder):
    experiment = client.get_experiment_by_name(folder.parent.name)
    [run] = client.search_runs(
        [experiment.experiment_id], f"tags.`navrl.run` = '{RecordQueue(folder).read()[0]['id']}'"
    )
    return run.info.run_id


def check_mlflow(url, folder, steps, every):
    """All metrics once, all models once, the last one with the alias."""
    from mlflow import MlflowClient

    from navrl.tracking.backends import open_backend

    client = MlflowClient(url, url)
    history = client.get_metric_history(run_of(client, folder), "train/kl")
    assert sorted((metric.step, metric.value) for metric in history) == [
        (step, 1 / step) for step in range(1, steps + 1)
    ]
    backend = open_backend("mlflow", uri=url, project=folder.parent.name)
    fetched = [
        backend.download(f"model:{version}", folder / "fetched")
        for version in backend.versions("model")
    ]
    expected = [model_of(step) for step in range(every, steps + 1, every)]
    assert [file.read_bytes() for file in fetched] == expected
    assert backend.download("model:best", folder / "fetched").read_bytes() == expected[-1]
    for version in backend.versions("model"):
        backend.delete("model", version)


def check_trackio(folder, project, steps, every):
    from trackio.sqlite_storage import SQLiteStorage

    from navrl.tracking.backends import open_backend

    run = RecordQueue(folder).read()[0]
    rows = SQLiteStorage.get_logs(project, run["name"], run_id=run["id"])
    assert [(row["step"], row["train/kl"]) for row in rows] == [
        (step, 1 / step) for step in range(1, steps + 1)
    ]
    backend = open_backend("trackio", project=project)
    fetched = [
        backend.download(f"model:{version}", folder / "fetched")
        for version in backend.versions("model")
    ]
    assert [file.read_bytes() for file in fetched] == [
        model_of(step) for step in range(every, steps + 1, every)
    ]


def check_tensorboard(folder, steps):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [
        event
        for file in sorted((folder / "tensorboard").iterdir())
        for event in EventFileLoader(str(file)).Load()
    ]
    found = [(event.step, value.tag) for event in events for value in event.summary.value]
    assert [step for step, tag in found if tag == "train/kl"] == [*range(1, steps + 1)]


@pytest.mark.slow
def test_three_trackers_of_one_run_with_a_server_that_fails_in_turn_get_everything_once(
    proxy, trackio_folder, tmp_path
):
    folder, project = tmp_path / "run", tmp_path.name
    settings = {
        "trackers": ["trackio", "tensorboard", "mlflow"],
        "wandb": {"project": project},
        "mlflow": {"uri": proxy.url},
        "patience": 3.0,
        "deadline": 60.0,
    }
    proxy.fault = "die"  # hangs up in the middle of the first upload
    trainer = start_trainer(folder, settings, steps=STEPS, every=EVERY, paced=True)
    for step in range(1, STEPS + 1):
        trainer.stdout.readline()
        if step == EVERY:
            wait_for(lambda: proxy.seen.get("died"), 180)
            proxy.fault = "hang"
        elif step == EVERY + 1:
            proxy.fault = "error"
        elif step == EVERY + 2:
            proxy.fault = "refused"
            trackio_done = RecordQueue(folder).deliveries("trackio")
            wait_for(lambda deliveries=trackio_done: EVERY in deliveries.read().done, 180)
            os.kill(next(iter(processes_of(folder, "trackio"))), signal.SIGKILL)
        trainer.stdin.write("\n")
        trainer.stdin.flush()
    measured = result_of(trainer)
    assert any("mlflow" in told and "navrl sync" in told for told in measured["warnings"])
    proxy.fault = "slow"
    assert (
        main(["sync", str(folder), *PATIENT]) == 0
    )  # TensorBoard, which keeps no models, lacks none
    check_mlflow(proxy.url, folder, STEPS, EVERY)
    check_trackio(folder, project, STEPS, EVERY)
    check_tensorboard(folder, STEPS)


@pytest.mark.slow
def test_pictures_and_the_summary_reach_an_embedded_store(trackio_folder, tmp_path):
    from mlflow import MlflowClient
    from PIL import Image

    folder = tmp_path / "run"
    Image.new("RGB", (8, 6)).save(tmp_path / "flights.png")
    settings = settings_of(
        {"trackers": ["mlflow"], "wandb": {"project": tmp_path.name}, "patience": 20.0}
    )
    with Tracking(settings, {"env": {"num_envs": 4}}, folder) as tracking:
        tracking.log(5, {"eval/350 static + 80 moving": 0.5, "note": "text", "nothing": None})
        tracking.image(5, "eval/flights", tmp_path / "flights.png")
        tracking.summary({"best": 3})
    assert main(["sync", str(folder), *PATIENT]) == 0
    client = MlflowClient(f"sqlite:///{folder}/mlflow/mlflow.db")
    run = client.get_run(run_of(client, folder))
    assert run.data.metrics == {"eval/350 static and 80 moving": 0.5}
    assert run.data.params == {"env.num_envs": "4"}
    assert (run.data.tags["summary.best"], run.info.status) == ("3", "FINISHED")
    [picture] = client.list_artifacts(run.info.run_id, "media/eval/flights/000000005")
    assert picture.path.endswith("flights.png")
