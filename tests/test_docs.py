"""The site builds without a warning, and what its pages say to type can be typed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from navrl.cli import main, make_parser
from navrl.commands.candidates import command_parsers
from navrl.conf.overrides import check_overrides
from navrl.config import Config, our_overrides

ROOT = Path(__file__).parents[1]
PARSER, SCHEMA = make_parser(), OmegaConf.structured(Config)
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md"])


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_describes_every_command(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    silent = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=silent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    commands = (tmp_path / "commands" / "index.html").read_text()
    assert all(f'id="{name}"' in commands for name in command_parsers(PARSER))
    assert "AsyncCheckpointSaver" in (tmp_path / "api" / "navrl" / "index.html").read_text()
    assert (tmp_path / "repository" / "examples" / "own_policy.py").is_file()


def typed_lines(page: Path) -> Iterator[list[str]]:
    """Yield the words of every `navrl ...` line in the shell blocks of a page."""
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(), re.S):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.split(r" && | \| ", line):
                words = shlex.split(command, comments=True)
                if words[:1] == ["navrl"]:
                    yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_can_be_parsed(page):
    for words in typed_lines(page):
        parsed, late = PARSER.parse_known_args(words)  # exits on a mistake
        settings = [word for word in words if re.match(r"[\w.]+=", word)]
        assert all("=" in word for word in late), words
        if parsed.chosen in ("train", "world", "eval"):
            ours = [word for word in settings if not word.startswith("robot=")]
            check_overrides(our_overrides(ours), SCHEMA)


def test_the_reward_of_the_page_on_customising_charges_for_speed():
    page = (ROOT / "docs" / "customise.md").read_text()
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], names)
    environment = names["make"](num_envs=16)
    environment.reset(seed=0)
    out, plain = environment.make_step(), environment.make_step()
    fast = torch.tensor([2.0, 0.0, 0.0]).expand(16, 3)
    for _ in range(8):
        before = environment.state_dict()
        environment.step(fast, out=out)
    environment.load_state_dict(before)
    environment.simulator.step(fast, out=plain)
    speed = environment.observation.split(plain.packed)["state"][:, 5:8].norm(dim=1)
    charged = 0.1 * (speed - 1.5).clamp(min=0)
    assert charged.max() > 0
    torch.testing.assert_close(out.reward, plain.reward - charged)


@pytest.mark.slow
def test_the_code_of_the_pages_about_flights_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["--scenario", "crossing", "--episodes", "4", "--worlds", "1", "--no-animation"]
    assert main(["eval", "straight", *few]) == 0  # leaves the recording that a page reads
    episodes = '"flight.episodes=4", "flight.worlds=1"'
    for page in ("simulator.md", "robots.md", "viewing.md", "evaluation.md"):
        text = (ROOT / "docs" / page).read_text().replace('"flight.episodes=256"', episodes)
        blocks = re.findall(r"```python\n((?:from|import) .*?)```", text, re.S)
        assert blocks, page
        for block in blocks:
            exec(block, {})
    assert (tmp_path / "flights.html").is_file()
    assert "Estimate(mean=" in capsys.readouterr().out
