"""A virtual environment for each peer: made once, kept in a cache folder, made anew when what it
should hold changes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from navrl.errors import BenchmarkError

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench"
RECORD = "installed.txt"  # written last: without it the environment is not whole


def python_of(name: str, requirements: Sequence[str]) -> str:
    """Return the interpreter of the environment `name`, which holds these requirements on top of
    the running one.

    PyTorch, navrl and all that is installed here already is taken from here, so that every
    contestant runs the same PyTorch and only the peer itself is downloaded.

    Raises:
        BenchmarkError: the environment cannot be made, mostly because there is no network; pip's
            last words are in it.
    """
    folder, below = CACHE / name, sysconfig.get_path("purelib")
    wanted = "\n".join([sys.version, below, *requirements, ""])
    python = folder / "bin" / "python"
    record = folder / RECORD
    if record.is_file() and record.read_text() == wanted and python.exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    _call([sys.executable, "-m", "venv", str(folder)], name)
    _put_below(folder, below)
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        str(ROOT / "constraints.txt"),
    ]
    _call([str(python), "-m", "pip", "install", *options, *requirements], name)
    record.write_text(wanted)
    return str(python)


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
            f"the environment of {name} cannot be made: {' '.join(words[-3:])}. It is installed "
            "by pip, once; "
            "`navrl bench training --smoke` runs without it"
        )
