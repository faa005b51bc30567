"""One contract for every mirror: the real W&B client, trackio, an MLflow server, MLflow's embedded
store, the queue offline.
"""

from __future__ import annotations

import itertools
import os

import pytest

from navrl.errors import ConfigError, RegistryError, TrackingError
from navrl.tracking.mirrors import RunInfo, open_mirror

KINDS = ("local", "offline", "trackio", "mlflow", "mlflow_server", "wandb")
ALIASES = ("best", "v1.0", "Latest_2")
HOSTILE = ("../up", "a/b", "a b", "", ".", "..", "a:b", "a\0b", "-rf", "x" * 200, "con", "ä", "a\n")
FRESH = itertools.count()


@pytest.fixture(scope="session")
def opened(wandb_environment):
    mirrors = {}
    yield mirrors
    if "wandb" in mirrors:
        mirrors["wandb"].finish()


@pytest.fixture(params=KINDS)
def mirror(request, wandb_environment, opened, tmp_path_factory):
    kind = request.param
    if kind not in opened:
        folder = tmp_path_factory.mktemp(kind)
        options = {"folder": folder, "project": "contract"}
        if kind == "wandb":
            pytest.importorskip("wandb")
        elif kind == "mlflow_server":
            options["uri"] = request.getfixturevalue("mlflow_server")
        elif kind == "trackio":
            request.getfixturevalue("trackio_folder")
        elif kind == "offline":
            options["mode"] = "offline"
        elif kind == "local":
            pytest.importorskip("navrl.registry.store")
            options = {"folder": folder}
        opened[kind] = open_mirror(
            {"offline": "wandb", "mlflow_server": "mlflow"}.get(kind, kind), **options
        )
        if kind == "wandb":
            opened[kind].start(RunInfo("contract", "contract", folder))
    return opened[kind]


@pytest.fixture
def name():
    return f"model-{next(FRESH)}"


@pytest.fixture
def models(tmp_path):
    """Two files of the same name with different content."""
    made = []
    for number in range(2):
        path = tmp_path / str(number) / "model.pt"
        path.parent.mkdir()
        path.write_bytes(os.urandom(3000))
        made.append(path)
    return made


@pytest.mark.slow
class TestMirror:
    def test_a_model_comes_back_by_every_alias_and_by_its_version(
        self, mirror, name, models, tmp_path
    ):
        version = mirror.upload(models[0], name, aliases=ALIASES, metadata={"step": 7})
        assert mirror.versions(name) == [version]
        assert mirror.aliases(name) == dict.fromkeys(("latest", *ALIASES), version)
        for label in (version, "latest", *ALIASES):
            fetched = mirror.download(f"{name}:{label}", tmp_path / "fetched" / label)
            assert (fetched.name, fetched.read_bytes()) == ("model.pt", models[0].read_bytes())
        assert (
            mirror.download(name, tmp_path / "fetched" / "bare").read_bytes()
            == models[0].read_bytes()
        )

    def test_aliases_move_with_an_upload_and_by_hand_both_ways(
        self, mirror, name, models, tmp_path
    ):
        first = mirror.upload(models[0], name, aliases=["best", "v1.0"])
        second = mirror.upload(models[1], name, aliases=["best"])
        assert mirror.versions(name) == [first, second]
        assert mirror.aliases(name) == {"best": second, "latest": second, "v1.0": first}
        mirror.set_alias(name, "best", first)
        assert mirror.aliases(name) == {"best": first, "latest": second, "v1.0": first}
        assert (
            mirror.download(f"{name}:best", tmp_path / "fetched").read_bytes()
            == models[0].read_bytes()
        )

    def test_the_same_file_again_is_the_same_version_and_takes_the_new_aliases(
        self, mirror, name, models
    ):
        version = mirror.upload(models[0], name, aliases=["best"])
        assert mirror.upload(models[0], name, aliases=["best", "final"]) == version
        assert mirror.versions(name) == [version]
        assert mirror.aliases(name) == {"best": version, "final": version, "latest": version}

    def test_a_deleted_version_is_gone_with_its_aliases_and_the_rest_stays(
        self, mirror, name, models, tmp_path
    ):
        first = mirror.upload(models[0], name, aliases=["stable"])
        second = mirror.upload(models[1], name, aliases=["best"])
        mirror.delete(name, second)
        assert mirror.versions(name) == [first]
        assert "best" not in mirror.aliases(name)
        assert mirror.aliases(name)["stable"] == first
        with pytest.raises(TrackingError, match="best"):
            mirror.download(f"{name}:best", tmp_path / "fetched")
        assert (
            mirror.download(f"{name}:stable", tmp_path / "fetched").read_bytes()
            == models[0].read_bytes()
        )

    def test_what_is_not_there_is_said_so(self, mirror, name, models, tmp_path):
        assert (mirror.versions(name), mirror.aliases(name)) == ([], {})
        with pytest.raises(TrackingError, match=name):
            mirror.download(f"{name}:best", tmp_path)
        mirror.upload(models[0], name)
        with pytest.raises(TrackingError, match="v99"):
            mirror.download(f"{name}:v99", tmp_path)

    def test_hostile_names_are_refused_before_anything_happens(
        self, mirror, name, models, tmp_path
    ):
        for hostile in HOSTILE:
            with pytest.raises(RegistryError):
                mirror.upload(models[0], hostile)
            with pytest.raises(RegistryError):
                mirror.upload(models[0], name, aliases=[hostile])
            with pytest.raises(RegistryError):
                mirror.download(f"{name}:{hostile}", tmp_path / "fetched")
        with pytest.raises(RegistryError):
            mirror.upload(models[0], name, aliases=["v3"])
        assert mirror.versions(name) == []
        assert not (tmp_path / "fetched").exists()


def test_an_unknown_mirror_names_the_nearest():
    with pytest.raises(ConfigError, match="mlflow"):
        open_mirror("mlflw")


def test_a_disabled_mirror_cannot_be_opened():
    with pytest.raises(ConfigError, match="disabled"):
        open_mirror("wandb", mode="disabled")
