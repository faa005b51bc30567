"""Checkpoints of several parts: visible when all parts are there, loaded and removed as one thing."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from navrl.cli import main
from navrl.errors import CheckpointError, ContainerError
from navrl.io import CheckpointDirectory, load_checkpoint, save_checkpoint, verify_checkpoint
from navrl.io.checkpoint.parts import describe_part, format_part_name, parts_document, parts_of
from navrl.io.container.index import Index
from navrl.registry.registry import Registry


def rank_state(step: int, rank: int) -> dict[str, object]:
    return {"drones": torch.full((64, 3), float(step * 10 + rank)), "rank": rank}


def save(run: CheckpointDirectory, step: int, size: int = 3) -> None:
    """Save a step as so many ranks do, and return when it is on the disk."""
    number = run.next_sequence()
    before = run.latest()

    def write_parts():
        assert run.latest() == before  # nothing of this save is visible yet
        parts = []
        for rank in range(1, size):
            path = run.folder / format_part_name(step, number, rank)
            save_checkpoint(rank_state(step, rank), path)
            parts.append(describe_part(path))
        return parts_document("ranks", parts)

    state = {"step": step, "ranks": [rank_state(step, 0)]}
    run.save(step, state, sequence=number, await_parts=write_parts)
    run.flush()


@pytest.fixture
def run(tmp_path):
    with CheckpointDirectory(tmp_path, keep_last_n=2) as run:
        for step in (1, 2, 3):
            save(run, step)
        yield run


def parts_in(run: CheckpointDirectory) -> list[str]:
    return sorted(path.name for path in run.folder.glob("checkpoint_*.rank*.pt"))


def test_a_load_returns_the_states_of_all_ranks_in_order(run):
    for state in (run.load(), load_checkpoint(run.folder / "latest")):
        assert state["step"] == 3
        assert [rank["rank"] for rank in state["ranks"]] == [0, 1, 2]
        assert [rank["drones"][0, 0].item() for rank in state["ranks"]] == [30.0, 31.0, 32.0]


def test_it_is_listed_as_one_checkpoint_with_the_size_of_all_its_files(run):
    entries = run.entries()
    assert [entry.step for entry in entries] == [2, 3]
    files = [entries[-1].path, *(run.folder / part for part in entries[-1].parts)]
    assert len(files) == 3
    assert entries[-1].stored_bytes == sum(file.stat().st_size for file in files)


def test_parts_are_removed_with_their_checkpoint_and_only_with_it(run):
    assert parts_in(run) == sorted(part for entry in run.entries() for part in entry.parts)
    assert len(parts_in(run)) == 4


def lose(part):
    part.unlink()


def flip(part):
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 0x10
    part.write_bytes(content)


def replace(part):
    save_checkpoint(rank_state(7, 1), part)


@pytest.mark.parametrize("harm", [lose, flip, replace])
def test_a_checkpoint_with_a_harmed_part_is_refused_by_name_and_the_one_before_is_loaded(run, harm):
    newest = run.latest()
    harm(run.folder / newest.parts[0])
    with pytest.raises(ContainerError, match=newest.parts[0]):
        verify_checkpoint(newest.path)
    with pytest.raises(ContainerError, match=newest.parts[0]):
        load_checkpoint(newest.path)
    with pytest.warns(RuntimeWarning, match=newest.parts[0]):
        assert run.load()["step"] == 2


def test_without_its_parts_a_checkpoint_never_appears(run):
    def fail():
        raise CheckpointError("rank 1: no space left")

    run.save(4, {"ranks": []}, sequence=run.next_sequence(), await_parts=fail)
    with pytest.raises(CheckpointError, match="no space left"):
        run.flush()
    assert run.latest().step == 3
    assert run.load()["step"] == 3


def test_parts_of_an_interrupted_save_are_removed_by_a_later_save_and_not_before(run):
    number = run.next_sequence()
    interrupted = run.folder / format_part_name(4, number, 1)
    save_checkpoint(rank_state(4, 1), interrupted)
    run.prune()
    assert interrupted.exists()  # its save may still be on its way
    save(run, 4)
    assert not interrupted.exists()
    assert run.load()["step"] == 4


def test_parts_of_a_checkpoint_whose_index_cannot_be_read_are_kept(run):
    oldest = run.entries()[0]
    oldest.path.write_bytes(b"damaged")
    save(run, 9)
    assert set(oldest.parts) < set(parts_in(run))


def test_saving_a_step_again_replaces_its_parts(run):
    before = run.latest().parts
    save(run, 3)
    assert not set(before) & set(parts_in(run))
    assert run.load()["step"] == 3


def test_the_commands_show_verify_prune_and_convert_it_as_one_thing(run, capsys):
    newest = run.latest()
    assert main(["inspect", str(newest.path), "--verify"]) == 0
    assert all(part in capsys.readouterr().out.replace("\n", "") for part in newest.parts[:1])
    whole = run.folder / "whole.pt"
    assert main(["convert", str(newest.path), str(whole)]) == 0
    assert not parts_of_file(whole)
    assert len(load_checkpoint(whole)["ranks"]) == 3
    assert main(["checkpoints", "prune", str(run.folder), "--keep-last", "1"]) == 0
    assert parts_in(run) == sorted(newest.parts)


def parts_of_file(path):
    return parts_of(verify_checkpoint(path)).parts


def test_the_registry_keeps_it_as_one_file(run, tmp_path_factory):
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        version = registry.register("sharded", run.latest().path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(load_checkpoint(version.path)["ranks"]) == 3


@pytest.mark.parametrize(
    "said",
    [
        7,
        {"key": "ranks"},
        {"key": 3, "files": []},
        {"key": "ranks", "files": [{"file": "../secret.pt", "checksum": "0" * 16}]},
        {"key": "ranks", "files": [{"file": "x", "checksum": "", "raw_bytes": 1}]},
    ],
)
def test_a_document_with_impossible_parts_is_refused(tmp_path, said):
    json.dumps(said)
    with pytest.raises(ContainerError, match="its parts are"):
        parts_of(Index(tmp_path / "x.pt", (), {"parts": said}, 0, 0))
