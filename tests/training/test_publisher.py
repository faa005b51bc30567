"""What a training hands to the registry: the best, the last, every so often, and what happens when
that fails.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys

import pytest

from navrl.cli import main
from navrl.config import load_config
from navrl.errors import RegistryError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.registry.registry import Registry
from navrl.registry.upload_policy import UploadConditions, UploadPolicy
from navrl.tracking.tracker import Tracking
from navrl.training.saving.publisher import Publisher

CONDITION = "350 static + 80 moving"


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    with Registry() as registry:
        yield registry


@pytest.fixture
def publisher(registry, tmp_path):
    with Tracking(load_config([]).tracking, {}, tmp_path) as tracking:
        yield lambda **settings: Publisher(
            UploadPolicy(**{"name": "flyer", "max_retries": 0} | settings), tracking
        )


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock(registry, tmp_path):
    """A process that holds the registry's database until its input is closed."""
    registry.register("other", model(tmp_path, "other"))  # so that there is a database
    registry.close()
    command = [sys.executable, "-c", HOLD, str(registry.root / "registry.db")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    yield process
    process.communicate()


@pytest.fixture
def impatient(monkeypatch):
    """Wait tenths of a second for a registry where training waits seconds."""
    monkeypatch.setattr("navrl.training.saving.publisher.DEADLINE", 0.1)
    monkeypatch.setattr("navrl.training.saving.publisher.LAST_DEADLINE", 0.2)


def model(folder, number=0):
    path = folder / f"model_{number}.pt"
    save_checkpoint({"number": number}, path)
    return path


def waiting(folder):
    return sorted(file.name for file in (folder / "unregistered").glob("*.pt"))


def test_only_a_better_model_becomes_the_best(publisher, registry, tmp_path):
    training = publisher()
    for number, success in enumerate([0.5, 0.4, 0.7]):
        training.publish(
            model(tmp_path, number), number + 1, {"success_100": success}, condition=CONDITION
        )
    assert {version.metrics["success_100"] for version in registry.versions("flyer")} == {0.5, 0.7}
    assert registry.resolve("flyer:best").metrics["success_100"] == 0.7
    assert registry.resolve("flyer:best-350-static-80-moving") == registry.resolve("flyer:best")


def test_the_best_of_an_earlier_training_is_not_replaced_by_a_worse_one(
    publisher, registry, tmp_path
):
    publisher().publish(model(tmp_path, 0), 1, {"success_100": 0.9}, condition=CONDITION)
    told = publisher().publish(model(tmp_path, 1), 1, {"success_100": 0.6}, condition=CONDITION)
    assert told == ""
    assert registry.resolve("flyer:best").metrics["success_100"] == 0.9


def test_models_under_other_obstacles_have_a_best_of_their_own_and_take_nothing_away(
    publisher, registry, tmp_path
):
    publisher().publish(model(tmp_path, 0), 1, {"success_100": 0.9}, condition=CONDITION)
    for number in range(1, 9):
        publisher().publish(
            model(tmp_path, number), 1, {"success_100": number / 100}, condition="50 static"
        )
    assert registry.resolve("flyer:best").metrics["success_100"] == 0.9
    assert registry.resolve("flyer:best-350-static-80-moving").metrics["success_100"] == 0.9
    assert registry.resolve("flyer:best-50-static").metrics["success_100"] == 0.08
    assert (
        publisher().publish(model(tmp_path, 9), 1, {"success_100": 0.3}, condition=CONDITION) == ""
    )


def test_what_is_best_is_what_the_policy_says(publisher, registry, tmp_path):
    training = publisher(best_model_metric="static_collision", best_model_mode="min")
    training.publish(
        model(tmp_path), 1, {"success_100": 0.9, "static_collision": 0.1}, condition=CONDITION
    )
    assert training.wants({"success_100": 0.5, "static_collision": 0.05}, CONDITION)
    assert not training.wants({"success_100": 0.95, "static_collision": 0.2}, CONDITION)


def test_old_versions_that_cannot_be_dropped_are_a_warning_and_no_second_version(
    publisher, registry, tmp_path, monkeypatch
):
    def fail(*_):
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(Registry, "prune", fail)
    with pytest.warns(RuntimeWarning, match="old versions of flyer were not pruned"):
        assert publisher().publish(model(tmp_path), 1, {"success_100": 0.5}, condition=CONDITION)
    assert len(registry.versions("flyer")) == 1


def test_the_final_model_is_the_best_one_under_one_more_name(publisher, registry, tmp_path):
    training, path = publisher(), model(tmp_path)
    training.publish(path, 1, {"success_100": 0.5}, condition=CONDITION)
    assert "end of the training" in training.publish(path, 4, {}, final=True)
    assert len(registry.versions("flyer")) == 1
    assert registry.resolve("flyer:final") == registry.resolve("flyer:best")
    assert registry.resolve("flyer:final").metrics["success_100"] == 0.5


def test_a_model_that_does_not_meet_the_conditions_is_kept_only_at_the_end(
    publisher, registry, tmp_path
):
    training = publisher(upload_conditions=UploadConditions(min_success_rate=0.8))
    assert training.publish(model(tmp_path, 0), 1, {"success_100": 0.7}, condition=CONDITION) == ""
    assert training.publish(model(tmp_path, 0), 2, {}, final=True)
    assert [version.aliases for version in registry.versions("flyer")] == [("final", "latest")]


def test_old_versions_without_an_alias_go(publisher, registry, tmp_path):
    training = publisher(upload_frequency=1, save_best_models=False, keep_last_n=2)
    for number in range(5):
        training.publish(model(tmp_path, number), 10 * number, {}, save=number + 1)
    assert len(registry.versions("flyer")) == 2


def test_every_nth_checkpoint_is_due_and_nothing_between_checkpoints(publisher):
    assert [publisher(upload_frequency=3).due(save) for save in (0, 3, 4, 6)] == [
        False,
        True,
        False,
        True,
    ]
    assert not publisher().due(3)


def test_a_model_names_the_version_that_its_training_began_with_as_long_as_that_is_there(
    publisher, registry, tmp_path
):
    registry.register("other", model(tmp_path, "first"))
    training = publisher(upload_frequency=1)
    training.parent = "other:latest"
    training.publish(model(tmp_path, 0), 1, {}, save=1)
    assert registry.resolve("flyer:v1").lineage["parent"] == "other:v1"
    registry.delete("other", 1, force=True)
    training.publish(model(tmp_path, 1), 2, {}, save=2)
    assert "parent" not in registry.resolve("flyer:v2").lineage


def test_a_registry_that_fails_is_a_warning_and_training_goes_on(
    publisher, registry, tmp_path, monkeypatch
):
    monkeypatch.setenv("NAVRL_REGISTRY", str(model(tmp_path)))  # a file where the folder should be
    with pytest.warns(RuntimeWarning, match="iteration 7 was not registered"):
        assert publisher().publish(model(tmp_path), 7, {"success_100": 0.5}) == ""


def test_a_registry_that_fails_is_an_error_for_those_who_want_it(publisher, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(model(tmp_path)))
    with pytest.raises(RegistryError, match="iteration 7 was not registered"):
        publisher(continue_on_upload_failure=False).publish(
            model(tmp_path), 7, {"success_100": 0.5}
        )


@pytest.mark.usefixtures("impatient")
def test_models_of_a_locked_registry_wait_and_are_registered_in_the_order_of_the_training(
    publisher, registry, lock, tmp_path
):
    path = tmp_path / "model.pt"
    training = publisher(max_retries=9)

    def publish(number: int) -> str:
        save_checkpoint({"number": number}, path)  # the same file, as a training writes it
        return training.publish(path, number, {"success_100": number / 10}, condition=CONDITION)

    with pytest.warns(RuntimeWarning, match="database is locked"):
        assert publish(1) == ""
    assert [publish(2), publish(3)] == ["", ""]  # warned once
    assert waiting(tmp_path) == [f"iteration_{number:06d}.pt" for number in range(1, 4)]
    lock.communicate()  # the other process ends
    assert publish(4).count("registered as") == 4
    numbers = [load_checkpoint(version.path)["number"] for version in registry.versions("flyer")]
    assert numbers == [1, 2, 3, 4]
    assert registry.resolve("flyer:best").version == 4
    assert registry.resolve("flyer:v2").lineage["file"] == str(path)
    assert not (tmp_path / "unregistered").exists()


@pytest.mark.usefixtures("impatient")
def test_a_registry_that_stays_locked_is_told_with_the_command_that_registers_by_hand(
    publisher, registry, lock, tmp_path
):
    with pytest.warns(RuntimeWarning) as warned, publisher() as training:
        training.publish(model(tmp_path), 7, {"success_100": 0.5}, final=True)
    command = str(warned[-1].message).split("`")[1]
    assert command.startswith("navrl models register flyer ")
    lock.communicate()
    assert main(command.split()[1:]) == 0
    assert load_checkpoint(registry.resolve("flyer:final").path) == {"number": 0}


def successes(registry):
    return [version.metrics["success_100"] for version in registry.versions("flyer")]


def publish_some(training, folder, numbers):
    """Publish models, each better than the one before, and return what was said about the last."""
    told = ""
    for number in numbers:
        metrics = {"success_100": number / 100}
        told = training.publish(model(folder, number), number, metrics, condition=CONDITION)
    return told


@pytest.mark.filterwarnings("ignore:the model of iteration")
@pytest.mark.usefixtures("impatient")
def test_however_long_the_registry_was_locked_the_next_model_brings_all_the_others_along(
    publisher, registry, lock, tmp_path
):
    training = publisher(max_retries=1, keep_last_n=0)
    assert publish_some(training, tmp_path, range(1, 6)) == ""
    lock.communicate()
    assert publish_some(training, tmp_path, [6]).count("registered as") == 6
    assert successes(registry) == [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]


@pytest.mark.usefixtures("impatient")
def test_a_model_that_cannot_be_registered_does_not_hold_up_the_others(
    publisher, registry, lock, tmp_path, recwarn
):
    with publisher(keep_last_n=0) as training:
        training.publish(model(tmp_path, 1), 1, {"success_100": 0.5}, condition="50 static")
        publish_some(training, tmp_path, [2])
        (tmp_path / "unregistered" / "iteration_000001.pt").write_bytes(b"")
        lock.communicate()
        publish_some(training, tmp_path, [3, 4])
        assert successes(registry) == [0.02, 0.03, 0.04]
    locked, empty, at_the_end = [str(warning.message) for warning in recwarn]  # each is told once
    assert "is locked" in locked
    assert "is empty" in empty
    assert "navrl models register flyer" in at_the_end
    assert waiting(tmp_path) == ["iteration_000001.pt"]


@pytest.mark.usefixtures("impatient")
def test_a_model_that_waited_and_is_not_the_best_any_more_is_told_and_dropped(
    publisher, registry, lock, tmp_path
):
    training = publisher()
    with pytest.warns(RuntimeWarning, match="iteration 1 was not registered"):
        publish_some(training, tmp_path, [1])
    lock.communicate()
    registry.register(
        "flyer", model(tmp_path, 9), metrics={"success_100": 0.9}, tags={"condition": CONDITION}
    )
    assert (
        publish_some(training, tmp_path, [2])
        == "the waiting model of iteration 1 is no longer wanted"
    )
    assert waiting(tmp_path) == []


@pytest.mark.usefixtures("impatient")
def test_what_failed_too_often_is_an_error_for_those_who_want_it_and_no_model_is_lost(
    publisher, registry, lock, tmp_path
):
    training = publisher(max_retries=1, continue_on_upload_failure=False)
    with pytest.warns(RuntimeWarning, match="iteration 1 was not registered"):
        publish_some(training, tmp_path, [1])
    with pytest.raises(RegistryError, match="iteration 1 was not registered"):
        publish_some(training, tmp_path, [2])
    assert waiting(tmp_path) == ["iteration_000001.pt", "iteration_000002.pt"]


@pytest.mark.usefixtures("impatient")
def test_asking_for_a_model_and_publishing_it_wait_one_deadline_together(
    publisher, registry, lock, tmp_path, monkeypatch
):
    deadlines = []

    class Noting(Registry):
        def __init__(self, *, deadline):
            deadlines.append(deadline)
            super().__init__(deadline=deadline)

    monkeypatch.setattr("navrl.training.saving.publisher.Registry", Noting)
    training = publisher()
    assert training.wants({"success_100": 0.5}, CONDITION)
    with pytest.warns(RuntimeWarning, match="database is locked"):
        publish_some(training, tmp_path, [1])
    assert len(deadlines) == 2
    assert sum(deadlines) < 0.15


KILLED = """
import os, signal, sys, warnings
from pathlib import Path
from navrl.registry.upload_policy import UploadPolicy
from navrl.tracking.tracker import Tracking
from navrl.tracking.tracker_settings import TrackingSettings
from navrl.training.saving import publisher as publish
publish.DEADLINE = publish.LAST_DEADLINE = 0.1
warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
training = publish.Publisher(UploadPolicy(name="flyer"), Tracking(TrackingSettings(), {}, folder))
for number in (1, 2):
    training.publish(folder / f"model_{number}.pt", number, {"success_100": number / 100}, condition=sys.argv[2])
training.publish(folder / "model_2.pt", 2, {}, condition=sys.argv[2], final=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_models_that_wait_when_the_training_is_killed_are_registered_when_it_is_resumed(
    publisher, registry, lock, tmp_path
):
    for number in (1, 2):
        model(tmp_path, number)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), CONDITION])
    assert killed.returncode == -signal.SIGKILL
    assert waiting(tmp_path) == ["final_000002.pt", "iteration_000001.pt", "iteration_000002.pt"]
    lock.communicate()
    with publisher() as training:
        assert training.wants({"success_100": 0.03}, CONDITION)
        assert not training.wants({"success_100": 0.01}, CONDITION)
    assert successes(registry) == [0.01, 0.02]
    final = registry.resolve("flyer:final")
    assert final == registry.resolve("flyer:best")
    assert (final.tags["condition"], final.lineage["file"]) == (
        CONDITION,
        str(tmp_path / "model_2.pt"),
    )
    assert not (tmp_path / "unregistered").exists()


@pytest.mark.usefixtures("impatient")
def test_while_the_registry_is_locked_what_waits_is_what_a_model_must_beat(
    publisher, registry, lock, tmp_path
):
    training = publisher()
    with pytest.warns(RuntimeWarning, match="registered as soon as"):
        training.publish(model(tmp_path), 1, {"success_100": 0.5}, condition=CONDITION)
    assert training.wants({"success_100": 0.6}, CONDITION)
    assert not training.wants({"success_100": 0.4}, CONDITION)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_training_comes_to_its_end_while_another_process_holds_the_registry(
    registry, lock, tmp_path
):
    words = [
        "preset=smoke",
        "headless=True",
        "processes=1",
        "env.num_envs=64",
        "max_frame_num=2048",
        "flight.episodes=16",
        f"run_folder={tmp_path / 'run'}",
        "registry.name=flyer",
    ]
    with pytest.warns(RuntimeWarning, match="navrl models register flyer"):
        assert main(["train", *words]) == 0
    assert lock.poll() is None
    assert [*(tmp_path / "run" / "unregistered").iterdir()]


def test_without_a_name_nothing_is_registered(registry, tmp_path):
    with Tracking(load_config([]).tracking, {}, tmp_path) as tracking:
        assert (
            Publisher(UploadPolicy(name=""), tracking).publish(
                model(tmp_path), 1, {"success_100": 1.0}
            )
            == ""
        )
    assert registry.models() == []


def test_what_the_last_evaluation_found_stands_beside_the_version(publisher, registry, tmp_path):
    training = publisher()
    training.publish(model(tmp_path), 1, {"success_100": 0.5}, condition=CONDITION)
    periodic = publisher(upload_frequency=1)
    assert periodic.tag_final_evaluation(model(tmp_path), {}) == ""
    row = {
        "success_rate": 0.8125,
        "outcomes": {"success_100": {"low": 0.79, "high": 0.83}},
        "episodes": 2048,
        "worlds": 32,
    }
    label = training.tag_final_evaluation(model(tmp_path), {CONDITION: row})
    assert label == registry.resolve("flyer:best").label
    assert registry.resolve("flyer:best").tags["judged"] == (
        f"{CONDITION}: 81.2 % (79.0 - 83.0), 2048 episodes in 32 worlds"
    )
