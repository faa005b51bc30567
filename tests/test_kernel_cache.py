"""Compiled kernels are found again only while nothing that shaped them has changed, wherever the
package lies.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import llvmlite
import numba
import pytest

import forked
from navrl import kernel_cache

PACKAGE = kernel_cache.PACKAGE
PROBE = '''
from numba import float32
from navrl.sim.kernels.termination import outcome_of
from navrl.simd import entry, floats_at

@entry
def outcome_at(record, running, height):
    """Return how an episode ends at a height: 0 for not at all."""
    far = float32(9)
    return outcome_of(floats_at(running), 0, 0, record[0], height, far, far, far, False)
'''
ASK = """
import json, warnings
import numpy as np
from numba.core import event
with warnings.catch_warnings(record=True) as warned, event.install_recorder("numba:compile") as compiled:
    from navrl import kernel_cache
    from navrl.sim.kernels.layout import PARAMETERS
    from navrl.sim.probe import outcome_at
    record, running = np.ones(1, PARAMETERS), np.zeros(64, np.float32)
    record["planar"] = 0  # in two dimensions no height is out of bounds
    outcome = outcome_at(record, running.ctypes.data, np.float32(3.5))
print(json.dumps({
    "outcome": outcome, "compiled": len(compiled.buffer), "storage": str(kernel_cache.storage()),
    "warnings": [str(each.message) for each in warned],
}))
"""
# What nothing here is about: half a second to import numba, and as much for a first compilation.
COMPILER = "import numpy, numba, numba.core.event; numba.njit(lambda number: number + 1)(1.0)"
NOTHING, OUT_OF_BOUNDS = 0, 4


class Installation:
    """A copy of the package with one small kernel more, and a user's cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.package, self.cache = folder / "site" / "navrl", folder / "cache"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        (self.package / "sim" / "probe.py").write_text(PROBE)
        kept = {name for name in os.environ if not name.startswith(("NUMBA_", "PYTHON"))}
        self.environment = {name: os.environ[name] for name in kept}
        self.environment |= {
            "PYTHONPATH": str(self.package.parent),
            "XDG_CACHE_HOME": str(self.cache),
        }

    def start(self, program: str = ASK) -> forked.Piped:
        """Start a process that calls the kernel."""
        return forked.start(program, env=self.environment, warm=COMPILER)

    def ask(self, program: str = ASK) -> dict:
        """Call the kernel in a process of its own; return its answer and what was compiled."""
        return answer(self.start(program))

    def make_read_only(self) -> None:
        """Put a file where the package's caches belong: the superuser, too, can write nothing
        there.
        """
        (self.package / "__pycache__").write_bytes(b"")

    def edit(self, name: str, before: str, after: str) -> None:
        """Change a source file as an upgrade does."""
        source = (self.package / name).read_text()
        assert before in source
        (self.package / name).write_text(source.replace(before, after))


def answer(process: forked.Piped) -> dict:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(output)


@pytest.fixture
def installation(tmp_path):
    return Installation(tmp_path)


@pytest.mark.slow
def test_an_edit_of_an_inner_function_takes_effect_with_nothing_cleaned_by_hand(installation):
    first, again = installation.ask(), installation.ask()
    assert (first["outcome"], again["outcome"]) == (NOTHING, NOTHING)
    assert (first["compiled"] > 0, again["compiled"]) == (True, 0)
    assert Path(first["storage"]).is_relative_to(installation.package / "__pycache__")
    installation.edit(
        "sim/kernels/termination.py", "LOWEST, HIGHEST = 0.2, 4.0", "LOWEST, HIGHEST = 0.2, 3.0"
    )
    assert installation.ask()["outcome"] == OUT_OF_BOUNDS


@pytest.mark.slow
def test_code_imported_before_an_upgrade_is_not_kept_for_the_new_sources(installation):
    upgrade = f"""
    import pathlib
    source = pathlib.Path({str(installation.package / "sim" / "kernels" / "termination.py")!r})
    source.write_text(source.read_text().replace("LOWEST, HIGHEST = 0.2, 4.0", "LOWEST, HIGHEST = 0.2, 3.0"))
"""
    before, after = "    outcome = outcome_at(", upgrade + "    outcome = outcome_at("
    program = ASK.replace(before, after)
    assert program != ASK
    assert installation.ask(program)["outcome"] == NOTHING  # the code that was imported,
    assert installation.ask()["outcome"] == OUT_OF_BOUNDS  # and the upgraded one


@pytest.mark.slow
def test_a_read_only_package_compiles_once_into_the_cache_of_the_user(installation):
    installation.make_read_only()
    first, again = installation.ask(), installation.ask()
    assert (first["compiled"] > 0, again["compiled"]) == (True, 0)
    assert Path(first["storage"]).parent == installation.cache / "navrl" / "kernels"
    assert first["warnings"] == again["warnings"] == []


@pytest.mark.slow
def test_where_nothing_can_be_written_kernels_still_run_and_a_warning_says_what_to_do(installation):
    installation.make_read_only()
    installation.cache.write_bytes(b"")
    told = installation.ask()
    assert told["outcome"] == NOTHING
    assert [warning for warning in told["warnings"] if "set NUMBA_CACHE_DIR" in warning]
    assert not Path(told["storage"]).exists()  # it went with its process


@pytest.mark.slow
def test_a_folder_that_the_user_chose_is_used_instead(installation, tmp_path):
    environment = installation.environment | {"NUMBA_CACHE_DIR": str(tmp_path / "chosen")}
    command = [sys.executable, "-c", ASK]  # numba reads the variable when it is imported
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(json.loads(done.stdout)["storage"]).is_relative_to(tmp_path / "chosen")
    assert not (installation.package / "__pycache__" / "kernels").exists()


@pytest.mark.slow
def test_processes_that_compile_at_the_same_time_leave_whole_kernels(installation):
    both = [installation.start(), installation.start()]
    answers = [answer(process) for process in both]
    assert [told["outcome"] for told in answers] == [NOTHING, NOTHING]
    assert not [*Path(answers[0]["storage"]).glob("*.tmp")]
    assert installation.ask()["compiled"] == 0


@pytest.mark.slow
def test_a_damaged_kernel_is_compiled_anew(installation):
    (damaged,) = Path(installation.ask()["storage"]).glob("*.nbc")
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    told = installation.ask()
    assert (told["outcome"], told["compiled"] > 0) == (NOTHING, True)
    assert installation.ask()["compiled"] == 0


def key_now() -> str:
    """Return the key as a new process would compute it."""
    kernel_cache._sources_at_start.cache_clear()
    key = kernel_cache.key.__wrapped__()
    kernel_cache._sources_at_start.cache_clear()
    return key


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (numba, "__version__", "0.0.1"),
        (llvmlite, "__version__", "0.0.1"),
        (numba.core.config, "OPT", 0),
        (numba.core.config, "CPU_NAME", "generic"),
        (kernel_cache, "SOURCES", ("simd/lanes.py",)),
    ],
    ids=["numba", "llvmlite", "optimisation", "processor", "sources"],
)
def test_another_compiler_processor_or_source_has_another_key(place, name, value, monkeypatch):
    before = key_now()
    assert before == key_now() == kernel_cache.key()
    monkeypatch.setattr(place, name, value)
    assert key_now() != before


def test_every_source_of_a_kernel_is_part_of_the_key():
    def imported(path: Path) -> set[Path]:
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "navrl":
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        places = [PACKAGE.joinpath(*name.split(".")[1:]) for name in names if "." in name]
        files = {place.with_suffix(".py") for place in places}
        return {path for path in files if path.is_file()}

    def compiles(path: Path) -> bool:
        return "from numba" in path.read_text() or "navrl.kernel_cache" in path.read_text()

    # These give kernels no constants.
    apart = {
        PACKAGE / name for name in ("training/compile_kernels.py", "self_test.py", "errors.py")
    }
    found, left = set(), {path for path in PACKAGE.rglob("*.py") if compiles(path)} - apart
    while left:
        path = left.pop()
        found.add(path)
        left |= imported(path) - found - apart
    keyed = {path for pattern in kernel_cache.SOURCES for path in PACKAGE.glob(pattern)}
    assert {str(path.relative_to(PACKAGE)) for path in found - keyed} == set()


@pytest.mark.slow
def test_no_kernel_is_kept_by_the_cache_of_numba():
    for path in [path for path in PACKAGE.rglob("*.py") if "cache" in path.read_text()]:
        calls = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        assert not [
            call.lineno for call in calls for keyword in call.keywords if keyword.arg == "cache"
        ], path


def test_a_function_outside_of_the_keyed_sources_is_refused():
    def outside(number):
        return number

    with pytest.raises(TypeError, match="outside cannot be cached on disk"):
        kernel_cache.kernel()(outside)


def test_a_function_with_a_closure_is_kept_only_under_a_variant():
    def made(size):
        def inside():
            return size

        inside.__module__ = "navrl.simd.lanes"
        return inside

    with pytest.raises(TypeError, match=r"inside cannot be cached on disk; .* or with a variant"):
        kernel_cache.kernel()(made(1))
    files = {
        kernel_cache.kernel(variant)(made(size))._cache._file("()")
        for variant, size in (("1", 1), ("2", 2))
    }
    assert len(files) == 2


def test_old_folders_go_and_those_of_late_use_stay(tmp_path):
    def used(number: int, days: float) -> Path:
        folder = tmp_path / f"{number:032x}"
        folder.mkdir()
        (folder / "kernel.nbc").write_bytes(b"")
        os.utime(folder, (time.time() - days * 86400,) * 2)
        return folder

    recent = [used(number, days=1) for number in range(6)]
    old = [used(100 + number, days=30 + number) for number in range(3)]
    other = tmp_path / "not ours"
    other.mkdir()
    kernel_cache._prune(tmp_path)
    assert [path for path in (*recent, *old, other) if path.exists()] == [*recent, other]


def test_the_newest_few_stay_however_old(tmp_path):
    for number in range(6):
        (tmp_path / f"{number:032x}").mkdir()
        os.utime(tmp_path / f"{number:032x}", (1000 + number,) * 2)
    kernel_cache._prune(tmp_path)
    assert {int(path.name, 16) for path in tmp_path.iterdir()} == {2, 3, 4, 5}


def test_a_cache_that_others_may_write_to_is_not_trusted(tmp_path, monkeypatch):
    root = tmp_path / "navrl" / "kernels"
    root.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    find = kernel_cache._user_root.__wrapped__
    for mode in (0o777, 0o775):
        root.chmod(mode)
        assert find() is None
    root.chmod(0o755)
    assert find() == root
