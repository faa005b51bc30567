"""An import loads what it needs and nothing more."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import navrl
import navrl.io

HEAVY = {
    "numba",
    "hydra",
    "omegaconf",
    "wandb",
    "mlflow",
    "trackio",
    "torchrl",
    "tensordict",
    "gymnasium",
    "mujoco",
    "matplotlib",
    "PIL",
    "rich",
    "ray",
}


def modules_loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement loads in a fresh interpreter."""
    program = (
        f"import sys, json\nbefore = {{*sys.modules}}\n{statement}\n"
        "print(json.dumps(sorted({*sys.modules} - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a statement loads in a fresh interpreter."""
    return {module.split(".")[0] for module in modules_loaded_by(statement)}


def test_importing_navrl_loads_no_heavy_package():
    assert loaded_by("import navrl") & (HEAVY | {"torch", "numpy"}) == set()


def test_importing_the_command_line_loads_no_heavy_package():
    assert loaded_by("import navrl.cli") & (HEAVY | {"torch", "numpy"}) == set()


@pytest.mark.slow
def test_the_simulator_needs_numba_and_torch_and_nothing_else_heavy():
    assert loaded_by("from navrl import NavigationEnv") & HEAVY == {"numba"}


def test_importing_navrl_loads_four_modules_of_its_own_and_few_of_python():
    loaded = modules_loaded_by("import navrl")
    assert {module for module in loaded if module.split(".")[0] == "navrl"} == {
        "navrl",
        "navrl.adapters",
        "navrl.adapters.gymnasium_registry",
        "navrl.lazy",
    }
    assert len(loaded) < 40  # 18 with Python 3.11


@pytest.mark.parametrize("package", [navrl, navrl.io], ids=lambda package: package.__name__)
def test_type_checkers_know_the_public_names_and_where_they_are(package):
    tree = ast.parse(Path(package.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    known = {name.asname: node.module for node in checked.body for name in node.names}
    assert known == package._PUBLIC
    assert set(package.__all__) <= set(dir(package))


def test_modules_of_a_package_need_no_import_of_their_own():
    program = (
        "import navrl.io; print(navrl.io.container.codecs.DEFAULT_CODEC, "
        "hasattr(navrl.io, 'nothing'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "planes-zstd False\n"
