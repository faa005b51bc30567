"""What continuous integration does not run, rots: the examples, and the commands of the README."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from navrl.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run_example(monkeypatch, capsys):
    """A function that runs an example with the arguments of its command line."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "steps"), [("pretrained", "100"), ("scripted", "400")])
def test_the_native_example_flies(run_example, policy, steps):
    told = run_example("fly.py", "--policy", policy, "--drones", "32", "--steps", steps)
    assert "episodes ended" in told


@pytest.mark.slow
def test_the_stable_baselines3_example_trains(run_example):
    told = run_example("stable_baselines3_ppo.py", "--drones", "16", "--steps", "1024")
    assert "mean return" in told


@pytest.mark.slow
def test_the_example_that_learns_from_pictures_learns_and_saves_memory(run_example):
    sizes = ("--transitions", "2000", "--drones", "16", "--batch", "16")
    told = run_example("sac_from_grids.py", *sizes)
    held, plain = map(
        float, re.search(r"transitions in ([\d.]+) MB; uncompressed ([\d.]+) MB", told).groups()
    )
    assert 0 < held < plain


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_python_of_the_first_pages_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(block, {})


def shell_lines() -> list[str]:
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", README, re.S)
    return [
        line.split("  #")[0].strip()
        for block in blocks
        for line in block.splitlines()
        if line.strip()
    ]


def test_every_make_target_of_the_readme_exists():
    targets = {line.split()[1] for line in shell_lines() if line.startswith("make ")}
    listed = run("make", "help")
    assert targets >= {"train", "test"}
    assert all(re.search(rf"^{target}\s", listed, re.M) for target in targets)


SMALL = (
    "max_frame_num=2048",
    "env.num_envs=64",
    "env.num_worlds=4",
    "env.max_episode_length=200",
    "algo.training_frame_num=16",
    "algo.num_minibatches=4",
    "flight.episodes=16",
    "flight.interim_episodes=8",
    "flight.worlds=2",
    "flight.recorded=2",
    "flight.animation=false",
    "processes=1",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [line for line in shell_lines() if line.startswith("navrl ") and "bench" not in line]
)
def test_every_navrl_command_of_the_readme_runs(line, tmp_path, monkeypatch):
    words = shlex.split(line)[1:]
    if words[0] == "train" and not any(word.startswith("resume") for word in words):
        words += [*SMALL, f"run_folder={tmp_path / 'run'}"]
    elif words[0] in ("train", "curves") or any("runs/" in word for word in words):
        pytest.skip("needs a run: the tests of training and of the commands do it")
    elif words[0] in ("export", "rehearse"):
        pytest.skip("tests/deploy exports, verifies and rehearses")
    elif words[0] == "eval":
        words += [
            "--episodes",
            "8",
            "--worlds",
            "2",
            "--no-animation",
            "--out",
            str(tmp_path / "eval"),
        ]
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in words]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0


@pytest.mark.slow
def test_a_policy_of_ones_own_is_evaluated_beside_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "examples")
    names = ["python:own_policy:Cautious", "straight"]
    few = ["--scenario", "light", "--episodes", "8", "--worlds", "2", "--no-animation"]
    assert main(["eval", *names, *few, "--out", str(tmp_path)]) == 0
    assert "Cautious" in capsys.readouterr().out
