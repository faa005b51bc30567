"""One contract for every backend: the real clients of W&B, trackio and MLflow, and the queue."""

from __future__ import annotations

import itertools
import os

import pytest

from navrl.errors import ConfigError, RegistryError, TrackingError
from navrl.tracking.backends import RunInfo, open_backend

KINDS = ("local", "offline", "trackio", "mlflow", "mlflow_server", "wandb", "hf")
ALIASES = ("best", "v1.0", "Latest_2")
HOSTILE = ("../up", "a/b", "a b", "", ".", "..", "a:b", "a\0b", "-rf", "x" * 200, "con", "ä", "a\n")
FRESH = itertools.count()


@pytest.fixture(scope="session")
def opened(wandb_environment):
    backends = {}
    yield backends
    if "wandb" in backends:
        backends["wandb"].finish()


@pytest.fixture(params=KINDS)
def backend(request, wandb_environment, opened, tmp_path_factory):
    kind = request.param
    if kind == "hf":
        request.getfixturevalue("hub")  # its token, for every test
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
        elif kind == "hf":
            options["endpoint"] = request.getfixturevalue("hub").url
        elif kind == "local":
            pytest.importorskip("navrl.registry.registry")
            options = {"folder": folder}
        opened[kind] = open_backend(
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
class TestBackend:
    def test_a_model_comes_back_by_every_alias_and_by_its_version(
        self, backend, name, models, tmp_path
    ):
        version = backend.upload(models[0], name, aliases=ALIASES, metadata={"step": 7})
        assert backend.versions(name) == [version]
        assert backend.aliases(name) == dict.fromkeys(("latest", *ALIASES), version)
        for label in (version, "latest", *ALIASES):
            fetched = backend.download(f"{name}:{label}", tmp_path / "fetched" / label)
            assert (fetched.name, fetched.read_bytes()) == ("model.pt", models[0].read_bytes())
        assert (
            backend.download(name, tmp_path / "fetched" / "bare").read_bytes()
            == models[0].read_bytes()
        )

    def test_aliases_move_with_an_upload_and_by_hand_both_ways(
        self, backend, name, models, tmp_path
    ):
        first = backend.upload(models[0], name, aliases=["best", "v1.0"])
        second = backend.upload(models[1], name, aliases=["best"])
        assert backend.versions(name) == [first, second]
        assert backend.aliases(name) == {"best": second, "latest": second, "v1.0": first}
        backend.set_alias(name, "best", first)
        assert backend.aliases(name) == {"best": first, "latest": second, "v1.0": first}
        assert (
            backend.download(f"{name}:best", tmp_path / "fetched").read_bytes()
            == models[0].read_bytes()
        )

    def test_the_same_file_again_is_the_same_version_and_takes_the_new_aliases(
        self, backend, name, models
    ):
        version = backend.upload(models[0], name, aliases=["best"])
        assert backend.upload(models[0], name, aliases=["best", "final"]) == version
        assert backend.versions(name) == [version]
        assert backend.aliases(name) == {"best": version, "final": version, "latest": version}

    def test_a_deleted_version_is_gone_with_its_aliases_and_the_rest_stays(
        self, backend, name, models, tmp_path
    ):
        first = backend.upload(models[0], name, aliases=["stable"])
        second = backend.upload(models[1], name, aliases=["best"])
        backend.delete(name, second)
        assert backend.versions(name) == [first]
        assert "best" not in backend.aliases(name)
        assert backend.aliases(name)["stable"] == first
        with pytest.raises(TrackingError, match="best"):
            backend.download(f"{name}:best", tmp_path / "fetched")
        assert (
            backend.download(f"{name}:stable", tmp_path / "fetched").read_bytes()
            == models[0].read_bytes()
        )

    def test_what_is_not_there_is_said_so(self, backend, name, models, tmp_path):
        assert (backend.versions(name), backend.aliases(name)) == ([], {})
        with pytest.raises(TrackingError, match=name):
            backend.download(f"{name}:best", tmp_path)
        backend.upload(models[0], name)
        with pytest.raises(TrackingError, match="v99"):
            backend.download(f"{name}:v99", tmp_path)

    def test_hostile_names_are_refused_before_anything_happens(
        self, backend, name, models, tmp_path
    ):
        for hostile in HOSTILE:
            with pytest.raises(RegistryError):
                backend.upload(models[0], hostile)
            with pytest.raises(RegistryError):
                backend.upload(models[0], name, aliases=[hostile])
            with pytest.raises(RegistryError):
                backend.download(f"{name}:{hostile}", tmp_path / "fetched")
        with pytest.raises(RegistryError):
            backend.upload(models[0], name, aliases=["v3"])
        assert backend.versions(name) == []
        assert not (tmp_path / "fetched").exists()


def test_an_unknown_backend_names_the_nearest():
    with pytest.raises(ConfigError, match="mlflow"):
        open_backend("mlflw")


def test_a_disabled_backend_cannot_be_opened():
    with pytest.raises(ConfigError, match="disabled"):
        open_backend("wandb", mode="disabled")
