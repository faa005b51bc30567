"""Every command and snippet of docs/models.md runs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from navrl.cli import main
from navrl.evaluation import PRETRAINED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text()
# minutes, or a server
NOT_HERE = (
    "navrl eval",
    "navrl train",
    "--tracker",
    "--mirror",
    "navrl models pull",
    "checkpoints/latest",
)


def test_each_snippet_of_the_page_runs_as_pasted_also_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 2
    for block in (*blocks, *blocks):
        exec(block, {})
    told = capsys.readouterr().out
    assert re.search(r"policy:v1 0\.\d+ .*\npolicy:v1\n\[\]\n", told)
    assert "upload ('latest', 'best') best success_100" in told


def test_the_commands_on_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    for run in ("mine", "robust"):  # their trainings are not run here
        (tmp_path / "runs" / run).mkdir(parents=True)
        shutil.copy(PRETRAINED, tmp_path / "runs" / run / "model.pt")
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()
    ]
    commands = [
        shlex.split(line, comments=True)[1:]
        for line in lines
        if not any(words in line for words in NOT_HERE)
    ]
    assert len(commands) >= 7
    assert main(commands[0]) == main(commands[0]) == 0  # the page speaks of two versions
    # and of one that was in production before
    assert main(["models", "promote", "policy:v1", "production"]) == 0
    assert [main(command) for command in commands[1:]] == [0] * (len(commands) - 1)
    assert (tmp_path / "CARD.md").is_file()


@pytest.mark.slow
def test_the_benchmark_still_runs(run_benchmark):
    assert "resolve ms" in run_benchmark("registry")
