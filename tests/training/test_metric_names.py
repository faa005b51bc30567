"""What a training logs, stores and registers, under which names: one run, looked at from all sides."""

from __future__ import annotations

import json

import pytest

from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.io.checkpoint.listing import list_entries
from navrl.metrics_log import MetricsLog
from navrl.registry.registry import Registry
from navrl.tracking.queue import RecordQueue
from training_runs import ITERATIONS

pytestmark = pytest.mark.slow
NAMES = {
    "train/step",
    "eval/mean_reward",
    "eval/success_rate",
    "eval/episode_length",
    "eval/mean_return",
    "best_model/step",
    "best_model/mean_reward",
    "best_model/success_rate",
    "perf/frames_per_second",
    "perf/policy_training",
    "perf/evaluation",
    "perf/data_collection",
    "model/total_parameters",
    "model/file_size_mb",
}


@pytest.fixture(scope="module")
def run(server, tmp_path_factory):
    """The folder of a training with a tracker, the best by mean_reward, every second checkpoint
    uploaded.
    """
    folder = tmp_path_factory.mktemp("named") / "run"
    told = server.train(
        folder,
        "wandb.mode=offline",
        "registry.name=named",
        "registry.best_model_metric=mean_reward",
        "registry.upload_frequency=2",
        "registry.keep_last_n=0",
    )
    (folder / "told.txt").write_text(told)
    return folder


@pytest.fixture(scope="module")
def queued(run):
    """Every value that trackers get, by name, as (step, value)."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in RecordQueue(run).read():
        for name, value in record["values"].items() if record["kind"] == "metrics" else ():
            found.setdefault(name, []).append((record["step"], value))
    return found


def test_trackers_get_the_names_that_the_user_looks_for(queued):
    assert set(queued) >= NAMES
    assert queued["train/step"] == [(step, step) for step in range(1, ITERATIONS + 1)]
    assert len(queued["perf/frames_per_second"]) == ITERATIONS
    assert min(value for _, value in queued["perf/frames_per_second"]) > 0
    assert [step for step, _ in queued["eval/mean_reward"]] == [6, 12, 16]


def test_the_metrics_file_has_them_without_a_tracker(run):
    names = {name for record in MetricsLog.read(run / "metrics.jsonl") for name in record}
    assert names >= NAMES - {"train/step"}  # its records have `iteration`


def test_the_model_of_the_run_the_registry_the_trackers_and_the_display_agree_on_the_best(
    run, queued
):
    rewards = dict(queued["eval/mean_reward"])
    best = max(rewards, key=rewards.get)
    assert load_checkpoint(run / "model.pt")["card"]["iteration"] == best
    assert queued["best_model/step"][-1] == (best, best)
    assert queued["best_model/mean_reward"][-1][1] == rewards[best]
    with Registry() as registry:
        version = registry.resolve("named:best")
    assert (version.lineage["iteration"], version.metrics["mean_reward"]) == (best, rewards[best])
    assert f"registered as {version.label}: " in (run / "told.txt").read_text()
    assert f"best mean_reward {rewards[best]:.4g} so far" in (run / "told.txt").read_text()
    assert load_checkpoint(run / "checkpoints" / "latest")["best"]["iteration"] == best


def test_every_second_checkpoint_is_registered(run):
    with Registry() as registry:
        iterations = {version.lineage["iteration"] for version in registry.versions("named")}
    assert iterations >= {4, 8, 12, 16}  # a checkpoint is saved every second iteration
    assert not iterations & {2, 10, 14}


def test_evaluations_and_checkpoints_store_the_names_beside_ours(run):
    for row in json.loads((run / "evaluation.json").read_text())["conditions"].values():
        assert row["mean_reward"] == row["mean_return"]
        assert row["success_rate"] == row["outcomes"]["success_100"]["share"]
        assert row["episode_length"] == row["mean_length"]
    assert list_entries(run / "checkpoints")[-1].metrics.keys() >= {
        "mean_reward",
        "success_rate",
        "episode_length",
    }


def test_an_unknown_metric_is_refused_before_anything_is_made(server, tmp_path):
    told = server.train(tmp_path / "run", "registry.best_model_metric=mean_rewrd", code=2)
    assert "Did you mean 'mean_reward'?" in told
    assert not (tmp_path / "run").exists()
