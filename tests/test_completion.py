"""`navrl completion`: real shells ask for what may follow, and get it without torch."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from navrl.cli import main
from navrl.conf.overrides import GROUPS, keys_of, options_of
from navrl.conf.setting_names import config_groups, setting_types
from navrl.config import Config
from navrl.io import save_checkpoint
from navrl.registry import Registry


@pytest.fixture
def complete(capsys):
    """A function that returns what may stand at the end of a line."""

    def ask(line: str) -> list[str]:
        assert main(["completion", "--line", line]) == 0
        return [word.partition("\t")[0] for word in capsys.readouterr().out.splitlines()]

    return ask


def test_the_names_read_from_the_sources_are_those_of_the_settings():
    assert set(setting_types()) == set(keys_of(OmegaConf.structured(Config)))
    assert {key for key, kind in setting_types().items() if kind == "bool"} >= {"headless"}


def test_the_groups_are_those_that_can_be_chosen():
    assert config_groups().keys() == {*GROUPS, "robot"}
    assert all(config_groups()[group] == options_of(group) for group in GROUPS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("navrl tr", ["train"]),
        ("navrl models ro", ["rollback"]),
        ("navrl train env.num_o", ["env.num_obstacles=", "env.num_observed="]),
        ("navrl train algo.act", ["algo.actor."]),
        ("navrl train preset=b", ["preset=best"]),
        ("navrl train robot=g", ["robot=ground"]),
        ("navrl train seed=1 headless=", ["headless=true", "headless=false"]),
        ("navrl train --config-n", ["--config-name"]),
        ("navrl eval pretrained --scenario cross", ["crossing", "crossing-static"]),
        ("navrl convert a b --to s", ["safetensors"]),
        ("navrl settings env_", ["env_dyn.", "env_dyn"]),
        ("navrl export or", []),
        ("navrl nothing ", []),
        ("navrl train 'half", []),
    ],
)
def test_a_line_is_completed(complete, line, expected):
    assert complete(line) == expected


def test_models_of_the_registry_and_runs_are_completed(complete, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").write_text("")
    save_checkpoint({"weight": torch.zeros(3)}, tmp_path / "model.pt")
    with Registry() as registry:
        registry.register("policy", tmp_path / "model.pt", aliases=["best"])
    assert complete("navrl eval pol") == ["policy:best", "policy:latest"]
    assert complete("navrl train resume_checkpoint=policy:b") == ["resume_checkpoint=policy:best"]
    assert complete("navrl models prune ") == ["policy"]
    assert complete("navrl report ") == ["runs/mine"]


def test_no_registry_is_made_by_asking_for_its_models(complete, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    assert "pretrained" in complete("navrl eval ")
    assert not (tmp_path / "registry").exists()


ZSH = """
compdef() {{ :; }}; _files() {{ print files; }}; compadd() {{ print -l -- ${{(P)@[-1]}}; }}
{script}
words=(navrl) LBUFFER=$1; _navrl
"""
FISH = "{script}\ncomplete -C $argv[1]"
ASKING = {"zsh": ZSH, "fish": FISH}


@pytest.fixture
def environment(tmp_path):
    """Variables of a shell where `navrl` is this package."""
    navrl = tmp_path / "navrl"
    navrl.write_text(f"#!{sys.executable}\nimport sys, navrl.cli\nsys.exit(navrl.cli.main())\n")
    navrl.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.fixture
def run(tmp_path, environment):
    """A function that runs a command where `navrl` is this package, and returns its output."""

    def run(*command: str, **how: Any) -> str:
        if shutil.which(command[0], path=environment["PATH"]) is None:
            pytest.skip(f"{command[0]} is not installed")
        return subprocess.run(
            command, env=environment, cwd=tmp_path, text=True, check=True, **how
        ).stdout

    return run


PROMPT = b"ready> "


def typed_in_bash(environment: dict[str, str], folder: Path, lines: list[str]) -> str:
    """What an interactive bash shows when each line is typed at its prompt."""
    ours, theirs = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        env={**environment, "PS1": PROMPT.decode()},
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    for number, line in enumerate(lines, start=1):
        while shown.count(PROMPT) < number:
            shown += os.read(ours, 4096)
        os.write(ours, line.encode())
    with contextlib.suppress(OSError):  # Linux: EIO once bash has closed the terminal
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert bash.wait() == 0
    return shown.decode()


@pytest.mark.slow
def test_tab_in_bash_completes_commands_and_values(run, environment, tmp_path):
    script = tmp_path / "completion.bash"
    script.write_text(run("navrl", "completion", "bash", stdout=subprocess.PIPE))
    # Tab, then Ctrl+A and echo in front of the line, which prints it instead of running it
    lines = (f". {script}\n", "navrl sw\t\x01echo 1 \n", "navrl train preset=be\t\x01echo 2 \n")
    shown = typed_in_bash(environment, tmp_path, [*lines, "exit\n"]).splitlines()
    assert "1 navrl sweep" in shown
    assert "2 navrl train preset=best" in shown


@pytest.mark.slow
@pytest.mark.parametrize("shell", ASKING)
def test_another_shell_completes_commands_and_values(run, shell):
    program = ASKING[shell].format(script=run("navrl", "completion", shell, stdout=subprocess.PIPE))

    def ask(line: str) -> list[str]:
        words = [] if shell == "fish" else ["shell"]
        told = run(shell, "-c", program, *words, line, stdout=subprocess.PIPE)
        return [line.partition("\t")[0] for line in told.splitlines()]

    assert ask("navrl sw") == ["sweep"]
    assert ask("navrl train preset=n") == ["preset=navrl_exact", "preset=none"]


def test_completing_a_setting_imports_nothing_heavy():
    program = (
        "import sys; from navrl.cli import main; main(['completion', '--line', 'navrl train env.'])"
        "; print(sorted({'torch', 'numpy', 'hydra', 'omegaconf', 'numba'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_missing_shell_is_named(capsys):
    assert main(["completion"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
