"""Names work wherever paths do: `find_model` and `navrl eval`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from navrl.config import Config, as_dict
from navrl.errors import ConfigError, RegistryError
from navrl.evaluation import PRETRAINED, load_policy
from navrl.io import save_checkpoint
from navrl.registry import Registry, find_model


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The registry that everybody finds without being told."""
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    with Registry() as registry:
        yield registry


def test_a_path_wins_over_a_name(own, tmp_path):
    version = own.register("policy", PRETRAINED)
    assert find_model("policy") == version.path
    (tmp_path / "policy").write_text("a file")
    assert find_model("policy") == Path("policy")


def test_the_folder_of_a_run_is_its_model(own, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(RegistryError, match=r"folder without model\.pt"):
        find_model("run")
    (tmp_path / "run" / "model.pt").touch()
    assert find_model(tmp_path / "run") == tmp_path / "run" / "model.pt"


def test_the_user_and_project_of_a_reference_are_not_asked_for_here(own):
    version = own.register("policy", PRETRAINED, aliases=["best"])
    assert find_model("ada/drones/policy:best", own) == version.path


def test_what_is_nowhere_is_told_with_the_way_to_fetch_it(own):
    with pytest.raises(RegistryError, match="navrl models pull ada/drones/policy:best"):
        find_model("ada/drones/policy:best")


def test_a_file_that_is_gone_is_told_with_its_version(own):
    own.register("policy", PRETRAINED).path.unlink()
    with pytest.raises(RegistryError, match=r"policy:v1: its file .* is missing"):
        find_model("policy")


def test_looking_for_a_model_makes_no_registry(own, tmp_path):
    with pytest.raises(RegistryError):
        find_model("policy")
    assert not (tmp_path / "own").exists()


def test_a_policy_is_loaded_by_its_name(own):
    own.register("policy", PRETRAINED, aliases=["best"])
    policy, same = load_policy("policy:best"), load_policy("pretrained")
    assert policy.name == "policy:best"
    assert policy.card == same.card
    assert policy.task == same.task


@pytest.mark.parametrize(
    "name", ["pretraind", "policy:bst", "m" * 300, "a\0b", "../x", "runs/nothing"]
)
def test_a_policy_that_is_not_there_is_told_in_one_line(own, name):
    own.register("policy", PRETRAINED, aliases=["best"])
    with pytest.raises(ConfigError, match="no policy") as caught:
        load_policy(name)
    assert str(caught.value).isprintable()


def checkpoint(path: Path) -> Path:
    config = as_dict(Config(seed=3))
    save_checkpoint(
        {
            "iteration": 7,
            "frames": 70,
            "model_state_dict": {"w": torch.ones(4)},
            "ranks": [{}],
            "config": config,
        },
        path,
    )
    return path


def test_a_registered_checkpoint_is_told_apart_from_a_model(own, tmp_path):
    version = own.register("policy", checkpoint(tmp_path / "any.pt"), aliases=["stable"])
    assert (version.kind, version.lineage["iteration"], version.lineage["seed"]) == (
        "checkpoint",
        7,
        3,
    )
