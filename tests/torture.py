"""`make torture`: the hostile tests with many more rounds, and a table of what was injected and
survived.

The tests are those of `make test`, which runs one round of each. Usage:

    python tests/torture.py                          about an hour on two cores
    python tests/torture.py --rounds 3 --only kill   some minutes
    python tests/torture.py --json reliability.json
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
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scenario:
    """What is done to the program, and the tests that do it."""

    name: str
    what: str
    tests: tuple[str, ...]
    files: int = 0  # damaged or crafted ones in a round, for each property


SCENARIOS = (
    Scenario(
        "kill", "kill -9 of trainings, resumed to the same bits", ("training/test_resume.py",)
    ),
    Scenario(
        "save",
        "kill -9 and Ctrl+C in the middle of saves",
        ("io/test_crash.py", "io/test_rollouts_crash.py"),
    ),
    Scenario(
        "power", "power loss: every prefix of the writes of a save", ("io/test_power_loss.py",)
    ),
    Scenario("disk", "full and broken disks under a training", ("training/test_failing_disk.py",)),
    Scenario(
        "clock",
        "clocks that run fast and are set back",
        ("io/test_sequence.py", "training/test_newest_run.py"),
    ),
    Scenario("terminal", "terminals closed under a training", ("training/test_hangup.py",)),
    Scenario(
        "registry",
        "registry: kill -9 at every change, lost and old databases, power loss",
        (
            "registry/test_killed.py",
            "registry/test_lost_database.py",
            "registry/test_registry_power_loss.py",
        ),
    ),
    Scenario("damage", "damaged files: flipped, cut, spliced", ("io/test_fuzz.py",), 20_000),
    Scenario(
        "crafted",
        "crafted files: indexes, models, worlds, pickles",
        (
            "io/test_crafted.py",
            "test_model_files.py",
            "sim/test_world_limits.py",
            "io/test_numpy_pickles.py",
        ),
        200,
    ),
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


def run(scenario: Scenario, rounds: int, folder: Path) -> Result:
    """Run the tests of a scenario, each file in a process of its own, and count."""
    environment = os.environ | {
        "NAVRL_TORTURE": str(rounds),
        "NAVRL_FUZZ": str(rounds * scenario.files),
    }
    start, counted = time.monotonic(), [0, 0, 0, 0]
    for test in scenario.tests:
        report = folder / f"{Path(test).stem}.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junit-xml={report}",
            str(HERE / test),
        ]
        done = subprocess.run(
            command, env=environment, cwd=HERE.parent, capture_output=True, text=True
        )
        if not report.exists():
            raise SystemExit(f"{test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        if done.returncode:
            print(done.stdout[-4000:])
        counted = [total + more for total, more in zip(counted, count(report), strict=True)]
    return Result(scenario.name, scenario.what, *counted, round((time.monotonic() - start) / 60, 1))


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


def main() -> int:
    """Run what is asked for; return 1 if anything was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=10, help="of every random test (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME,...",
        help=f"of {', '.join(one.name for one in SCENARIOS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    if unknown := wanted - {one.name for one in SCENARIOS}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    console, results = Console(), []
    with tempfile.TemporaryDirectory() as folder:
        for scenario in SCENARIOS:
            if wanted and scenario.name not in wanted:
                continue
            with console.status(scenario.what):
                results.append(run(scenario, arguments.rounds, Path(folder)))
            last = results[-1]
            console.print(
                f"{last.what}: {last.injected:,} faults, {last.failed} of {last.tests} tests failed"
            )
            if arguments.json:
                content = {
                    "rounds": arguments.rounds,
                    "results": [asdict(result) for result in results],
                }
                arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    console.print(table_of(results))
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
