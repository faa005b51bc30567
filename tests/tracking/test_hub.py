"""Models on the Hugging Face hub: the real client against a stand-in for the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hub_emulator import TOKEN, USER
from huggingface_hub.errors import LocalEntryNotFoundError

from navrl.cli import main
from navrl.errors import RegistryError, TrackingError
from navrl.registry import Registry
from navrl.tracking.backends import open_backend


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"weights" * 1000)
    return path


def told(capsys, *words, code=0):
    assert main(["models", *words]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


PROGRAM = """
import sys
from navrl.cli import main
main(["models", "push", "drone:best", "--mirror", "hf", "--registry", "here"])
main(["models", "pull", "ada/drone:best", "--mirror", "hf", "--registry", "there"])
"""


@pytest.mark.slow
def test_push_and_pull_carry_a_model_its_alias_and_its_card(hub, model, tmp_path):
    with Registry(tmp_path / "here") as registry:
        registry.register("drone", model, aliases=["best"], metrics={"success_100": 0.9})
    place = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=os.environ | place,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("drone:v1 is v1 in hf\nada/drone:best of hf is drone:v1 (best")
    repository = hub.repositories["ada/drone"]
    files = repository.commits[-1][1]
    assert repository.private
    assert files["README.md"].startswith(b"---\nlibrary_name: navrl\n")
    assert json.loads(files["navrl.json"])["versions"]["v1"]["metrics"] == {"success_100": 0.9}
    with Registry(tmp_path / "there") as registry:
        assert registry.resolve("drone:best").path.read_bytes() == model.read_bytes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["push", "x", "--mirror", "hff"],
            "no mirror 'hff'; there are wandb, mlflow, trackio, hf.",
        ),
        (["pull", "a/b/c:best", "--mirror", "huggingface"], "expected USER/NAME:ALIAS on the hub"),
        (["push", "x", "--mirror", "queued"], "there are wandb, mlflow, trackio, hf"),
        (
            ["pull", "a/b:best", "--mirror", "hf", "--option", "privat=false"],
            "hf has no option 'privat'; there are user, private, endpoint, project, folder. Did "
            "you mean 'private'?",
        ),
        (["pull", "a/b/c:best", "--mirror", "hf"], "expected USER/NAME:ALIAS on the hub"),
    ],
)
def test_a_wrong_mirror_or_place_is_told_with_the_right_ones(words, expected, tmp_path, capsys):
    assert expected in told(capsys, *words, "--registry", str(tmp_path / "r"), code=2)


def test_without_a_token_the_error_says_how_to_sign_in(hub, model, tmp_path, monkeypatch):
    backend = open_backend("hf", endpoint=hub.url)
    backend.upload(model, "secret")
    monkeypatch.delenv("HF_TOKEN")
    stranger = open_backend("hf", user=USER, endpoint=hub.url)
    with pytest.raises(
        TrackingError, match=r"no repository ada/secret, or it is private.*HF_TOKEN"
    ):
        stranger.download("secret:latest", tmp_path)
    with pytest.raises(TrackingError, match="Sign in with `hf auth login`"):
        stranger.upload(model, "another")
    assert "ada/another" not in hub.repositories


def test_an_upload_that_another_one_overtook_keeps_both(hub, model, tmp_path):
    backend, other = (open_backend("hf", endpoint=hub.url) for _ in range(2))
    backend.upload(model, "shared")
    second, third = (tmp_path / name for name in ("second.pt", "third.pt"))
    second.write_bytes(b"2"), third.write_bytes(b"3")

    def overtake():
        assert other.upload(second, "shared", aliases=["theirs"]) == "v2"

    hub.before_commit.append(overtake)
    assert backend.upload(third, "shared", aliases=["ours"]) == "v3"
    assert backend.aliases("shared") == {"latest": "v3", "theirs": "v2", "ours": "v3"}


def test_a_damaged_download_is_refused(hub, model, tmp_path):
    backend = open_backend("hf", endpoint=hub.url)
    backend.upload(model, "damaged")
    hub.repositories["ada/damaged"].commits[-1][1]["v1/model.pt"] = b"other"
    with pytest.raises(TrackingError, match="SHA-256"):
        backend.download("damaged:v1", tmp_path)


def test_a_connection_lost_while_the_index_is_read_changes_nothing(
    hub, model, tmp_path, monkeypatch
):
    backend = open_backend("hf", endpoint=hub.url)
    backend.upload(model, "kept", aliases=["best"])
    commits = len(hub.repositories["ada/kept"].commits)
    other = tmp_path / "other.pt"
    other.write_bytes(b"other")

    def lost(*_, **__):  # what the client raises when it cannot connect
        raise LocalEntryNotFoundError("cannot locate the file on the Hub")

    monkeypatch.setattr(backend._api, "hf_hub_download", lost)
    with pytest.raises(LocalEntryNotFoundError):
        backend.upload(other, "kept")
    assert len(hub.repositories["ada/kept"].commits) == commits


GOOD = {"file": "model.pt", "sha256": "00"}


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"format": 2, "next": 1, "versions": {}, "aliases": {}}',
        json.dumps(
            {"format": 1, "next": 2, "versions": {"v1": GOOD | {"file": "../up"}}, "aliases": {}}
        ).encode(),
        json.dumps({"format": 1, "next": 2, "versions": {"v1/..": GOOD}, "aliases": {}}).encode(),
        json.dumps(
            {"format": 1, "next": 2, "versions": {"v1": GOOD}, "aliases": {"best": "v9"}}
        ).encode(),
    ],
)
def test_a_strangers_index_is_refused_by_name(hub, content, tmp_path):
    hub.repositories.pop("ada/strange", None)
    backend = open_backend("hf", endpoint=hub.url)
    backend._api.create_repo("ada/strange")
    hub.repositories["ada/strange"].commit({"navrl.json": content})
    with pytest.raises((TrackingError, RegistryError), match=r"navrl\.json of ada/strange"):
        backend.download("strange:v1", tmp_path)


def test_what_is_public_needs_no_token(hub, model, tmp_path, monkeypatch):
    open_backend("hf", endpoint=hub.url, private="false").upload(model, "open")
    monkeypatch.delenv("HF_TOKEN")
    fetched = open_backend("hf", user=USER, endpoint=hub.url).download("open", tmp_path / "f")
    assert fetched.read_bytes() == model.read_bytes()
    assert TOKEN not in json.dumps(hub.requests)
