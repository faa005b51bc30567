"""A missing optional package is told with commands that install it, from an index and from a clone."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from navrl.errors import MissingExtraError, missing_extra
from navrl.tracking.tracker_settings import TRACKERS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "navrl"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OPTIONAL = (
    "torchrl",
    "tensordict",
    "gymnasium",
    "stable_baselines3",
    "matplotlib",
    "PIL",
    "safetensors",
    "wandb",
    "mlflow",
    "trackio",
    "tensorboard",
    "h5py",
    "minari",
    "pyarrow",
    "mujoco",
)
BLOCK = """
import json, os, sys
for name in {blocked!r}:
    sys.modules[name] = None  # importing it fails
"""
EVERY_NAME = """
import navrl
from navrl.errors import MissingExtraError
told = {}
for name in navrl.__all__:
    try:
        getattr(navrl, name)
    except MissingExtraError as error:
        told[name] = str(error)
print(json.dumps(told))
"""


def calls_of(function):
    """Yield file and call for every call of a function in the package."""
    sources = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    for path in [path for path, source in sources.items() if function in source]:
        for node in ast.walk(ast.parse(sources[path])):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
                yield path, node


def run_without(packages, program, **how):
    """Run a script where some packages are missing, and return what it prints."""
    command = [sys.executable, "-c", BLOCK.format(blocked=tuple(packages)) + program]
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_commands_are_told():
    error = missing_extra("pictures need matplotlib", "view")
    assert isinstance(error, ImportError)
    told = (
        "pictures need matplotlib: pip install 'navrl[view]' (in a clone of the repository: "
        "pip install -e '.[view]')"
    )
    assert str(error) == told


@pytest.mark.slow
def test_every_extra_that_is_named_exists():
    calls = list(calls_of("missing_extra"))
    named = {call.args[1].value for _, call in calls if isinstance(call.args[1], ast.Constant)}
    assert len(calls) >= 15
    assert named | set(TRACKERS) <= set(EXTRAS)


@pytest.mark.slow
def test_the_quickstart_lists_every_extra():
    page = (ROOT / "docs" / "quickstart.md").read_text().partition("## Extras")[2]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", page, re.M) for name in row.split(", ")]
    assert sorted(listed) == sorted(f"`{extra}`" for extra in EXTRAS)


def test_nothing_else_makes_up_a_command():
    assert {path.name for path, _ in calls_of("MissingExtraError")} == {"errors.py"}
    assert {path.name for path in SOURCE.rglob("*.py") if "pip install" in path.read_text()} == {
        "errors.py"
    }


@pytest.mark.slow
def test_without_any_extra_each_public_name_works_or_says_what_to_install():
    told = json.loads(run_without(OPTIONAL, EVERY_NAME))
    assert all("pip install 'navrl[torchrl]'" in message for message in told.values())
    assert set(told) == {
        "CompressedDataCollector",
        "CompressedLidarTransform",
        "CompressedStorage",
        "CompressedTensorDict",
        "PrioritizedSampler",
        "PrioritizedSliceSampler",
    }


def test_an_animation_without_pillow_says_what_to_install(monkeypatch, tmp_path):
    from navrl.view.topdown import save_animation

    sys.path.insert(0, str(Path(__file__).parent / "view"))
    from made_flights import made_recording

    recording = made_recording()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"videos need Pillow: pip install 'navrl\[view\]'"):
        save_animation(recording, tmp_path / "flights.gif")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "needs"), [("", ()), ("torchrl", ("torchrl", "tensordict", "gymnasium"))]
)
def test_a_foreign_script_needs_torch_and_the_extra_that_it_names(tmp_path, extra, needs):
    page = (ROOT / "docs" / "migration.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.S)
    chosen = [
        one
        for one in snippets
        if bool(re.search("^from (torchrl|tensordict)", one, re.M)) == bool(extra)
    ]
    assert len(chosen) >= 3
    before = (
        "import torch; from navrl.rl.networks.navigation import NavigationNetwork, to_upstream\n"
        "torch.save(to_upstream(NavigationNetwork()), 'checkpoint_1000.pt')\n"
    )
    # the first one writes that file too
    program = before + "\n".join(f"exec({one!r}, {{}})" for one in reversed(chosen))
    run_without([name for name in OPTIONAL if name not in needs], program, cwd=tmp_path)
