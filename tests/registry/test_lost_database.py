"""A database that is lost, emptied, damaged or out of date is rebuilt; no version is lost."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from injected import ROUNDS
from navrl.errors import RegistryError
from navrl.registry import Registry
from navrl.registry.database import Database
from navrl.registry.journal_sync import record


def remove(registry: Registry) -> None:
    for file in registry.root.glob("registry.db*"):
        file.unlink()


def empty(registry: Registry) -> None:
    remove(registry)
    (registry.root / "registry.db").touch()


LOSSES = {"missing": remove, "empty": empty}


@pytest.fixture
def filled(registry, put):
    """A registry with a history: three versions, one of them deleted, aliases that moved, a model
    of another name.
    """
    for _ in range(3):
        put(aliases=["best"], metrics={"success": 0.5})
    put("other", content="other", notes="kept")
    registry.promote("policy:v1", "production")
    registry.set_alias("policy", "best", 1)
    registry.tag("policy:v1", {"robot": "small"})
    registry.delete("policy", 3, force=True)
    registry.close()
    return registry


def everything(registry: Registry) -> list:
    versions = [version for model in registry.models() for version in registry.versions(model.name)]
    return [
        registry.models(),
        versions,
        registry.history("policy", "best"),
        registry.history("policy", "prod"),
    ]


def stored(registry: Registry) -> set[Path]:
    return set((registry.root / "objects").glob("??/*"))


@pytest.mark.usefixtures("one_fault")
@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_without_its_database_a_registry_knows_all_it_knew(filled, lose):
    before = everything(filled)
    filled.close()
    lose(filled)
    assert everything(filled) == before
    assert filled.verify() == []


@pytest.mark.usefixtures("one_fault")
@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_registering_and_collecting_after_the_loss_of_the_database_removes_no_model(
    filled, put, lose
):
    before = stored(filled)
    lose(filled)
    # v3 was deleted, and its number is not given again
    assert put(content="after the loss").version == 4
    garbage = filled.collect_garbage()
    assert (garbage.files, garbage.quarantined) == ((), ())
    assert before < stored(filled)
    assert filled.resolve("policy:v2").path.read_text() == "policy 2"


@pytest.mark.usefixtures("one_fault")
def test_a_database_that_goes_while_it_is_open_is_noticed(filled, put):
    assert filled.resolve("policy:best").version == 1
    remove(filled)
    assert put().version == 4
    with Registry(filled.root) as other:
        assert other.resolve("policy").version == 4


@pytest.mark.usefixtures("one_fault")
def test_an_older_copy_of_the_database_is_brought_up_to_date(filled, put):
    copy = filled.root / "copy.db"
    shutil.copy(filled.root / "registry.db", copy)
    put(aliases=["best"])
    filled.delete("other", 1, force=True)
    before = everything(filled)
    filled.close()
    os.replace(copy, filled.root / "registry.db")
    assert everything(filled) == before
    assert put().version == 5


@pytest.mark.usefixtures("one_fault")
def test_a_journal_that_is_lost_is_made_again_from_the_database(filled, put):
    before = everything(filled)
    journal = filled.root / "objects" / "journal.jsonl"
    journal.unlink()
    assert everything(filled) == before
    filled.close()
    remove(filled)
    assert everything(filled) == before


@pytest.mark.usefixtures("one_fault")
def test_a_last_line_of_the_journal_that_was_cut_short_is_dropped(filled, put):
    before = everything(filled)
    with open(filled.root / "objects" / "journal.jsonl", "ab") as file:
        file.write(b'0123abcd {"sequence":99,"chan')
    filled.close()
    assert everything(filled) == before
    assert put().version == 4
    filled.close()
    remove(filled)
    assert filled.resolve("policy").version == 4


@pytest.mark.usefixtures("one_fault")
def test_a_change_that_cannot_be_committed_is_not_in_the_journal(filled, monkeypatch):
    def fail_after(*arguments):
        record(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = filled.root / "objects" / "journal.jsonl"
    before = journal.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("navrl.registry.database.record", fail_after)
        with pytest.raises(RegistryError, match="No space left"):
            filled.set_alias("policy", "best", 2)
    assert journal.read_bytes() == before
    assert filled.resolve("policy:best").version == 1


def damage(registry: Registry, chance: random.Random) -> None:
    """Overwrite half of the database, from a random place of its first half on."""
    path = registry.root / "registry.db"
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(chance.randint(size // 8, size // 2))
        file.write(chance.randbytes(size // 2))


def garble(registry: Registry, chance: random.Random) -> None:
    (registry.root / "registry.db").write_text("not a database " * 100)


def other_registry(registry: Registry, chance: random.Random) -> None:
    with Registry(registry.root / "elsewhere") as other:
        file = registry.root / "file"
        file.write_text("x")
        other.register("policy", file, lineage={"git": {}})
    os.replace(registry.root / "elsewhere" / "registry.db", registry.root / "registry.db")
    shutil.rmtree(registry.root / "elsewhere")


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("harm", [damage, garble, other_registry])
def test_repair_keeps_a_damaged_database_and_makes_it_again(filled, put, harm, number, injected):
    before, files = everything(filled), stored(filled)
    filled.close()
    harm(filled, random.Random(number))
    injected.add()
    harmed = (filled.root / "registry.db").read_bytes()
    with pytest.raises(RegistryError, match="navrl models repair"):
        put()
    with pytest.raises(RegistryError, match="navrl models repair"):
        filled.collect_garbage()
    assert stored(filled) >= files
    done = filled.repair()
    assert [path.read_bytes() for path in done.kept] == [harmed]
    assert (done.rebuilt, done.versions, done.missing, done.quarantined) == (
        True,
        3 + len(done.adopted),
        (),
        (),
    )
    for label in done.adopted:  # what the `register` that failed had placed
        filled.delete(*label.split(":"), force=True)
    assert everything(filled) == before


def test_repair_of_a_whole_registry_changes_nothing(filled):
    before = everything(filled)
    done = filled.repair()
    assert (done.kept, done.rebuilt, done.adopted, done.returned, done.quarantined) == (
        (),
        False,
        (),
        (),
        (),
    )
    assert everything(filled) == before


@pytest.mark.usefixtures("one_fault")
def test_repair_writes_a_damaged_journal_again(filled):
    before = everything(filled)
    journal = filled.root / "objects" / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[2] = lines[2][:-5] + b"#####"
    journal.write_bytes(b"\n".join(lines))
    assert [damage.label for damage in filled.verify()] == ["journal"]
    assert [path.name for path in filled.repair().kept] == ["journal.jsonl.damaged-1"]
    assert filled.verify() == []
    remove(filled)
    assert everything(filled) == before


@pytest.mark.usefixtures("one_fault")
def test_a_row_that_the_database_lost_comes_back_with_repair(filled):
    before = everything(filled)
    filled.close()
    with sqlite3.connect(filled.root / "registry.db") as connection:
        connection.execute("DELETE FROM versions WHERE name = 'policy' AND version = 2")
    connection.close()
    assert len(filled.collect_garbage().quarantined) == 1
    done = filled.repair()
    assert (done.rebuilt, done.returned) == (True, ("policy:v2",))
    assert everything(filled) == before


@pytest.mark.usefixtures("one_fault")
def test_files_without_any_record_are_adopted_and_damaged_ones_put_into_quarantine(filled, put):
    files = {path.read_text(): path for path in stored(filled)}
    remove(filled)
    (filled.root / "objects" / "journal.jsonl").unlink()
    files["other"].chmod(0o644)
    files["other"].write_text("changed")
    done = filled.repair()
    assert done.adopted == ("recovered:v1", "recovered:v2")
    assert {version.path.read_text() for version in filled.versions("recovered")} == {
        "policy 1",
        "policy 2",
    }
    assert [path.read_text() for path in done.quarantined] == ["changed"]


def test_a_registry_of_the_layout_before_the_journal_is_taken_over(filled):
    before = everything(filled)
    filled.close()
    with sqlite3.connect(filled.root / "registry.db") as connection:
        connection.executescript(
            "DROP TABLE followed; DROP TABLE removals; PRAGMA user_version = 1;"
        )
    connection.close()
    (filled.root / "objects" / "journal.jsonl").unlink()
    assert everything(filled) == before
    filled.close()
    remove(filled)
    assert everything(filled) == before


def test_versions_are_ordered_by_number_whatever_the_clock_says(registry, put, monkeypatch):
    clock = itertools.count(2e9, -86400)  # set back by a day again and again
    monkeypatch.setattr("time.time", lambda: next(clock))
    for _ in range(3):
        put()
    assert [version.version for version in registry.versions("policy")] == [1, 2, 3]
    assert registry.models()[0].updated == registry.resolve("policy:latest").created
    assert [version.version for version in registry.prune("policy", 1)] == [1, 2]


def test_an_alias_whose_first_moves_were_in_damaged_lines_of_the_journal_can_be_rolled_back(filled):
    journal = filled.root / "objects" / "journal.jsonl"
    start = journal.stat().st_size
    filled.set_alias("policy", "stable", 1)
    filled.set_alias("policy", "stable", 2)
    end = journal.stat().st_size
    filled.rollback("policy", "stable")
    filled.set_alias("policy", "stable", 2)
    filled.close()
    whole = journal.read_bytes()
    journal.write_bytes(whole[:start] + b"#" * (end - start - 1) + whole[end - 1 :])
    remove(filled)
    assert filled.rollback("policy", "stable").version == 1
    with pytest.raises(RegistryError, match="no earlier version"):
        filled.rollback("policy", "stable")


def test_two_that_write_while_the_database_is_replaced_both_reach_the_journal(filled, monkeypatch):
    refused = []

    def replace_before(*arguments):
        monkeypatch.setattr("navrl.registry.database.record", record)
        remove(filled)
        try:
            with Registry(filled.root, deadline=0.1) as other:
                other.tag("policy:v2", ["other"])
        except RegistryError as error:
            refused.append(error)
        record(*arguments)

    monkeypatch.setattr("navrl.registry.database.record", replace_before)
    filled.tag("policy:v1", ["own"])
    if refused:  # and not told that all is well: then nothing may be lost
        with Registry(filled.root) as other:
            other.tag("policy:v2", ["other"])
    filled.close()
    remove(filled)
    assert "own" in filled.resolve("policy:v1").tags
    assert "other" in filled.resolve("policy:v2").tags


def test_a_change_goes_to_the_database_that_is_there_when_its_turn_comes(filled, monkeypatch):
    opened = Database._opened

    def replaced_after_opening(database: Database) -> sqlite3.Connection:
        connection = opened(database)
        monkeypatch.setattr(Database, "_opened", opened)
        remove(filled)
        return connection

    monkeypatch.setattr(Database, "_opened", replaced_after_opening)
    filled.tag("policy:v1", ["own"])
    assert (filled.root / "registry.db").exists()


def test_repair_does_not_replace_a_database_while_another_process_writes(filled, monkeypatch):
    with sqlite3.connect(filled.root / "registry.db") as connection:
        # its alias dangles now: repair has work to do
        connection.execute("DELETE FROM versions WHERE name = 'other'")
    connection.close()

    def repair_before(*arguments):
        with (
            Registry(filled.root, deadline=0.1) as other,
            pytest.raises(RegistryError, match="locked"),
        ):
            other.repair()
        record(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("navrl.registry.database.record", repair_before)
        filled.tag("policy:v1", ["own"])
    assert [*filled.root.glob("*.damaged-*")] == []
    assert filled.repair().rebuilt
    assert "own" in filled.resolve("policy:v1").tags


def test_a_journal_that_a_killed_process_left_half_written_is_collected(filled):
    half = filled.root / "objects" / ".navrl-0123456789abcdef.tmp"
    half.write_bytes(b"0123abcd {")
    assert filled.collect_garbage().files == (half,)
    assert not half.exists()
