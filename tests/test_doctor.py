"""`navrl doctor` and `navrl demo`: the first things that a visitor runs."""

import json

import pytest

from navrl import self_test
from navrl.cli import main


def test_a_working_installation_passes_every_check(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name for name, check in report["checks"].items() if not check["ok"]} == set()
    assert {"simulator", "policy", "checkpoint", "compiled kernels"} <= set(report["checks"])
    assert report["machine"]["versions"]["torch"].startswith("2.")


def test_a_part_that_fails_is_named_with_its_reason(capsys, monkeypatch):
    def broken():
        raise OSError("no room on the device")

    monkeypatch.setattr(self_test, "_save_and_load", broken)
    assert main(["doctor"]) == 1
    assert "FAILED  checkpoint: OSError: no room on the device" in capsys.readouterr().out


def test_extras_name_what_is_missing(monkeypatch):
    lines = ["torch>=2", 'pillow>=11; extra == "view"', "navrl[view]; extra == 'video'"]
    lines.append('surely-not-installed>=1; python_version > "3" and extra == "video"')
    monkeypatch.setattr(self_test.importlib.metadata, "requires", lambda name: lines)
    assert self_test.extras() == {"video": ["surely-not-installed"], "view": []}


@pytest.mark.slow
def test_the_demo_says_how_it_went_and_leaves_a_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--flights", "4"]) == 0
    told = capsys.readouterr().out
    assert "of 4 drones reached their goal" in told
    assert "demo.html" in told
    assert (tmp_path / "demo.html").stat().st_size < 500_000


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'?"),
        (["evaluate", "pretrained"], "unknown command 'evaluate'. Did you mean 'eval'?"),
        (["fly"], "unknown command 'fly'. `navrl --help` lists all"),
        (["--versoin"], "unknown option '--versoin'. Did you mean '--version'?"),
        (
            ["train", "--headless"],
            "unrecognized arguments: --headless. Did you mean 'headless'? Settings have no "
            "dashes: key=value, such as seed=1",
        ),
        (["train", "--num-envs=4"], "Did you mean 'env.num_envs'? Settings have no dashes"),
        (["eval", "pretrained", "--shild"], "arguments: --shild. Did you mean '--shield'?"),
        (["demo", "a", "b"], "navrl demo: error: unrecognized arguments: b"),
    ],
)
def test_what_does_not_exist_suggests_the_nearest(typed, told, capsys):
    with pytest.raises(SystemExit) as left:
        main(typed)
    assert left.value.code == 2
    assert told in capsys.readouterr().err


def test_help_is_a_command_too_and_what_no_command_prints(capsys):
    with pytest.raises(SystemExit) as left:
        main(["help", "demo"])
    assert (left.value.code, "usage: navrl demo" in capsys.readouterr().out) == (0, True)
    with pytest.raises(SystemExit) as left:
        main([])
    assert (left.value.code, "examples:" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["convert", "pretrained", "nodir/x.pt"], "navrl: nodir: no such file or folder\n"),
        (["convert", "pretrained", "folder.pt"], "navrl: folder.pt: found a directory"),
        (["average", "pretrained", "pretrained", "-o", "folder.pt"], "folder.pt: is a directory\n"),
        (["export", "pretrained", "-o", "file", "--format", "c"], "navrl: file: file exists\n"),
        (["demo", "--flights", "0"], "navrl: --flights is 0; expected a whole number of at least"),
    ],
)
def test_a_path_that_cannot_be_written_is_named(typed, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "file").touch()
    assert main(typed) == 2
    assert told in capsys.readouterr().err
