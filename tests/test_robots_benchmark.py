"""`navrl bench robots`: its table, and that a finished training is not repeated."""

from __future__ import annotations

import json
import subprocess
import sys

from navrl import benchmark as bench


def robots():
    bench.find_suite("robots", smoke=True).close()
    return sys.modules["navrl_benchmark_robots"]


def test_the_table_shows_success_and_how_long_each_robot_was_trained():
    module = robots()
    metrics = {"decisions": 14e6, "standard spl": 0.75}
    for label in module.SCENARIOS:
        metrics |= {f"{label} success": 0.8, f"{label} low": 0.75, f"{label} high": 0.85}
    results = {
        "machine": {"processor": "P", "cores": 2, "date": "2026-01-01 10:00"},
        "cases": {"ground": {"metrics": {name: {"median": v} for name, v in metrics.items()}}},
    }
    cell = "80.0 % (75.0 - 85.0)"
    row = f"| `ground` | 14 million | {cell} | {cell} | {cell} | 75.0 % |"
    assert row in module.page(results)


def test_a_finished_training_is_not_repeated(tmp_path, monkeypatch):
    module, started = robots(), []
    ended = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(module.subprocess, "run", lambda words, **_: started.append(words) or ended)
    for finished in (False, True):
        record = {"finished": "2026-01-01"} if finished else {}
        (tmp_path / "run.json").write_text(json.dumps(record))
        module.train("ground", tmp_path, ("max_frame_num=4096",))
    (words,) = started
    assert words[-1] == "resume=auto"
    assert "robot=ground" in words
