"""All benchmarks in one session: within a time limit, each in its own process, resumable."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navrl.benchmark.folder import Planned, benchmark_folder, plan
from navrl.benchmark.peers import interpreter_with
from navrl.errors import BenchmarkError
from navrl.machine import machine

__all__ = ["Outcome", "command_of", "is_finished", "result_file", "run_all", "write_pages"]

# Results with the same of these need not be measured again.
SAME = ("processor", "cores", "memory_gib", "system", "python", "commit")
DONE, SKIPPED, FAILED, POSTPONED = "done", "already measured", "failed", "no time left"
ALONE = "takes too long to run with the others"


@dataclass(frozen=True)
class Outcome:
    """What became of one benchmark of a session, and how long it took."""

    name: str
    state: str  # DONE, SKIPPED, FAILED, POSTPONED or ALONE
    minutes: float = 0.0
    why: str = ""


def result_file(name: str) -> Path:
    """Return where the results of a benchmark are kept."""
    return benchmark_folder() / "results" / f"{name}.json"


def is_finished(name: str, here: Mapping[str, Any]) -> bool:
    """Tell whether the kept results are of this machine and commit, in full size."""
    try:
        kept = json.loads(result_file(name).read_text())
    except (OSError, ValueError):
        return False
    there = kept.get("machine", {})
    known = here["commit"] != "unknown" and not kept.get("smoke")
    return known and all(there.get(name) == here[name] for name in SAME)


def command_of(entry: Planned, options: Sequence[str]) -> list[str]:
    """Return the command that runs one benchmark, with a Python that has its peers."""
    python = interpreter_with(entry.name, entry.peers)
    start = "import sys; from navrl.cli import main; sys.exit(main())"
    return [python, "-c", start, "bench", entry.name, *options]


def run_all(
    *,
    minutes: float,
    smoke: bool = False,
    fresh: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Run all benchmarks of the plan that are not finished, for about `minutes` at most.

    A benchmark that fails does not stop the others. One that has no time left waits for the next
    call, which skips those that are finished.

    Args:
        minutes: no benchmark is started that would need longer; rounds are left out to fit.
        smoke: run tiny sizes and keep nothing.
        fresh: run finished benchmarks again.
        tell: called with a line before and after every benchmark.
    """
    here, entries = machine(), plan()
    start, outcomes = time.monotonic(), []
    waiting = [e for e in entries if fresh or smoke or not is_finished(e.name, here)]
    for entry in entries:
        if entry not in waiting:
            outcomes.append(Outcome(entry.name, SKIPPED))
            tell(f"{entry.name}: {SKIPPED} on this machine at commit {here['commit']}")
            continue
        expected = sum(e.minutes for e in waiting[waiting.index(entry) :])
        left = minutes - (time.monotonic() - start) / 60
        tell(
            f"{entry.name} ({waiting.index(entry) + 1} of {len(waiting)}): about "
            f"{entry.minutes:g} min, {min(expected, max(left, 0)):.0f} min left for all"
        )
        outcomes.append(_run_one(entry, left, smoke))
        last = outcomes[-1]
        tell(f"{last.name}: {last.state}{f', {last.why}' if last.why else ''}")
    return outcomes


def _run_one(entry: Planned, left: float, smoke: bool) -> Outcome:
    if entry.alone and not smoke:
        return Outcome(entry.name, ALONE, why=f"navrl bench {entry.name}")
    if not smoke and left < entry.minutes / 2:
        return Outcome(entry.name, POSTPONED, why="run the command again to measure it")
    options = ["--smoke"] if smoke else ["--minutes", f"{min(entry.minutes, left):.2f}"]
    start = time.monotonic()
    try:
        status = subprocess.run(command_of(entry, options)).returncode
        why = f"exit status {status}" if status else ""
    except BenchmarkError as error:  # its peers cannot be installed
        why = str(error)
    took = (time.monotonic() - start) / 60
    return Outcome(entry.name, FAILED if why else DONE, took, why)


def write_pages() -> None:
    """Bring the pages that show results of several benchmarks up to date."""
    script = benchmark_folder() / "_summary_page.py"
    if script.is_file():
        subprocess.run([sys.executable, str(script)], check=True)
