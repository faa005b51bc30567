"""Where a checkpoint or rollout should be, there is something else: it is named, never opened,
never waited for.
"""

from __future__ import annotations

import os
import shutil
import socket

import pytest
import torch

from navrl.cli import main
from navrl.errors import CheckpointError, ContainerError, NavrlError, RolloutError
from navrl.io import CheckpointDirectory, find_checkpoint, load_checkpoint, verify_checkpoint
from navrl.io.checkpoint.conversion import convert_checkpoint
from navrl.io.container.atomic_files import irregular_kind, remove_stale_files
from navrl.io.rollouts.storage import RolloutStorage


def make_socket(path):
    """Sockets have short names, so it is bound in the folder itself."""
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


MAKERS = {
    "a directory": os.mkdir,
    "a named pipe": os.mkfifo,
    "a socket": make_socket,
    "a character device": lambda path: path.symlink_to("/dev/zero"),
    "a symbolic link to nothing": lambda path: path.symlink_to("nowhere.pt"),
    "a symbolic link that leads back to itself": lambda path: path.symlink_to(path.name),
}


@pytest.fixture(params=MAKERS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with CheckpointDirectory(folder) as run:
        for step in (10, 20):
            run.save(step, {"step": step})
            run.flush()
    with RolloutStorage(folder) as storage:
        storage.save({"reward": torch.ones(2, 3)}, 1)
    return folder


@pytest.fixture
def folder(template, tmp_path):
    shutil.copytree(template, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.fixture
def odd(folder, kind):
    """The newest checkpoint of the folder is something else."""
    path = folder / "checkpoint_000000030.pt"
    MAKERS[kind](path)
    return path


@pytest.mark.parametrize("use", [find_checkpoint, load_checkpoint, verify_checkpoint])
def test_it_is_named_where_a_checkpoint_is_asked_for(odd, kind, use):
    with pytest.raises((CheckpointError, ContainerError), match=rf"{odd.name}: found {kind}"):
        use(odd)


def test_a_load_passes_over_it_with_a_warning(odd, kind):
    with CheckpointDirectory(odd.parent) as run:
        with pytest.warns(
            RuntimeWarning,
            match=rf"000020\.pt was loaded, because later checkpoints are not whole: .*{odd.name}: found {kind}",
        ):
            assert run.load() == {"step": 20}
        assert [entry.step for entry in run.entries()] == [10, 20]
        assert run.latest().step == 20


def test_asked_for_by_step_it_is_an_error(odd, kind):
    with (
        CheckpointDirectory(odd.parent) as run,
        pytest.raises(CheckpointError, match=f"found {kind}"),
    ):
        run.load(30)


def test_saving_and_pruning_go_on_beside_it(odd):
    with CheckpointDirectory(odd.parent, keep_last_n=1) as run:
        run.save(40, {"step": 40})
        run.flush()
        assert [entry.step for entry in run.entries()] == [40]
    assert os.path.lexists(odd)


def test_the_commands_name_it_and_end(odd, kind, tmp_path, capsys):
    assert main(["inspect", str(odd.parent)]) == 0
    assert f"not listed: {odd}: found {kind}" in capsys.readouterr().out
    assert main(["inspect", str(odd.parent), "--verify"]) == 1
    assert f"damaged: {odd}: found {kind}" in capsys.readouterr().out
    assert main(["checkpoints", "prune", str(odd.parent), "--keep-last", "1"]) == 0
    assert main(["convert", str(odd), str(tmp_path / "x.pt")]) == 2
    assert f"{odd}: found {kind}" in capsys.readouterr().err


def test_as_latest_it_is_named_by_the_commands(folder, kind, capsys):
    (folder / "latest").unlink()
    MAKERS[kind](folder / "latest")
    code = main(["inspect", str(folder / "latest")])
    told = capsys.readouterr()
    if kind == "a directory":
        assert (code, "0 checkpoints" in told.out) == (0, True)
    else:
        assert (code, f"found {kind}" in told.err) == (2, True)


def test_a_directory_named_latest_is_told_by_the_next_save(folder):
    (folder / "latest").unlink()
    (folder / "latest").mkdir()
    run = CheckpointDirectory(folder)
    run.save(30, {"step": 30})
    with pytest.raises(
        CheckpointError, match=r"saved, but .*latest: found a directory, expected a link"
    ):
        run.close()
    assert CheckpointDirectory(folder).load() == {"step": 30}


@pytest.mark.parametrize("maker", ["a named pipe", "a symbolic link that leads back to itself"])
def test_a_folder_that_is_none_is_named(tmp_path, maker, capsys):
    place = tmp_path / "run"
    MAKERS[maker](place)
    with pytest.raises(CheckpointError, match=f"run: found {maker}.*, expected a folder"):
        CheckpointDirectory(place)
    commands = (
        ["checkpoints", "prune", str(place), "--keep-last", "1"],
        ["rollouts", "ls", str(place)],
    )
    for command in (*commands, ["inspect", str(place)]):
        assert main(command) == 2
        assert f"found {maker}" in capsys.readouterr().err


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(CheckpointError, match="run: found a file, expected a folder"):
        CheckpointDirectory(tmp_path / "run")


def test_as_a_rollout_it_is_named_and_the_others_are_listed(folder, kind, capsys):
    odd = folder / "rollout_000000002.navrl"
    MAKERS[kind](odd)
    storage = RolloutStorage(folder)
    for use in (storage.load, storage.info, storage.size):
        with pytest.raises(RolloutError, match=rf"{odd.name}: found {kind}"):
            use(2)
    assert storage.latest() == 1
    assert storage.size() == (folder / "rollout_000000001.navrl").stat().st_size
    assert main(["rollouts", "ls", str(folder)]) == 1
    assert f"damaged: {odd}: found {kind}" in capsys.readouterr().out
    assert main(["rollouts", "show", str(folder)]) == 0
    assert main(["rollouts", "show", str(folder), "2"]) == 2
    with RolloutStorage(folder, keep_last_n=1) as storage:
        storage.save({"reward": torch.ones(2, 3)}, 3, wait=True)
    assert sorted(path.name for path in folder.glob("rollout_*")) == [
        odd.name,
        "rollout_000000003.navrl",
    ]


def test_a_safetensors_file_that_is_none_is_named(tmp_path, kind):
    pytest.importorskip("safetensors")
    odd = tmp_path / "x.safetensors"
    MAKERS[kind](odd)
    with pytest.raises(NavrlError, match=f"found {kind}"):
        convert_checkpoint(odd, tmp_path / "y.pt")


def test_a_directory_as_the_target_of_a_conversion_is_named(folder, tmp_path, capsys):
    (tmp_path / "target").mkdir()
    assert main(["convert", str(folder / "latest"), str(tmp_path / "target")]) == 2
    assert "target: found a directory, expected the name of a file" in capsys.readouterr().err


def test_cleaning_up_never_opens_a_pipe(tmp_path):
    os.mkfifo(tmp_path / ".navrl-0123456789abcdef.tmp")
    assert remove_stale_files(tmp_path) == []


def test_a_file_and_nothing_are_nothing_unusual(tmp_path):
    (tmp_path / "file").write_text("")
    assert irregular_kind(tmp_path / "file") is None
    assert irregular_kind(tmp_path / "nothing") is None
    assert irregular_kind("no\0name") is None
