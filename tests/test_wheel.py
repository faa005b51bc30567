"""The wheel: it holds what the package needs, and flies without the repository, read-only."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import navrl

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "navrl"
FLY = """
import json, navrl
from navrl.cli import main
code = main(["demo", "--flights", "2", "--scenario", "light", "-o", "demo.html"])
print(json.dumps({"code": code, "package": navrl.__file__, "version": navrl.__version__}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*build, "--wheel-dir", folder, ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
        (described,) = (name for name in held if name.endswith("METADATA"))
        metadata = opened.read(described).decode()
    files = {
        f"navrl/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in held if ".dist-info/" not in name} == files
    assert {
        "navrl/py.typed",
        "navrl/policies/pretrained.pt",
        "navrl/conf/config.yaml",
        "navrl/sim/robots/ground.yaml",
        "navrl/view/replay/page/page.html",
    } <= files
    assert re.search(f"^Version: {re.escape(navrl.__version__)}$", metadata, re.M)
    for version in ("3.11", "3.12", "3.13"):
        assert f"Classifier: Programming Language :: Python :: {version}\n" in metadata


def without_privileges() -> list[str]:
    """Return what makes a command of the superuser respect the permissions of files."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("the superuser may write anywhere, and setpriv is not installed")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


@pytest.mark.slow
def test_the_wheel_flies_from_a_read_only_folder_far_from_the_repository(wheel, tmp_path):
    installed, cache, work = (tmp_path / name for name in ("installed", "cache", "work"))
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(installed)
    for path in (installed, *installed.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    work.mkdir()
    compiled = PACKAGE / "__pycache__" / "kernels"  # of the same sources: saves a minute
    if compiled.is_dir():
        shutil.copytree(compiled, cache / "navrl" / "kernels")
    before = set(installed.rglob("*"))
    borrowed = [path for path in sys.path if path.endswith("-packages")]
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    clean["PYTHONPATH"] = os.pathsep.join(
        [str(installed), *borrowed, sysconfig.get_path("purelib")]
    )
    command = [*without_privileges(), sys.executable, "-c", FLY]
    done = subprocess.run(
        command,
        env=clean | {"XDG_CACHE_HOME": str(cache), "NAVRL_REGISTRY": str(tmp_path / "registry")},
        cwd=work,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["code"], told["version"]) == (0, navrl.__version__)
    assert Path(told["package"]).is_relative_to(installed)
    assert (work / "demo.html").stat().st_size > 10_000
    assert set(installed.rglob("*")) == before
    assert "Traceback" not in done.stderr
    for path in (installed, *installed.rglob("*")):  # so that pytest can remove it
        path.chmod(path.stat().st_mode | 0o200)
