"""What `resume_checkpoint=` takes: a checkpoint goes on, a model gives its weights to a new
training.
"""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
import yaml

from navrl.config import as_dict, load_config
from navrl.errors import ConfigError
from navrl.evaluation import PRETRAINED, load_policy
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.models import model_state, save_model
from navrl.registry.registry import Registry
from navrl.rl.networks.navigation import (
    NavigationNetwork,
    NetworkSettings,
    build_network,
    to_upstream,
)
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import observation_layout
from navrl.training.distributed.team import Team
from navrl.training.loop import Start, restore
from navrl.training.resume.continued_run import continued_config
from navrl.training.resume.open_run import open_run
from navrl.training.trainers import make_trainer
from training_runs import ITERATIONS, TINY, checkpoints, ending, learning, same


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    monkeypatch.chdir(tmp_path)
    with Registry() as registry:
        yield registry


def opened(reference: str | Path, *typed: str):
    """Open a run as `navrl train` does, and give the folder back."""
    words = [*TINY, "run_folder=new", f"resume_checkpoint={reference}", *typed]
    run = open_run(load_config(words), words)
    if run.folder is not None:
        run.folder.close()
    return run


def model_file(
    path: Path, settings: NetworkSettings | None = None, task: NavigationSettings | None = None
) -> Path:
    settings, task = settings or NetworkSettings(), task or NavigationSettings()
    layout = observation_layout(task)
    save_model(path, model_state(build_network(settings, layout), settings, task, {}))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# ------------------------------------------------------------------ models


@pytest.mark.parametrize(
    "reference",
    ["flyer", "flyer:best", "flyer:v1", "ada/drones/flyer:best", "pretrained", "copy.pt"],
)
def test_a_model_by_any_of_its_names_gives_its_weights_to_a_new_training(
    registry, tmp_path, reference
):
    shutil.copy(PRETRAINED, tmp_path / "copy.pt")
    registry.register("flyer", PRETRAINED, aliases=["best"])
    run = opened(reference)
    assert same(run.weights, load_checkpoint(PRETRAINED)["parameters"])
    assert run.state is None
    assert run.note.startswith(f"a new training from the weights of {reference}")
    assert "optimiser" in run.note
    origin = run.folder.origin()
    assert origin["reference"] == reference
    assert origin.get("version", "") == ("flyer:v1" if "flyer" in reference else "")
    assert len(origin["sha256"]) == 64


def test_the_settings_of_the_network_come_from_the_model_and_all_others_are_those_typed(
    registry, tmp_path
):
    task = NavigationSettings.of(
        sensor__lidar_vbeams=6, sensor__lidar_range=7.0, env__num_obstacles=5
    )
    model_file(tmp_path / "m.pt", NetworkSettings(extractor="vit"), task)
    run = opened("m.pt", "seed=5", "sensor.lidar_range=3.0")
    config = run.config
    assert (config.network.extractor, config.sensor.lidar_vbeams) == ("vit", 6)
    assert (config.sensor.lidar_range, config.seed, config.env.num_obstacles) == (3.0, 5, 10)
    assert "network.extractor=vit" in run.note
    assert config.resume_checkpoint == ""
    assert yaml.safe_load(Path("new/config.yaml").read_text())["resume_checkpoint"] == str(
        tmp_path / "m.pt"
    )


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("sensor.lidar_vbeams=6", "sensor.lidar_vbeams is 6, the model has 4"),
        ("sensor.lidar_hres=20", "sensor.lidar_hres is 20.0, the model has 10.0"),
        ("network=vit", "network.extractor is 'vit', the model has 'cnn'"),
        ("algo=sac", "was trained with algo=ppo"),
    ],
)
def test_a_typed_setting_that_does_not_fit_the_model_is_refused_by_name(
    registry, tmp_path, typed, told
):
    model_file(tmp_path / "m.pt")
    words = ["preset=smoke", "run_folder=new", "resume_checkpoint=m.pt", typed]
    with pytest.raises(ConfigError, match=r"m\.pt") as caught:
        open_run(load_config(words), words)
    assert told in str(caught.value)
    assert not Path("new").exists()


def test_sac_takes_the_weights_of_its_actor(registry, tmp_path):
    model_file(tmp_path / "m.pt", NetworkSettings(distribution="gaussian"))
    words = ["preset=smoke", "algo=sac", "run_folder=new", "resume_checkpoint=m.pt"]
    run = open_run(load_config(words), words)
    run.folder.close()
    assert "critics, replay" in run.note
    order = Start(run.config, weights=run.weights)
    trainer = make_trainer(run.config, Team())
    restore(trainer, order)
    assert same(dict(trainer.network.state_dict()), load_checkpoint("m.pt")["parameters"])


def test_a_plain_state_dict_and_a_file_of_the_original_are_models_too(registry):
    network = NavigationNetwork(circular=False)
    torch.save(network.state_dict(), "plain.pt")
    torch.save({"model_state_dict": network.state_dict(), "step": 3}, "wrapped.pt")
    torch.save(to_upstream(network), "original.pt")
    for number, name in enumerate(("plain.pt", "wrapped.pt", "original.pt")):
        run = opened(name, f"run_folder=run{number}")
        assert same(run.weights, dict(network.state_dict())), name
    assert run.config.network.circular is False


def test_a_policy_without_relative_motion_acts_as_before_when_it_is_given_it(registry, tmp_path):
    model_file(tmp_path / "m.pt")
    run = opened("m.pt", "network.relative_motion=true")
    assert "relative motion, which m.pt knows nothing of yet" in run.note
    known, network = (
        NavigationNetwork(circular=True, distance_scale=0.1),
        NavigationNetwork(circular=True, distance_scale=0.1, relative_motion=True),
    )
    known.load_state_dict(load_checkpoint("m.pt")["parameters"])
    network.load_state_dict(run.weights)
    rows = torch.rand(20, known.layout.width)
    assert torch.allclose(network(rows), known(rows), atol=1e-6)


def test_relative_motion_cannot_be_taken_from_a_policy_that_has_it(registry, tmp_path):
    model_file(tmp_path / "m.pt", NetworkSettings(relative_motion=True))
    assert opened("m.pt").config.network.relative_motion
    with pytest.raises(ConfigError, match="relative_motion is False, the model has True"):
        opened("m.pt", "run_folder=other", "network.relative_motion=false")


def test_a_run_of_before_a_setting_had_its_default():
    saved = as_dict(load_config(TINY))
    del saved["network"]["relative_motion"]
    assert not continued_config(saved, ["network.relative_motion=false"]).network.relative_motion
    with pytest.raises(ConfigError, match=r"relative_motion \(was False, now True\)"):
        continued_config(saved, ["network.relative_motion=true"])


def test_weights_of_another_shape_are_refused_by_their_name(registry):
    state = NavigationNetwork().state_dict()
    torch.save(state | {"dynamic.0.weight": torch.zeros(64, 50)}, "other.pt")
    with pytest.raises(ConfigError, match=r"'dynamic\.0\.weight' is \(64, 50\).*\(128, 50\)"):
        opened("other.pt")
    torch.save({"step": 3}, "nothing.pt")
    with pytest.raises(
        ConfigError, match=r"nothing\.pt holds neither a training state nor the weights"
    ):
        opened("nothing.pt")


# ------------------------------------------------------------------ what is not there


@pytest.mark.parametrize(
    "reference", ["policy:stable", "runs/x/checkpoints/latest", "nowhere", "runs/x/latest"]
)
def test_what_is_nowhere_is_told_by_what_was_typed_and_what_is_expected(registry, reference):
    with pytest.raises(
        ConfigError, match=f"{reference}.*expected a checkpoint, a model, the folder of a run"
    ):
        opened(reference)


@pytest.mark.parametrize("path", ["/nowhere/model.pt", "./model.pt", "../model.pt", "~/model.pt"])
def test_a_path_that_there_is_not_is_not_taken_for_a_name(registry, path):
    with pytest.raises(ConfigError, match="no such file or folder; expected a checkpoint") as error:
        opened(path)
    assert "parts" not in str(error.value)


def test_a_folder_without_a_checkpoint_is_told(registry, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty has no checkpoint to resume from"):
        opened("empty")


def test_a_folder_that_holds_another_run_is_not_trained_in(registry, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="run_folder new holds another run"):
        opened("pretrained")


def test_a_reference_to_a_tracker_is_fetched_and_offline_the_error_says_what_to_do(
    registry, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(ConfigError) as caught:
        opened("ada/drones/flyer:best")
    for word in (
        "WANDB_API_KEY",
        "WANDB_MODE",
        "`navrl models pull ada/drones/flyer:best`",
        "wandb is offline",
    ):
        assert word in str(caught.value)


def test_a_tracker_that_does_not_answer_is_given_up_on_after_the_deadline(registry, monkeypatch):
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        with pytest.raises(ConfigError, match=r"no answer in 0\.5 s.*navrl models pull"):
            opened("ada/drones/flyer:best", "tracker_deadline=0.5")


# ------------------------------------------------------------------ trainings


@pytest.mark.slow
def test_the_folder_of_a_run_goes_on_in_a_new_one_to_the_same_end_and_is_left_alone(
    server, whole, tmp_path
):
    half = tmp_path / "half"
    server.train(half, "max_frame_num=2048")
    before = tree(half)
    longer = tmp_path / "longer"
    told = server.train(longer, f"resume_checkpoint={half}")
    assert f"resumed {half}" in told
    assert tree(half) == before
    server.train(half, "resume=auto", "max_frame_num=4096")
    assert same(*({k: v for k, v in ending(run).items() if k != "best"} for run in (longer, half)))
    assert learning(longer) == learning(half)[-len(learning(longer)) :]
    assert json.loads((longer / "run.json").read_text())["origin"]["reference"] == str(half)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_from_a_model_begins_with_its_weights_and_nothing_else(
    server, whole, tmp_path, processes
):
    folder, before = tmp_path / "run", tree(whole)
    words = (
        f"resume_checkpoint={whole / 'model.pt'}",
        "save_interval=1",
        "keep_last_n=99",
        f"processes={processes}",
        "seed=3",
    )
    assert "a new training from the weights of" in server.train(folder, *words, "max_frame_num=768")
    state = load_checkpoint(checkpoints(folder)[0])
    assert state["iteration"] == 0
    assert same(dict(state["model_state_dict"]), load_checkpoint(whole / "model.pt")["parameters"])
    assert state["optimizer"]["state"] == {}
    assert tree(whole) == before
    with Registry() as registry:
        [version] = [
            one
            for one in registry.versions("smoke")
            if one.lineage.get("run_folder") == str(folder)
        ][-1:]
    assert version.lineage["origin"]["file"] == str(whole / "model.pt")


@pytest.mark.slow
def test_a_run_that_started_from_a_model_and_died_before_its_first_checkpoint_starts_from_it_again(
    server, whole, tmp_path
):
    folder = tmp_path / "run"
    words = (f"resume_checkpoint={whole / 'model.pt'}", "max_frame_num=512")
    server.train(folder, *words)
    end = load_checkpoint(checkpoints(folder)[-1])
    shutil.rmtree(folder / "checkpoints")
    (folder / "model.pt").unlink()
    (folder / "metrics.jsonl").unlink()
    told = server.train(folder, "resume=auto", "max_frame_num=512")
    assert f"from the weights of {whole / 'model.pt'}" in told
    assert same(
        end["model_state_dict"], load_checkpoint(checkpoints(folder)[-1])["model_state_dict"]
    )


@pytest.mark.slow
def test_a_checkpoint_of_a_training_flies(whole):
    newest = whole / "checkpoints" / "latest"
    policy = load_policy(newest)
    assert policy.card["iteration"] == ITERATIONS
    assert policy.task == load_policy(whole).task


def test_a_checkpoint_of_an_older_navrl_flies_too(registry):
    model = load_checkpoint(PRETRAINED)
    config = model["task"] | {"network": model["network"], "seed": 4, "device": "cpu"}
    save_checkpoint(
        {"iteration": 7, "network": model["parameters"], "ranks": [{}], "config": config}, "old.pt"
    )
    policy, expected = load_policy("old.pt"), load_policy("pretrained")
    assert policy.task == expected.task
    assert same(policy.act.network.network.state_dict(), expected.act.network.network.state_dict())
