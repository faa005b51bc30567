"""The registry with real files: versions, aliases, stages, pruning, damage."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from navrl.errors import RegistryError
from navrl.io import AsyncCheckpointSaver, save_checkpoint
from navrl.registry import Registry, default_root
from navrl.registry.blob_contents import MODEL_KIND

NO_GIT = {"git": {}}


def objects(registry: Registry) -> list[Path]:
    return sorted(path for path in (registry.root / "objects").glob("??/*") if path.is_file())


def test_a_registered_file_is_found_by_name_version_and_alias(registry, put, tmp_path):
    version = put(
        content="weights",
        aliases=["best"],
        metrics={"success": 0.9},
        tags={"robot": "small"},
        notes="good",
    )
    for reference in (
        "policy",
        "policy:latest",
        "policy:best",
        "policy:v1",
        "ada/drones/policy:best",
        version,
    ):
        assert registry.resolve(reference) == version
    assert version.path.read_text() == "weights"
    assert (version.name, version.version, version.label) == ("policy", 1, "policy:v1")
    assert version.aliases == ("best", "latest")
    assert (version.metrics, version.tags, version.notes) == (
        {"success": 0.9},
        {"robot": "small"},
        "good",
    )
    assert (version.size, version.stage, version.kind, version.parent) == (7, "none", "file", None)
    json.dumps(version.as_dict())


def test_a_registry_is_found_again_by_another_process_or_object(registry, put):
    put(aliases=["best"])
    with Registry(registry.root) as again:
        assert again.resolve("policy:best") == registry.resolve("policy:best")


def test_latest_moves_with_every_registration_whatever_aliases_are_asked_for(registry, put):
    for number in (1, 2, 3):
        put(aliases=[])
        assert registry.resolve("policy").version == number


def test_the_same_content_is_stored_once(registry, put):
    first, second = put(content="same"), put("other", content="same")
    assert first.path == second.path
    assert len(objects(registry)) == 1
    registry.delete("policy", 1, force=True)
    assert second.path.is_file()
    registry.delete("other", "v1", force=True)
    assert objects(registry) == []


def test_the_registered_copy_does_not_change_with_its_source(registry, put, tmp_path):
    version = put(content="before")
    (tmp_path / "file.pt").write_text("behind")
    assert version.path.read_text() == "before"
    assert not os.stat(version.path).st_mode & 0o222


def test_reading_from_a_registry_that_is_not_there_makes_none(tmp_path):
    with Registry(tmp_path / "none") as registry:
        assert registry.models() == []
        assert registry.verify() == []
        assert registry.collect_garbage(dry_run=True).files == ()
        with pytest.raises(RegistryError, match="no model 'policy'"):
            registry.resolve("policy")
    assert not (tmp_path / "none").exists()


def test_the_number_of_a_deleted_version_is_not_given_again(registry, put):
    put(), put()
    registry.delete("policy", 2, force=True)
    assert registry.resolve("policy").version == 1  # latest moved back
    assert put().version == 3
    for version in (1, 3):
        registry.delete("policy", version, force=True)
    assert registry.models() == []
    assert put().version == 4


def test_a_version_with_an_alias_is_deleted_only_by_force(registry, put):
    put(aliases=["best", "stable"]), put()
    with pytest.raises(RegistryError, match="has the aliases best, stable; move them"):
        registry.delete("policy", 1)
    registry.delete("policy", 1, force=True)
    with pytest.raises(RegistryError, match="no 'best'"):
        registry.resolve("policy:best")


def test_pruning_keeps_the_last_those_with_aliases_and_those_in_use(registry, put):
    for _ in range(8):
        put()
    registry.set_alias("policy", "best", 2)
    registry.promote("policy:v3", "staging")
    registry.promote("policy:v4", "production")
    registry.promote("policy:v5", "archived")
    would = registry.prune("policy", 2, dry_run=True)
    assert [version.version for version in would] == [1, 5, 6]
    assert len(registry.versions("policy")) == 8
    assert [version.version for version in registry.prune("policy", keep_last_n=2)] == [1, 5, 6]
    assert [version.version for version in registry.versions("policy")] == [2, 3, 4, 7, 8]
    assert len(objects(registry)) == 5
    assert registry.prune("policy", 2) == []


@pytest.mark.parametrize("keep", [0, -1, True, "3", None])
def test_pruning_refuses_a_number_that_makes_no_sense(registry, put, keep):
    put()
    with pytest.raises(RegistryError, match="keep_last_n"):
        registry.prune("policy", keep)


def test_rolling_back_goes_one_step_further_each_time(registry, put):
    for _ in range(3):
        put(aliases=["best"])
    assert registry.rollback("policy", "best").version == 2
    assert registry.rollback("policy", "best").version == 1
    with pytest.raises(RegistryError, match="no earlier version"):
        registry.rollback("policy", "best")
    assert [(move.old, move.new, move.reason) for move in registry.history("policy", "best")] == [
        (None, 1, "register"),
        (1, 2, "register"),
        (2, 3, "register"),
        (3, 2, "rollback"),
        (2, 1, "rollback"),
    ]
    registry.set_alias("policy", "best", 3)
    assert registry.rollback("policy", "best").version == 1


def test_rolling_back_skips_what_was_deleted_and_brings_back_what_was_removed(registry, put):
    for _ in range(3):
        put(aliases=["best"])
    registry.delete("policy", 2)
    assert registry.rollback("policy", "best").version == 1
    registry.remove_alias("policy", "best")
    assert registry.rollback("policy", "best").version == 1


def test_production_has_one_version_and_the_alias_goes_with_it(registry, put):
    put(stage="production"), put(aliases=["prod"]), put()
    assert [version.stage for version in registry.versions("policy")] == [
        "archived",
        "production",
        "none",
    ]
    assert registry.promote("policy:latest", "production").aliases == ("latest", "prod")
    assert [version.stage for version in registry.versions("policy")] == [
        "archived",
        "archived",
        "production",
    ]
    assert registry.rollback("policy", "prod").version == 2
    assert [version.stage for version in registry.versions("policy")] == [
        "archived",
        "production",
        "archived",
    ]
    with pytest.raises(RegistryError, match="is in production"):
        registry.promote("policy:prod", "archived")
    registry.remove_alias("policy", "prod")
    assert "production" not in [version.stage for version in registry.versions("policy")]


def test_promoting_to_an_alias_moves_the_alias(registry, put):
    put(), put()
    assert registry.promote("policy:v1", "v1.0").aliases == ("v1.0",)
    assert registry.resolve("policy:v1.0").version == 1


def test_a_stage_and_an_alias_that_contradict_each_other_are_refused(registry, put):
    with pytest.raises(RegistryError, match="contradict"):
        put(aliases=["prod"], stage="staging")
    with pytest.raises(RegistryError, match="none, staging, production, archived"):
        put(stage="live")
    assert registry.models() == []


def test_tags_are_added_and_removed(registry, put):
    put(tags=["fast", "small"])
    assert registry.tag("policy", {"robot": "x"}, remove=["fast"]).tags == {
        "small": "",
        "robot": "x",
    }
    assert registry.resolve("policy").tags == {"small": "", "robot": "x"}


def test_the_parent_is_remembered_as_the_version_that_it_was(registry, put):
    put(aliases=["best"])
    child = put(lineage={**NO_GIT, "parent": "policy:best"})
    registry.set_alias("policy", "best", 2)
    assert child.parent == registry.resolve("policy:v2").parent == "policy:v1"
    with pytest.raises(RegistryError, match="no model 'nobody'"):
        put(content="orphan", lineage={"parent": "nobody:best"})
    assert len(objects(registry)) == 2


def test_numbers_of_torch_and_not_finite_ones_are_metrics_too(put):
    version = put(metrics={"loss": torch.tensor(0.5), "nan": float("nan"), "steps": 7})
    assert version.metrics == {"loss": 0.5, "nan": None, "steps": 7}


@pytest.mark.parametrize(
    "options",
    [
        {"metrics": {"a": "much"}},
        {"metrics": {"a": True}},
        {"metrics": {3: 1.0}},
        {"metrics": [1]},
        {"metrics": {"": 1}},
        {"metrics": {"a\nb": 1}},
        {"metrics": {"a": torch.ones(3)}},
        {"tags": "word"},
        {"tags": 3},
        {"tags": {"a": 3}},
        {"tags": {"../a": "b"}},
        {"notes": None},
        {"notes": "a\0b"},
        {"notes": "\ud800"},
        {"notes": "x" * 200_000},
        {"lineage": {"f": print}},
        {"lineage": {"parent": 3}},
        {"lineage": [1]},
        {"aliases": "best"},
        {"aliases": ["v3"]},
        {"aliases": [None]},
    ],
    ids=lambda options: ascii(options)[:40],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_left(registry, put, options):
    with pytest.raises(RegistryError):
        put(**options)
    assert registry.models() == []
    assert objects(registry) == []


@pytest.mark.parametrize("kind", ["missing", "empty", "folder", "device", "pipe"])
def test_a_source_that_is_no_file_is_refused_by_name(registry, tmp_path, kind):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    path = {"folder": tmp_path, "device": Path("/dev/null")}.get(kind, tmp_path / kind)
    with pytest.raises(RegistryError, match=path.name):
        registry.register("policy", path)
    assert objects(registry) == []


def test_a_damaged_model_is_refused_and_not_kept(registry, tmp_path):
    path = tmp_path / "model.pt"
    save_checkpoint({"weights": torch.rand(1000)}, path)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(RegistryError, match=r"model\.pt is damaged.*weights"):
        registry.register("policy", path, lineage=NO_GIT)
    assert objects(registry) == []


def test_a_checkpoint_of_differences_is_refused(registry, tmp_path):
    weights = torch.rand(10_000)
    with AsyncCheckpointSaver(delta_chain=4) as saver:
        for number in range(2):
            saver.save_async({"weights": weights}, tmp_path / f"{number}.pt")
            saver.flush()
            weights += 1e-6
    registry.register("policy", tmp_path / "0.pt", lineage=NO_GIT)
    with pytest.raises(RegistryError, match="navrl convert"):
        registry.register("policy", tmp_path / "1.pt", lineage=NO_GIT)


def test_a_damaged_file_is_named_with_its_version_and_mended_by_registering_it_again(registry, put):
    put(content="whole"), put(content="also whole")
    path = registry.resolve("policy:v1").path
    path.chmod(0o644)
    path.write_text("whale")
    assert [(damage.label, damage.path) for damage in registry.verify()] == [("policy:v1", path)]
    assert "damaged" in registry.verify()[0].problem
    path.write_text("shorter than")
    assert "bytes" in registry.verify()[0].problem
    path.unlink()
    assert "missing" in registry.verify()[0].problem
    put(content="whole")
    assert registry.verify() == []
    assert registry.resolve("policy:v1").path.read_text() == "whole"


def test_what_is_deleted_while_it_is_verified_is_not_damaged(registry, put, monkeypatch):
    put(), put()
    fault = registry._blobs.fault

    def deleting_first(stored):
        with Registry(registry.root) as other:
            for version in other.versions("policy")[:-1]:
                other.delete("policy", version.version, force=True)
        return fault(stored)

    monkeypatch.setattr(registry._blobs, "fault", deleting_first)
    assert registry.verify() == []


def test_garbage_is_found_counted_and_removed_and_nothing_else(registry, put):
    kept = put(content="kept")
    folder = registry.root / "objects" / "ab"
    folder.mkdir()
    stray = folder / ("c" * 62)
    temporary = folder / ".navrl-0123456789abcdef.tmp"
    foreign = folder / "notes.txt"
    for path in (stray, temporary, foreign):
        path.write_text("12345")
    deleted = put(content="deleted", name="other")
    with (
        registry._writing() as rows
    ):  # as a process leaves it that is killed between the row and the file
        rows.move("other", "latest", None, "delete")
        rows.delete(deleted)
    would, found = registry.collect_garbage(dry_run=True), registry.collect_garbage()
    assert would == found
    assert set(found.files) == {deleted.path, temporary}
    assert (found.bytes, found.quarantined) == (7, (stray,))
    assert objects(registry) == sorted([foreign, kept.path])


def test_a_file_that_nothing_is_known_about_is_kept_in_quarantine_until_that_is_purged(
    registry, put
):
    put()
    stray = registry.root / "objects" / "ab" / ("c" * 62)
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("12345")
    registry.collect_garbage()
    kept = registry.root / "quarantine" / ("ab" + "c" * 62)
    assert kept.read_text() == "12345"
    assert "navrl models repair" in (registry.root / "quarantine" / "README.txt").read_text()
    assert registry.collect_garbage().files == ()
    assert registry.collect_garbage(purge_quarantine=True, dry_run=True).files == (kept,)
    assert kept.exists()
    assert registry.collect_garbage(purge_quarantine=True).bytes == 5
    assert not kept.exists()


def test_one_registry_serves_many_threads(registry, put):
    put()
    threads = [
        threading.Thread(
            target=lambda n=n: [registry.tag("policy", [f"t{n}-{i}"]) for i in range(10)]
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.resolve("policy").tags) == 40


def test_a_database_that_is_none_is_told_by_its_path(tmp_path):
    (tmp_path / "registry.db").write_text("not a database " * 100)
    with pytest.raises(RegistryError, match=r"registry\.db"), Registry(tmp_path) as registry:
        registry.models()


def test_a_database_of_a_newer_version_is_refused(registry, put):
    put()
    registry.close()
    with sqlite3.connect(registry.root / "registry.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(RegistryError, match="upgrade navrl"):
        registry.models()


def test_a_registry_that_cannot_be_made_is_told_by_its_path(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "model").write_text("model")
    with pytest.raises(RegistryError, match="NAVRL_REGISTRY"):
        Registry(tmp_path / "file" / "registry").register("policy", tmp_path / "model")


def test_the_registry_lies_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "own"))
    assert default_root() == tmp_path / "own"
    monkeypatch.delenv("NAVRL_REGISTRY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data" / "navrl" / "registry"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".local" / "share" / "navrl" / "registry"


def test_no_test_writes_to_the_registry_of_the_user():
    assert Path.home() not in default_root().parents


def test_the_kind_of_a_model_file_is_the_one_that_models_have():
    from navrl.models import KIND

    assert MODEL_KIND == KIND


def test_a_checkpoint_whose_dicts_have_numpy_scalars_and_bytes_as_keys_is_registered(
    registry, tmp_path
):
    keys = {
        np.int64(1): "one",
        np.int64(2): "two",
        np.float32(0.5): "half",
        b"a": 1,
        b"b": 2,
        (np.int64(3), 0): 3,
    }
    save_checkpoint(
        {"config": {"seed": 7}, "ranks": [keys], "weights": np.arange(1 << 17)},
        tmp_path / "model.pt",
    )
    version = registry.register("policy", tmp_path / "model.pt", lineage={"git": {}})
    assert (version.kind, version.lineage["seed"]) == ("checkpoint", 7)
