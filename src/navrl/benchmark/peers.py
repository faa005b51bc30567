"""Virtual environments for peers that are not installed here.

Each is made once, kept in `.cache/bench/` of the checkout, and made anew when its requirements
change.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from navrl.benchmark.folder import benchmark_folder
from navrl.errors import BenchmarkError

__all__ = ["cache", "existing_python", "interpreter_with", "python_of"]

RECORD = "installed.txt"  # written last: without it the environment is not whole


def cache() -> Path:
    """Return the folder of the environments."""
    return benchmark_folder().parent / ".cache" / "bench"


def interpreter_with(name: str, packages: Sequence[str]) -> str:
    """Return a Python that has these packages: the running one, or one of an environment `name`."""
    missing = [package for package in packages if not _is_installed(package)]
    return python_of(name, missing) if missing else sys.executable


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def python_of(name: str, requirements: Sequence[str]) -> str:
    """Return the interpreter of the environment `name`: these requirements on top of the running
    environment.

    Packages that are installed here are used from here, so every contestant runs the same PyTorch
    and only the peer itself is downloaded.

    Raises:
        BenchmarkError: the environment cannot be made, mostly because there is no network; the
            message ends with pip's last lines.
    """
    if found := existing_python(name, requirements):
        return found
    folder, below = cache() / name, sysconfig.get_path("purelib")
    python = folder / "bin" / "python"
    shutil.rmtree(folder, ignore_errors=True)
    cache().mkdir(parents=True, exist_ok=True)
    (cache() / ".gitignore").write_text("*\n")
    _call([sys.executable, "-m", "venv", str(folder)], name)
    _put_below(folder, below)
    options = ["--quiet", "--disable-pip-version-check"]
    constraints = benchmark_folder().parent / "constraints.txt"
    options += ["--constraint", str(constraints)] if constraints.is_file() else []
    _call([str(python), "-m", "pip", "install", *options, *requirements], name)
    (folder / RECORD).write_text(_wanted(requirements))
    return str(python)


def existing_python(name: str, requirements: Sequence[str]) -> str:
    """Return the interpreter of an environment that was made before; empty if there is none."""
    folder = cache() / name
    record, python = folder / RECORD, folder / "bin" / "python"
    made = record.is_file() and record.read_text() == _wanted(requirements) and python.exists()
    return str(python) if made else ""


def _wanted(requirements: Sequence[str]) -> str:
    return "\n".join([sys.version, sysconfig.get_path("purelib"), *requirements, ""])


def _put_below(folder: Path, below: str) -> None:
    """Let an environment see another one's packages, editable ones included; its own come first."""
    own = next((folder / "lib").glob("python*/site-packages"))
    (own / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")


def _call(command: Sequence[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = [
            line
            for line in (done.stdout + done.stderr).splitlines()
            if line and not line.startswith("WARNING")
        ]
        raise BenchmarkError(
            f"the environment of {name} cannot be made: {' '.join(words[-3:])}. pip fetches it "
            "once and needs a network; `navrl bench training --smoke` runs without it"
        )
