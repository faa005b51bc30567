"""Models to and from W&B in one call, from any script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import types
from functools import partial

import numpy as np
import pytest
import torch
from trainer import settings_of

import forked
from navrl import create_navrl_model, load_policy, save_and_upload_best_model, upload_model_to_wandb
from navrl.cli import main
from navrl.config import load_config
from navrl.errors import ConfigError, RegistryError, StateError, TrackingError
from navrl.registry import Registry
from navrl.tracking.queue import RecordQueue
from navrl.tracking.tracker import Tracking
from navrl.tracking.wandb_downloads import _advice, download_model_from_wandb

OFFLINE = {"wandb": {"mode": "offline", "project": "P"}}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Tracking(settings_of(OFFLINE), {}, tmp_path / "run") as tracking:
        yield tracking


def kinds(folder, kind):
    return [record for record in RecordQueue(folder).read() if record["kind"] == kind]


def test_an_uploaded_model_is_the_one_of_the_moment_and_comes_back_by_its_alias(offline, tmp_path):
    weight = torch.ones(1000)
    upload_model_to_wandb({"weight": weight}, 7, {"mean_reward": 1.5}, "best")
    weight.zero_()
    path = download_model_from_wandb("P/model:best", tmp_path / "models")
    assert torch.load(path, weights_only=True)["weight"].sum() == 1000
    [record] = kinds(offline.folder, "artifact")
    assert (
        record["metadata"] | {"step": 7, "total_parameters": 1000, "metrics": {"mean_reward": 1.5}}
        == record["metadata"]
    )
    assert kinds(offline.folder, "metrics")[0]["values"]["model/total_parameters"] == 1000


@pytest.mark.slow
def test_a_script_may_change_its_folder_after_an_upload(tmp_path):
    program = (
        "import os, torch, navrl\n"
        "navrl.upload_model_to_wandb({'weight': torch.ones(3)}, 1)\n"
        "os.mkdir('elsewhere'), os.chdir('elsewhere')\n"
        "navrl.upload_model_to_wandb({'weight': torch.ones(3)}, 2)\n"
    )
    environment = os.environ | {"WANDB_MODE": "offline"}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    assert len(kinds(tmp_path / "wandb" / "navrl-models", "artifact")) == 2


def test_tensors_deep_in_a_state_are_those_of_the_moment_too(offline, tmp_path):
    weight, moment = torch.ones(10), torch.ones(5)
    slow = threading.Event()
    offline._writer.submit(lambda queue: slow.wait(5))  # the thread that writes is behind
    upload_model_to_wandb(
        {"network": {"weight": weight}, "optimizer": [moment, 3]}, 7, None, "best"
    )
    weight.zero_(), moment.zero_()
    slow.set()
    state = torch.load(download_model_from_wandb("P/model:best", tmp_path / "models"))
    assert (state["network"]["weight"].sum(), state["optimizer"][0].sum()) == (10, 5)
    assert kinds(offline.folder, "artifact")[0]["metadata"]["total_parameters"] == 15


def test_numbers_of_numpy_are_uploaded_as_plain_ones(offline, tmp_path):
    upload_model_to_wandb({"best": np.float64(0.5), "table": np.arange(3)}, 7, None, "best")
    state = torch.load(
        download_model_from_wandb("P/model:best", tmp_path / "models"), weights_only=True
    )
    assert (state["best"], state["table"].tolist()) == (0.5, [0, 1, 2])


@pytest.mark.parametrize(
    ("chosen", "asked", "found"),
    [
        ({"project": "P", "entity": "ada"}, "ada/P", True),
        ({"project": "P", "entity": "ada"}, "bob/P", False),
        ({"project": "P", "entity": "ada"}, "ada/Q", False),
        ({"project": "P"}, "ada/P", True),
        ({"project": "P"}, "P", True),
        ({"project": "P"}, "ada/Q", False),
        ({}, "ada/Q", True),  # uploaded for nobody in particular
    ],
)
def test_a_queued_model_is_found_under_its_own_user_and_project(
    tmp_path, monkeypatch, chosen, asked, found
):
    monkeypatch.chdir(tmp_path)
    with Tracking(settings_of({"wandb": {"mode": "offline", **chosen}}), {}, tmp_path / "run"):
        upload_model_to_wandb({"weight": torch.ones(2)}, 1, model_alias="best")
        if found:
            assert download_model_from_wandb(f"{asked}/model:best").is_file()
        else:
            with pytest.raises(TrackingError, match=f"{asked}/model:best"):
                download_model_from_wandb(f"{asked}/model:best")


def test_a_script_whose_run_is_disabled_uploads_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = types.SimpleNamespace(
        disabled=True, offline=False, project="P", entity="", name="n", id="i"
    )
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=run))
    upload_model_to_wandb({"weight": torch.ones(2)}, 1)
    assert [*tmp_path.iterdir()] == []


def test_a_model_that_no_tracker_of_the_run_keeps_is_told(tmp_path):
    settings = settings_of({"trackers": ["tensorboard"], "patience": 1.0})
    with (
        Tracking(settings, {}, tmp_path / "run"),
        pytest.warns(RuntimeWarning, match="not uploaded: no tracker"),
    ):
        upload_model_to_wandb({"weight": torch.ones(10)}, 1)


def test_only_a_better_model_is_uploaded(offline):
    tracker = {"best_value": 1.0}
    rewards = [0.5, 1.0, 2.0, float("nan"), 1.5, 2.5]
    uploaded = []
    for step, reward in enumerate(rewards):
        state, metrics = {"weight": torch.full((2,), reward)}, {"mean_reward": reward}
        uploaded.append(
            save_and_upload_best_model(state, step, metrics, best_value_tracker=tracker)
        )
    offline.close()
    assert uploaded == [False, False, True, False, False, True]
    assert tracker == {"best_value": 2.5, "best_step": 5}
    assert [record["aliases"] for record in kinds(offline.folder, "artifact")] == [
        ["best"],
        ["best"],
    ]


def test_a_metric_that_is_not_there_names_the_nearest(offline):
    with pytest.raises(ConfigError, match="mean_reward"):
        save_and_upload_best_model({}, 1, {"mean_reward": 1.0}, "mean_rewards")


@pytest.mark.parametrize(
    "hostile", ["../up:best", "a/../b:best", "a/b/c/d:best", "model:", "", "model:a/b"]
)
def test_hostile_references_are_refused(hostile, tmp_path):
    with pytest.raises(RegistryError):
        download_model_from_wandb(hostile, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_what_nobody_has_is_said_so(offline, tmp_path):
    with pytest.raises(TrackingError, match="nothing:best"):
        download_model_from_wandb("P/nothing:best", tmp_path / "models")


@pytest.mark.filterwarnings("ignore:a record could not be queued")
def test_a_state_that_cannot_be_stored_is_a_warning(offline):
    upload_model_to_wandb({"weight": object()}, 1)
    offline.close()
    assert "record" in offline._warned
    assert kinds(offline.folder, "artifact") == []
    assert kinds(offline.folder, "end")


SCRIPT = """
import sys, json
for name in ("numba", "hydra", "omegaconf", "rich", "torchrl", "tensordict", "mlflow", "trackio"):
    sys.modules[name] = None  # importing it fails
import torch, wandb
from navrl import download_model_from_wandb, save_and_upload_best_model, upload_model_to_wandb
run = wandb.init(project="foreign", settings=wandb.Settings(console="off", silent=True))
run.log({"loss": 1.0})
upload_model_to_wandb({"weight": torch.full((500,), 1.0)}, step=1, model_alias="stable")
assert save_and_upload_best_model({"weight": torch.full((500,), 2.0)}, 2, {"mean_reward": 3.0}, best_value_tracker={})
run.finish()
from navrl.tracking.tracker import current_tracking
current_tracking().close()
from navrl.cli import main
assert main(["sync", "wandb/navrl-models", "--deadline", "60"]) == 0  # what a busy machine was too slow for
for label, value in (("stable", 1.0), ("best", 2.0), ("best", 2.0)):
    path = download_model_from_wandb(f"tester/foreign/model:{label}", "models")
    assert torch.load(path)["weight"].mean() == value, label
print(json.dumps([str(path), "navrl.sim" in sys.modules]))
"""


@pytest.mark.slow
def test_a_foreign_script_with_its_own_run_uploads_and_downloads(
    emulator, wandb_environment, tmp_path, monkeypatch
):
    # not the one of these tests
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    downloads = partial(emulator.operations.get, "GetArtifactMembershipFileUrls", 0)
    before, earlier = downloads(), set(emulator.artifacts)  # of other tests
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=own,
    )
    assert done.returncode == 0, done.stderr
    path, simulator = json.loads(done.stdout.splitlines()[-1])
    assert not simulator
    assert downloads() == before + 2  # the third was kept
    new = [artifact for key, artifact in emulator.artifacts.items() if key not in earlier]
    best = next(artifact for artifact in new if "best" in artifact["aliases"])
    assert best["description"].startswith("best_model of step 2\n")
    assert "| mean_reward | 3.0 |" in best["description"]
    known = json.loads(best["metadata"])
    assert (known["total_parameters"], known["metrics"]) == (500, {"mean_reward": 3.0})
    assert known["file_size"] > 2000
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    with pytest.warns(RuntimeWarning, match="pointed at last time"):
        kept = download_model_from_wandb("tester/foreign/model:best", "models", timeout=1)
    assert str(kept) == path
    kept.write_bytes(b"damaged")
    # from the queue of the script
    queued = download_model_from_wandb("tester/foreign/model:best", "models", timeout=1)
    assert torch.load(queued)["weight"].mean() == 2.0


def spec(*shape):
    return torch.empty(shape)


PARTS = {"lidar": spec(4, 1, 36, 4), "dynamic_obstacle": spec(4, 1, 5, 10), "state": spec(4, 8)}
OBSERVATION = {"agents": {"observation": PARTS}}


def test_a_model_made_from_specs_saves_a_file_that_flies_and_loads_it_again(offline, tmp_path):
    model = create_navrl_model(load_config(), OBSERVATION, spec(4, 3), "cpu")
    path = model.save_checkpoint(
        tmp_path / "deep" / "model.pt", 12, upload_to_wandb=True, wandb_alias="best"
    )
    assert load_policy(path).card["iteration"] == 12
    other = create_navrl_model(None, OBSERVATION, spec(4, 3))
    assert other.load_checkpoint(path)["card"]["iteration"] == 12
    fetched, plain = create_navrl_model(None, OBSERVATION), create_navrl_model(None, OBSERVATION)
    assert fetched.load_from_wandb("P/model:best", tmp_path / "models")["card"]["iteration"] == 12
    plain.network.load_state_dict(
        torch.load(download_model_from_wandb("P/model:best", tmp_path / "models"))
    )
    for restored in (other, fetched, plain):
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.network.parameters(), restored.network.parameters(), strict=True)
        )


def test_the_file_that_a_model_uploads_can_be_pulled_and_flown(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    model = create_navrl_model(load_config(), OBSERVATION, spec(4, 3), "cpu")
    path = model.save_checkpoint(
        tmp_path / "model.pt", 12, upload_to_wandb=True, wandb_alias="best"
    )
    offline.close()
    options = ["--option", "mode=offline", "--option", f"folder={offline.folder}"]
    assert main(["models", "pull", "P/model:best", *options]) == 0
    assert load_policy("model:best").card["iteration"] == 12
    assert Registry().resolve("model:best").path.read_bytes() == path.read_bytes()


def test_specs_and_weights_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="act_spec"):
        create_navrl_model(None, OBSERVATION, spec(4, 2))
    with pytest.raises(ConfigError, match="lidar"):
        create_navrl_model(None, {"state": spec(8)})
    with pytest.raises(ConfigError, match="extractor"):
        create_navrl_model({"network": {"extracter": "cnn"}})
    path = create_navrl_model().save_checkpoint(tmp_path / "model.pt", 1)
    with pytest.raises(StateError, match=r"does not fit this network.*no parameter"):
        create_navrl_model({"network": {"extractor": "vit"}}).load_checkpoint(path)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("No API key configured. Use `wandb login` to log in.", "Sign in with `wandb login`"),
        ("HTTP 403: permission denied", "Sign in with `wandb login`"),
        ("wandb is offline", "WANDB_MODE=online"),
        ("no answer in 30 s", "Try again when W&B can be reached"),
    ],
)
def test_what_to_do_fits_the_reason_that_a_model_was_not_fetched(reason, advice):
    assert advice in _advice(reason)


@pytest.mark.slow
def test_a_missing_key_is_told_as_such(tmp_path):
    """In a process of its own: W&B's client remembers keys."""
    program = "import navrl; navrl.download_model_from_wandb('user/project/model:best')"
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WANDB_") and name != "NETRC"
    }
    environment = kept | {
        "HOME": str(tmp_path),
        "WANDB_MODE": "online",
        "WANDB_BASE_URL": "http://127.0.0.1:9",
    }
    done = forked.run(program, env=environment, cwd=tmp_path, timeout=120)
    assert "user/project/model:best: not fetched from W&B: " in done.stderr
    assert "Sign in with `wandb login`" in done.stderr
