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


def test_an_unknown_command_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit) as left:
        main(["trian"])
    assert left.value.code == 2
    assert "unknown command 'trian'. Did you mean 'train'?" in capsys.readouterr().err
