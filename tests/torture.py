"""`make torture`: the hostile tests with many more rounds, and a table of what was injected and
survived.

The tests are those of `make test`, which runs one round of each. A part that has been run at this
commit with these counts is not run again, so an interrupted torture goes on where it stopped. Usage:

    python tests/torture.py                          all, about two hours on two cores
    python tests/torture.py --only kill --kills 20   some minutes
    python tests/torture.py --failed                 only the tests that failed before
    python tests/torture.py --page                   only write docs/reliability.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
KEPT = HERE.parent / "benchmarks" / "results" / "reliability.json"
PAGE = HERE.parent / "docs" / "reliability.md"
BEGIN, END = (f"<!-- {word} of what tests/torture.py writes -->" for word in ("begin", "end"))
KILLS_A_ROUND = 10  # of test_resume.py
PATIENCE = 3600  # s that a test waits for a process: the machine may have other work


@dataclass(frozen=True)
class Counts:
    """How much is injected."""

    rounds: int = 10  # of every other random test
    kills: int = 200  # of trainings
    files: int = 1_000_000  # damaged ones
    hostile: int = 100_000  # names, settings and world files
    saves: int = 10_000

    def environment(self, scenario: str) -> dict[str, str]:
        """Return what the tests of a scenario read."""
        rounds = -(-self.kills // KILLS_A_ROUND) if scenario == "kill" else self.rounds
        files = {"damage": self.files, "crafted": 200 * self.rounds}.get(scenario, 0)
        return {
            "NAVRL_TORTURE": str(rounds),
            "NAVRL_FUZZ": str(files),
            "NAVRL_HOSTILE": str(-(-self.hostile * 10 // 16)),  # as much in three tests together
            "NAVRL_SAVES": str(self.saves),
        }


@dataclass(frozen=True)
class Scenario:
    """What is done to the program, and the tests that do it."""

    name: str
    what: str
    tests: tuple[str, ...]


SCENARIOS = (
    Scenario(
        "kill",
        "kill -9 of trainings, resumed to the same bits; damaged checkpoints; two in one folder",
        ("training/test_resume.py",),
    ),
    Scenario(
        "save",
        "kill -9 and Ctrl+C in the middle of saves",
        ("io/test_crash.py", "io/test_rollouts_crash.py"),
    ),
    Scenario(
        "power", "power loss: every prefix of the writes of a save", ("io/test_power_loss.py",)
    ),
    Scenario(
        "disk",
        "full, broken and read-only disks, folders deleted under a training",
        ("training/test_failing_disk.py",),
    ),
    Scenario(
        "clock",
        "clocks that run fast and are set back",
        ("io/test_sequence.py", "training/test_newest_run.py"),
    ),
    Scenario("terminal", "terminals closed under a training", ("training/test_hangup.py",)),
    Scenario(
        "tracker",
        "trackers killed and hanging under a training",
        ("tracking/test_worker_processes.py",),
    ),
    Scenario(
        "registry",
        "registry: kill -9 at every change, lost and old databases, power loss",
        (
            "registry/test_killed.py",
            "registry/test_lost_database.py",
            "registry/test_registry_power_loss.py",
        ),
    ),
    Scenario("flat", "saves, with memory and open files flat", ("io/test_flat_resources.py",)),
    Scenario("damage", "damaged files: flipped, cut, spliced", ("io/test_fuzz.py",)),
    Scenario(
        "crafted",
        "crafted files: indexes, models, worlds, pickles",
        (
            "io/test_crafted.py",
            "test_model_files.py",
            "sim/test_world_limits.py",
            "io/test_numpy_pickles.py",
        ),
    ),
    Scenario("hostile", "hostile names, settings and world files", ("test_hostile_input.py",)),
)


@dataclass(frozen=True)
class Result:
    """What came of a scenario."""

    scenario: str
    what: str
    tests: int
    injected: int  # faults that the tests counted
    failed: int
    skipped: int
    minutes: float
    asked: dict[str, str] = field(default_factory=dict)  # counts that the tests were given
    commit: str = ""
    failures: list[str] = field(default_factory=list)  # file::test of those that failed


def run(scenario: Scenario, counts: Counts, commit: str, folder: Path) -> Result:
    """Run the tests of a scenario, each file in a process of its own, and count."""
    asked = counts.environment(scenario.name)
    start, counted, failures = time.monotonic(), [0, 0, 0, 0], []
    for test in scenario.tests:
        report = folder / f"{Path(test).stem}.xml"
        run_tests([test], asked, report)
        counted = [total + more for total, more in zip(counted, count(report), strict=True)]
        failures += failed_tests(test, report)
    minutes = round((time.monotonic() - start) / 60, 1)
    return Result(scenario.name, scenario.what, *counted, minutes, asked, commit, failures)


def run_failed(old: Result, folder: Path) -> Result:
    """Run the tests of a scenario again that failed, and return the result without those that pass."""
    report, left = folder / "failed.xml", []
    for test in dict.fromkeys(name.partition("::")[0] for name in old.failures):
        again = [name for name in old.failures if name.partition("::")[0] == test]
        run_tests(again, old.asked, report)
        left += failed_tests(test, report)
    return replace(old, failed=len(left), failures=left)


def run_tests(tests: list[str], asked: dict[str, str], report: Path) -> None:
    """Run tests of one file in a process, with these counts, and leave a report of pytest's."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--junit-xml={report}", *(str(HERE / test) for test in tests)],
        env=os.environ | {"NAVRL_PATIENCE": str(PATIENCE)} | asked,
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    if not report.exists():
        raise SystemExit(f"{tests} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    if done.returncode:
        print(done.stdout[-4000:])


def count(report: Path) -> tuple[int, int, int, int]:
    """Return tests, injected faults, failures and skipped tests of a report of pytest's."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    totals = [
        [int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")]
        for suite in suites
    ]
    tests, failures, errors, skipped = map(sum, zip(*totals, strict=True))
    injected = sum(faults_of(case) for case in ElementTree.parse(report).getroot().iter("testcase"))
    return tests, injected, failures + errors, skipped


def failed_tests(test: str, report: Path) -> list[str]:
    """Return the tests of a file that failed, as `file::test`."""
    cases = ElementTree.parse(report).getroot().iter("testcase")
    bad = [case for case in cases if {part.tag for part in case} & {"failure", "error"}]
    return [f"{test}::{case.get('name')}" for case in bad]


def faults_of(case: ElementTree.Element) -> int:
    """Return how many faults a test has counted."""
    return sum(
        int(one.get("value", "0")) for one in case.iter("property") if one.get("name") == "injected"
    )


def table_of(results: list[Result]) -> Table:
    """Return the table that people read."""
    table = Table("what was done", title="torture", title_justify="left")
    for heading in ("tests", "faults injected", "failed", "skipped", "minutes"):
        table.add_column(heading, justify="right")
    for result in results:
        failed = f"[bold red]{result.failed}[/bold red]" if result.failed else "0"
        table.add_row(
            result.what,
            str(result.tests),
            f"{result.injected:,}",
            failed,
            str(result.skipped),
            f"{result.minutes:.1f}",
        )
    return table


def page(results: list[Result]) -> str:
    """Return the table of docs/reliability.md."""
    lines = ["| what was done | faults | tests | failed |", "|---|---:|---:|---:|"]
    lines += [f"| {r.what} | {r.injected:,} | {r.tests} | {r.failed} |" for r in results]
    total = sum(result.injected for result in results)
    return "\n".join([*lines, "", f"{total:,} faults in all."])


def write_page(results: list[Result]) -> None:
    """Put the table into docs/reliability.md."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(results)}\n\n{END}{after}")


def kept(path: Path) -> dict[str, Result]:
    """Return the results that a file keeps, by scenario."""
    try:
        content = json.loads(path.read_text())
        return {one["scenario"]: Result(**one) for one in content["results"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def keep(path: Path, results: dict[str, Result]) -> list[Result]:
    """Write the results in the order of the scenarios and return them so."""
    ordered = [results[one.name] for one in SCENARIOS if one.name in results]
    content = {"results": [asdict(result) for result in ordered]}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return ordered


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    helps = {
        "rounds": "of every random test that has no count of its own",
        "kills": "kill -9 of trainings",
        "files": "damaged files",
        "hostile": "names, settings and world files",
        "saves": "with memory and open files watched",
    }
    for name, text in helps.items():
        default = getattr(Counts(), name)
        words = f"{text} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=words)
    names = ", ".join(one.name for one in SCENARIOS)
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"of {names}")
    parser.add_argument("--json", type=Path, default=KEPT, metavar="FILE", help="the results")
    parser.add_argument("--fresh", action="store_true", help="run again what has been run")
    parser.add_argument("--failed", action="store_true", help="only the tests that failed before")
    parser.add_argument("--page", action="store_true", help="only write docs/reliability.md")
    arguments = parser.parse_args()
    if unknown := set(filter(None, arguments.only.split(","))) - {one.name for one in SCENARIOS}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return arguments


def is_done(old: Result | None, asked: dict[str, str], commit: str) -> bool:
    """Tell whether a scenario has been run at this commit with these counts, and nothing failed."""
    return old is not None and (old.commit, old.asked, old.failed) == (commit, asked, 0)


def waiting(arguments: argparse.Namespace, results: dict[str, Result], commit: str) -> list[str]:
    """Return the names of the scenarios that are asked for and not done."""
    wanted = set(filter(None, arguments.only.split(",")))
    chosen = [one.name for one in SCENARIOS if not wanted or one.name in wanted]
    if arguments.page:
        return []
    if arguments.failed:
        return [name for name in chosen if name in results and results[name].failures]
    counts = counts_of(arguments)
    return [
        name
        for name in chosen
        if arguments.fresh or not is_done(results.get(name), counts.environment(name), commit)
    ]


def counts_of(arguments: argparse.Namespace) -> Counts:
    """Return how much the options ask for."""
    return Counts(*(getattr(arguments, name) for name in Counts.__dataclass_fields__))


def main() -> int:
    """Run what is asked for and not done; return 1 if anything was lost."""
    from navrl.machine import machine

    arguments, console = parse(), Console()
    results, commit = kept(arguments.json), machine()["commit"]
    by_name = {one.name: one for one in SCENARIOS}
    for name in waiting(arguments, results, commit):
        with console.status(by_name[name].what), tempfile.TemporaryDirectory() as folder:
            if arguments.failed:
                last = run_failed(results[name], Path(folder))
            else:
                last = run(by_name[name], counts_of(arguments), commit, Path(folder))
        results[name] = last
        keep(arguments.json, results)
        console.print(
            f"{last.what}: {last.injected:,} faults, {last.failed} of {last.tests} tests failed"
        )
    ordered = keep(arguments.json, results)
    console.print(table_of(ordered))
    if arguments.json == KEPT:
        write_page(ordered)
    return 1 if any(result.failed for result in ordered) else 0


if __name__ == "__main__":
    sys.exit(main())
