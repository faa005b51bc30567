"""`navrl curves`: the curve of the packaged policy, drawn from the metrics that are kept with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from navrl.cli import main
from navrl.metrics_log import MetricsLog
from navrl.view.curves import read_curve

KEPT = Path(__file__).parents[1] / "docs" / "learning" / "best.metrics.jsonl"


def test_the_curve_of_the_packaged_policy_rises_above_the_published_one():
    curve = read_curve(KEPT)
    assert [point["frames"] for point in curve] == sorted(point["frames"] for point in curve)
    assert curve[-1]["static"] > 94.0
    assert curve[-1]["moving"] > max(64.8, curve[0]["moving"])
    assert curve[-1]["moving"] > curve[-1]["crossing"] > max(60.0, curve[0]["crossing"])


def test_a_point_lies_in_its_interval():
    for point in read_curve(KEPT):
        low, high = point["moving_interval"]
        assert 0 <= low < point["moving"] < high <= 100


def test_curves_become_a_picture(tmp_path, capsys):
    assert main(["curves", str(KEPT), "--png", str(tmp_path / "curve.png")]) == 0
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    assert "curve.png" in capsys.readouterr().out


def test_a_run_without_evaluations_says_so(tmp_path, capsys):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write("train", 1, frames=10)
    assert main(["curves", str(tmp_path)]) == 2
    assert "no evaluation yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["curves", "nothing"], ["curves", str(KEPT), "--png", "no/such/folder/a.png"]]
)
def test_a_mistake_exits_2(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("navrl: ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[" * 100_000, ", line 1: found "),
        ('{"kind": "eval", "iteration": 7}', ": the evaluation of iteration 7 lacks"),
        (
            '{"kind": "eval", "iteration": 7, "conditions": [1]}',
            ": the evaluation of iteration 7 lacks",
        ),
    ],
    ids=["nested", "empty", "list"],
)
def test_damaged_metrics_are_told_in_a_sentence(tmp_path, capsys, line, told):
    (tmp_path / "metrics.jsonl").write_text(f'{line}\n{{"kind": "eval", "iteration": 8}}\n')
    assert main(["curves", str(tmp_path)]) == 2
    assert f"metrics.jsonl{told}" in capsys.readouterr().err
