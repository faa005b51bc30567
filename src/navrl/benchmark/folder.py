"""The benchmark files of a checkout, and the plan that says how long each may take."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from navrl.benchmark.harness import Suite
from navrl.errors import BenchmarkError, nearest_name

__all__ = ["Planned", "benchmark_folder", "find_suite", "known_benchmarks", "plan"]

PLAN = "plan.json"
MINUTES = 5.0  # of a benchmark that the plan does not name


@dataclass(frozen=True)
class Planned:
    """A benchmark of `navrl bench all`: its minutes, and the packages that it compares with."""

    name: str
    minutes: float = MINUTES
    peers: tuple[str, ...] = ()
    alone: bool = False  # too long for a session: run by its own name only


def benchmark_folder() -> Path:
    """Return `benchmarks/` of the working directory, or of the checkout that navrl runs from."""
    for folder in (Path.cwd() / "benchmarks", Path(__file__).resolve().parents[3] / "benchmarks"):
        if folder.is_dir():
            return folder
    raise BenchmarkError(
        "no benchmarks/ folder here or beside the installed package: benchmarks live in the "
        "repository, not in the wheel; run this command inside a clone of it"
    )


def known_benchmarks() -> list[str]:
    """Return the names of all benchmarks, sorted."""
    return sorted(path.stem for path in benchmark_folder().glob("[a-z]*.py"))


def plan() -> list[Planned]:
    """Return all benchmarks in the order of `benchmarks/plan.json`, then those it does not name."""
    path = benchmark_folder() / PLAN
    listed = json.loads(path.read_text()) if path.is_file() else {}
    known = known_benchmarks()
    if strange := sorted(set(listed) - set(known)):
        raise BenchmarkError(f"{path} names {strange[0]!r}; there are {', '.join(known)}")
    entries = [
        Planned(
            name, float(entry["minutes"]), tuple(entry.get("peers", ())), entry.get("alone", False)
        )
        for name, entry in listed.items()
    ]
    return entries + [Planned(name) for name in known if name not in listed]


def find_suite(name: str, *, smoke: bool) -> Suite:
    """Load `benchmarks/NAME.py` and return what its function `suite(smoke)` builds."""
    folder, known = benchmark_folder(), known_benchmarks()
    if name not in known:
        raise BenchmarkError(
            f"no benchmark {name!r}; there are "
            f"{', '.join(known) or 'none'}.{nearest_name(name, known)}"
        )
    spec = importlib.util.spec_from_file_location(f"navrl_benchmark_{name}", folder / f"{name}.py")
    if spec is None or spec.loader is None:
        raise BenchmarkError(f"benchmarks/{name}.py cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    suite: Suite = module.suite(smoke=smoke)
    return suite
