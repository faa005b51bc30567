"""What a training hands to the registry: the best, the last, every so often, and what happens when that fails."""

from __future__ import annotations

import sqlite3

import pytest

from navrl.config import load_config
from navrl.errors import RegistryError
from navrl.io.checkpoint import save_checkpoint
from navrl.registry.store import Registry
from navrl.registry.upload_policy import UploadConditions, UploadPolicy
from navrl.tracking.recorder import Tracking
from navrl.train.publish import Publisher

CONDITION = "350 static + 80 moving"


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    with Registry() as registry:
        yield registry


@pytest.fixture
def publisher(registry, tmp_path):
    with Tracking(load_config([]).tracking, {}, tmp_path) as tracking:
        yield lambda **settings: Publisher(UploadPolicy(name="flyer", max_retries=0, **settings), tracking)


def model(folder, number=0):
    path = folder / f"model_{number}.pt"
    save_checkpoint({"number": number}, path)
    return path


def test_only_a_better_model_becomes_the_best(publisher, registry, tmp_path):
    training = publisher()
    for number, success in enumerate([0.5, 0.4, 0.7]):
        training.publish(model(tmp_path, number), number + 1, {"success_100": success}, condition=CONDITION)
    assert {version.metrics["success_100"] for version in registry.versions("flyer")} == {0.5, 0.7}
    assert registry.resolve("flyer:best").metrics["success_100"] == 0.7
    assert registry.resolve("flyer:best-350-static-80-moving") == registry.resolve("flyer:best")


def test_the_best_of_an_earlier_training_is_not_replaced_by_a_worse_one(publisher, registry, tmp_path):
    publisher().publish(model(tmp_path, 0), 1, {"success_100": 0.9}, condition=CONDITION)
    told = publisher().publish(model(tmp_path, 1), 1, {"success_100": 0.6}, condition=CONDITION)
    assert told == ""
    assert registry.resolve("flyer:best").metrics["success_100"] == 0.9


def test_models_under_other_obstacles_have_a_best_of_their_own_and_take_nothing_away(publisher, registry, tmp_path):
    publisher().publish(model(tmp_path, 0), 1, {"success_100": 0.9}, condition=CONDITION)
    for number in range(1, 9):
        publisher().publish(model(tmp_path, number), 1, {"success_100": number / 100}, condition="50 static")
    assert registry.resolve("flyer:best").metrics["success_100"] == 0.9
    assert registry.resolve("flyer:best-350-static-80-moving").metrics["success_100"] == 0.9
    assert registry.resolve("flyer:best-50-static").metrics["success_100"] == 0.08
    assert publisher().publish(model(tmp_path, 9), 1, {"success_100": 0.3}, condition=CONDITION) == ""


def test_what_is_best_is_what_the_policy_says(publisher, registry, tmp_path):
    training = publisher(best_model_metric="static_collision", best_model_mode="min")
    training.publish(model(tmp_path), 1, {"success_100": 0.9, "static_collision": 0.1}, condition=CONDITION)
    assert training.wants(2, {"success_100": 0.5, "static_collision": 0.05}, CONDITION)
    assert not training.wants(2, {"success_100": 0.95, "static_collision": 0.2}, CONDITION)


def test_old_versions_that_cannot_be_dropped_are_a_warning_and_no_second_version(publisher, registry, tmp_path, monkeypatch):
    def fail(*_):
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(Registry, "prune", fail)
    with pytest.warns(RuntimeWarning, match="old versions of flyer are still there"):
        assert publisher().publish(model(tmp_path), 1, {"success_100": 0.5}, condition=CONDITION)
    assert len(registry.versions("flyer")) == 1


def test_the_final_model_is_the_best_one_under_one_more_name(publisher, registry, tmp_path):
    training, path = publisher(), model(tmp_path)
    training.publish(path, 1, {"success_100": 0.5}, condition=CONDITION)
    assert "end of the training" in training.publish(path, 4, {}, final=True)
    assert len(registry.versions("flyer")) == 1
    assert registry.resolve("flyer:final") == registry.resolve("flyer:best")
    assert registry.resolve("flyer:final").metrics["success_100"] == 0.5


def test_a_model_that_does_not_meet_the_conditions_is_kept_only_at_the_end(publisher, registry, tmp_path):
    training = publisher(upload_conditions=UploadConditions(min_success_rate=0.8))
    assert training.publish(model(tmp_path, 0), 1, {"success_100": 0.7}, condition=CONDITION) == ""
    assert training.publish(model(tmp_path, 0), 2, {}, final=True)
    assert [version.aliases for version in registry.versions("flyer")] == [("final", "latest")]


def test_old_versions_without_an_alias_go(publisher, registry, tmp_path):
    training = publisher(upload_frequency=1, save_best_models=False, keep_last_n=2)
    for number in range(5):
        training.publish(model(tmp_path, number), number + 1, {})
    assert len(registry.versions("flyer")) == 2


def test_the_policy_says_when_a_model_may_be_due(publisher):
    assert [publisher(upload_frequency=3).due(iteration) for iteration in (3, 4, 6)] == [True, False, True]
    assert not publisher().due(3)


def test_a_registry_that_fails_is_a_warning_and_training_goes_on(publisher, registry, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(model(tmp_path)))  # a file where the folder should be
    with pytest.warns(RuntimeWarning, match="iteration 7 was not registered"):
        assert publisher().publish(model(tmp_path), 7, {"success_100": 0.5}) == ""


def test_a_registry_that_fails_is_an_error_for_those_who_want_it(publisher, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(model(tmp_path)))
    with pytest.raises(RegistryError, match="iteration 7 was not registered"):
        publisher(continue_on_upload_failure=False).publish(model(tmp_path), 7, {"success_100": 0.5})


def test_without_a_name_nothing_is_registered(registry, tmp_path):
    with Tracking(load_config([]).tracking, {}, tmp_path) as tracking:
        assert Publisher(UploadPolicy(name=""), tracking).publish(model(tmp_path), 1, {"success_100": 1.0}) == ""
    assert registry.models() == []


def test_what_the_last_evaluation_found_stands_beside_the_version(publisher, registry, tmp_path):
    training = publisher()
    training.publish(model(tmp_path), 1, {"success_100": 0.5}, condition=CONDITION)
    periodic = publisher(upload_frequency=1)
    assert periodic.judged(model(tmp_path), {}) == ""
    label = training.judged(model(tmp_path), {CONDITION: {"outcomes": {"success_100": {"share": 0.8125}}}})
    assert label == registry.resolve("flyer:best").label
    assert registry.resolve("flyer:best").tags["judged"] == f"{CONDITION}: 81.2 %"
