"""What docs/training.md says is run, or compared with the code."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path

from navrl.registry.upload_policy import UploadPolicy
from navrl.sim.episode_statistics import STATISTICS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "training.md").read_text()


def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for block in blocks:
            exec(block, names)
    assert names["curve"] == [(1000, 1.0), (2000, 0.5)]
    assert {"mean", "std", "min", "max", "p50", "p99", "total", "count"} == set(names["stats"])
    assert "rollout_save" in shown.getvalue()


def test_every_statistic_of_an_episode_is_explained():
    assert [name for name in STATISTICS if name != "world" and f"/{name}`" not in PAGE] == []


def test_the_code_of_the_page_on_sac_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "sac.md").read_text(), re.S)
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block, names)
    assert names["report"]["value_loss"] > 0


def test_every_setting_of_the_registry_is_explained():
    named = [field.name for field in fields(UploadPolicy)]
    assert [name for name in named if name not in PAGE] == []
