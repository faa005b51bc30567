"""Sweeps with real trainings: pruning, kill -9, several processes on one study."""

import json
import re
import time
from pathlib import Path

import pytest
import yaml

import forked
from navrl.cli import main
from navrl.errors import SweepError
from navrl.sweep.space import load_space
from navrl.sweep.sweep import Sweep

pytest.importorskip("optuna")

TINY = [
    "env=python",
    "env.target=point_environment:make_point",
    "env.num_envs=8",
    "algo.training_frame_num=16",
    "algo.num_minibatches=2",
    "flight.interim_episodes=8",
    "flight.episodes=8",
    "eval_interval=1",
    "save_interval=1",
    "processes=1",
]


def space_file(tmp_path, rates, frames=512, **more):
    content = {
        "space": {"algo.actor.learning_rate": rates},
        "settings": [*TINY, f"max_frame_num={frames}"],
        "metric": "mean_return",
        "sampler": "grid",
        "pruner": "none",
        **more,
    }
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Return what starts a sweep in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.chdir(tmp_path)

    def start(path):
        return forked.start(forked.NAVRL, "sweep", path, "-o", tmp_path / "s")

    return start


def wait_for(condition):
    while not condition():
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_sweep_is_finished_by_two_processes_without_losing_a_trial(tmp_path, command):
    path = space_file(tmp_path, [1.0e-3, 2.0e-3])
    first = command(path)
    begun = tmp_path / "s" / "trial_0000" / "metrics.jsonl"
    wait_for(lambda: begun.is_file() or first.poll() is not None)
    assert first.poll() is None, first.stdout.read()
    first.kill()
    first.communicate()
    both = [command(path), command(path)]
    told = ["".join(process.communicate()) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    results = json.loads((tmp_path / "s" / "results.json").read_text())["trials"]
    assert sorted(trial["number"] for trial in results) == [0, 1]
    assert {trial["state"] for trial in results} == {"complete"}
    rates = {trial["settings"]["algo.actor.learning_rate"] for trial in results}
    assert rates == {1e-3, 2e-3}
    assert "trial 0 is resumed" in "".join(told)
    assert sorted((t["value"] for t in results), reverse=True) == [t["value"] for t in results]
    assert (tmp_path / "s" / "report.html").is_file()


@pytest.mark.slow
def test_a_trial_that_falls_behind_is_pruned_and_its_training_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    path = space_file(tmp_path, [1.0e-3], frames=1 << 40)
    told = []
    sweep = Sweep(load_space(path), tmp_path / "s", tell=told.append)
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda trial: True)
    sweep.run()
    [result] = sweep.results()
    assert result.state == "pruned"
    assert result.value is not None
    record = json.loads((tmp_path / "s" / "trial_0000" / "run.json").read_text())
    assert "finished" not in record


@pytest.mark.slow
def test_a_training_that_cannot_start_fails_its_trial_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("navrl.sweep.trial.RESUMES", 0)
    path = space_file(tmp_path, [1.0e-3])  # no PYTHONPATH: the environment is not found
    sweep = Sweep(load_space(path), tmp_path / "s", tell=lambda line: None)
    sweep.run()
    [result] = sweep.results()
    assert result.state == "fail"
    [trial] = sweep.study.trials
    assert "point_environment" in trial.user_attrs["error"]


def test_a_folder_with_another_space_is_refused(tmp_path):
    Sweep(load_space(space_file(tmp_path, [1.0e-3])), tmp_path / "s")
    other = load_space(space_file(tmp_path, [2.0e-3]))
    with pytest.raises(SweepError, match=r"algo.actor.learning_rate changed"):
        Sweep(other, tmp_path / "s")


def test_trials_so_far_are_shown_without_running_any(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = space_file(tmp_path, [1.0e-3])
    assert main(["sweep", str(path), "--show"]) == 0
    assert "mean_return" in capsys.readouterr().out
    assert not (tmp_path / "sweeps" / "space" / "trial_0000").exists()


def test_the_example_of_the_page_runs_the_trials_of_a_file(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    space_file(tmp_path, [1e-3, 2e-3])
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "sweeps.md", "exec"), {})
    assert "algo.actor.learning_rate" in capsys.readouterr().out
