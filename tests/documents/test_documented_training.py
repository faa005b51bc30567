"""The training command with the settings, references and metric names of the user's documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from documented import COMMAND

from navrl import load_checkpoint
from navrl.cli import main

# two iterations
SHORT = ("env.num_obstacles=20", "max_frame_num=512", "save_interval=2", "eval_interval=2")
LOGGED = (
    "model/total_parameters",
    "model/file_size_mb",
    "train/step",
    "eval/mean_reward",
    "eval/success_rate",
    "best_model/step",
    "perf/policy_training",
    "perf/evaluation",
)


def configuration(capsys, *words):
    """Return what `navrl train --cfg job` prints, as a dict."""
    assert main(["train", "--cfg", "job", *words]) == 0, capsys.readouterr().err
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.slow
def test_the_documented_command_trains(documented):
    assert (documented / "model.pt").is_file()


@pytest.mark.slow
def test_a_checkpoint_of_a_training_has_the_weights_under_model_state_dict(documented):
    weights = load_checkpoint(documented / "checkpoints" / "latest")["model_state_dict"]
    assert weights.keys() == load_checkpoint(documented / "model.pt")["parameters"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGGED)
def test_a_metric_is_logged_under_its_documented_name(documented, name):
    files = (documented / "metrics.jsonl", documented / "tracking" / "records.log")
    assert any(f'"{name}"' in file.read_text(errors="replace") for file in files)


@pytest.mark.slow
def test_the_next_batch_can_be_collected_while_the_policy_learns(server, documents_folder):
    folder = documents_folder / "pipelined"
    server.train(folder, "headless=True", *SHORT, "use_pipelined_collector=true")
    assert yaml.safe_load((folder / "config.yaml").read_text())["use_pipelined_collector"] is True


@pytest.mark.slow
def test_the_best_model_by_mean_reward_is_registered(server, documents_folder):
    folder = documents_folder / "best_by_reward"
    metric = "model_management.best_model_metric=mean_reward"
    told = server.train(folder, "headless=True", *SHORT, metric, "model_management.name=rewarded")
    assert "registered as rewarded:v1: best mean_reward" in told
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any("best_model/mean_reward" in record for record in records)


def test_a_misspelt_metric_is_refused_before_the_training_starts(capsys):
    assert main(["train", "preset=smoke", "model_management.best_model_metric=mean_rewrd"]) == 2
    assert "Did you mean 'mean_reward'" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_training_starts_from_the_weights_of_a_registered_model(
    server, documented, documents_folder
):
    folder = documents_folder / "from_model"
    server.train(folder, "headless=True", "env.num_envs=64", *SHORT, "resume_checkpoint=smoke:best")
    assert (folder / "model.pt").is_file()


@pytest.mark.slow
def test_a_training_goes_on_from_the_folder_of_a_run(server, documented, documents_folder):
    folder = documents_folder / "from_folder"
    words = [*COMMAND, f"resume_checkpoint={documented}", "max_frame_num=2048"]
    server.train(folder, *words)
    latest = load_checkpoint(folder / "checkpoints" / "latest")
    assert latest["iteration"] == 4  # of 512 frames each; the run in the folder had two


def test_numbers_and_nulls_are_taken_as_the_original_writes_them(capsys):
    words = ("max_frame_num=12e8", "wandb.run_id=null", "wandb.name=null", "wandb.entity=null")
    assert configuration(capsys, *words)["max_frame_num"] == 1_200_000_000


def test_the_documented_keys_of_model_management_are_those_of_the_registry(capsys):
    words = (
        "upload_frequency=5",
        "save_best_models=true",
        "best_model_metric=mean_reward",
        "keep_last_n=3",
        "upload_conditions.min_reward_threshold=50.0",
        "upload_conditions.min_success_rate=0.8",
    )
    registry = configuration(capsys, *(f"model_management.{word}" for word in words))["registry"]
    assert (registry["upload_frequency"], registry["keep_last_n"]) == (5, 3)
    assert registry["best_model_metric"] == "mean_reward"
    assert registry["upload_conditions"] == {"min_reward_threshold": 50.0, "min_success_rate": 0.8}


def test_a_configuration_file_of_the_users_own_is_read(capsys):
    Path("cfg").mkdir()
    Path("cfg/wandb_model_config.yaml").write_text(
        "defaults:\n  - config\n  - _self_\n"
        "wandb:\n  project: navrl-models\n  mode: disabled\n"
        "model_management:\n  upload_frequency: 5\n  keep_last_n: 3\n"
        "seed: 7\n"
    )
    found = configuration(capsys, "--config-path", "cfg", "--config-name", "wandb_model_config")
    assert (found["seed"], found["wandb"]["project"], found["registry"]["keep_last_n"]) == (
        7,
        "navrl-models",
        3,
    )
