"""The notebook and the snippets of docs/python.md and docs/environments.md run."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import pytest

from navrl.cli import main

ROOT = Path(__file__).parents[1]
TINY = '"eval_interval": 0, "save_interval": 1000, "algo.training_epoch_num": 1'


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.S)


def run_all(sources: list[str]) -> dict[str, object]:
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for source in sources:
            exec(source, names)
    return names


@pytest.mark.slow
def test_the_notebook_runs_and_was_executed(tmp_path, monkeypatch):
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "train_from_python.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    small = ["".join(cell["source"]).replace("60_000", f"4_096, {TINY}") for cell in cells]
    names = run_all(small)
    assert names["run"].finished
    assert names["steps"] > 0


@pytest.mark.slow
def test_the_code_of_the_page_on_python_runs(tmp_path, monkeypatch):
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    sources = [
        block.replace("50_000", f'4_096, "flight.episodes": 4, {TINY}')
        for block in blocks("python.md")
    ]
    assert len(sources) == 5
    names = run_all(sources)
    assert names["run"].finished
    assert list(names["result"].conditions) == ["light"]


@pytest.mark.slow
def test_the_code_of_the_page_on_environments_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own, check, network = blocks("environments.md")
    (tmp_path / "point.py").write_text(f"{own}\n\n{network}")
    monkeypatch.delitem(sys.modules, "point", raising=False)
    (command,) = re.findall(r"`navrl train (env=python [^`]*)`", own + page_text())
    words = command.replace("50000", "4096").split()
    words += ["network.target=point:MyNetwork", "flight.episodes=4", "processes=1"]
    assert main(["train", *words, "run_folder=run"]) == 0
    assert (
        main(["eval", "run", *words[:2], "network.target=point:MyNetwork", "--episodes", "4"]) == 0
    )
    names = run_all([check])
    contract = names["TestPoint"]()
    for name in dir(contract):
        if name.startswith("test_"):
            getattr(contract, name)()
    sys.modules.pop("point", None)


def page_text() -> str:
    """Return the sentences of the page that name a whole command for the class on it."""
    text = (ROOT / "docs" / "environments.md").read_text()
    return text.split("In `point.py`")[1].split("\n\n")[0]
