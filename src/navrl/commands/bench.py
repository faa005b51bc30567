"""`navrl bench`: run benchmarks, print their tables, keep their JSON, compare two results."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from navrl.benchmark import Report
    from navrl.benchmark.compare import Comparison

EPILOG = """examples:
  navrl bench simulator            the whole run, table on the screen, JSON in benchmarks/results/
  navrl bench simulator --check    the same, and exit 1 with the gates that failed
  navrl bench simulator --smoke    seconds, only to see that it still runs
  navrl bench all                  all but the long ones, in under an hour; run it again to go on
  navrl bench compare A.json B.json    which differences are larger than the noise
  navrl bench compare OLD NEW          the same for two folders of results
"""
ALL, COMPARE = "all", "compare"


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "bench",
        help="run a benchmark of a part and its peers, or all of them",
        description="Run benchmarks/NAME.py: cases interleaved, medians over rounds, peers in "
        "the same run. Peers that are not installed get an environment of their own.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name",
        nargs="?",
        help="the benchmark: a file of the folder benchmarks/, without .py; or all; compare",
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="for compare: two results or folders"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes and one round; writes no JSON unless --out"
    )
    _add_measuring(parser)
    parser.set_defaults(run=run)


def _add_measuring(parser: Any) -> None:
    """Add how long is measured, and what becomes of the results."""
    parser.add_argument(
        "--check", action="store_true", help="exit 1 and list the gates that failed"
    )
    parser.add_argument("--repeats", type=int, help="rounds (default: the benchmark's own)")
    parser.add_argument(
        "--minutes", type=float, help="start no round that would end later (all: 58 by default)"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="all: measure again what is measured already"
    )
    parser.add_argument(
        "--out", type=Path, help="where the JSON goes (default: benchmarks/results/NAME.json)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run what is asked for and return 1 if a check or a benchmark failed."""
    from rich.console import Console

    from navrl.errors import BenchmarkError

    console = Console(width=None if Console().is_terminal else 150)
    if arguments.name is None:
        from navrl.benchmark.folder import known_benchmarks

        raise BenchmarkError(
            f"name a benchmark: {', '.join([ALL, *known_benchmarks()])}; or {COMPARE} two results"
        )
    if arguments.name == COMPARE:
        return _compare(console, arguments.files)
    if arguments.files:
        raise BenchmarkError(
            f"{arguments.files[0]} is one argument too many: only `navrl bench compare` takes files"
        )
    if arguments.name == ALL:
        return _run_all(console, arguments)
    return _run_one(console, arguments)


def _run_one(console: Any, arguments: argparse.Namespace) -> int:
    from navrl import benchmark as bench
    from navrl.benchmark import session

    entries = {entry.name: entry for entry in bench.plan()}
    if arguments.name in entries and not arguments.smoke:
        command = session.command_of(entries[arguments.name], _options(arguments))
        if command[0] != sys.executable:
            console.print(f"peers are in an environment of their own: {command[0]}")
            return subprocess.run(command).returncode
    report = _measured(console, arguments)
    _print(console, report)
    _keep(console, arguments, report)
    if arguments.check and report.missed:
        for sentence in report.missed:
            console.print(f"[red]failed[/red] {sentence}")
        return 1
    return 0


def _measured(console: Any, arguments: argparse.Namespace) -> Report:
    from navrl import benchmark as bench

    suite = bench.find_suite(arguments.name, smoke=arguments.smoke)
    with _progress(console) as progress:
        return bench.run(
            suite,
            repeats=arguments.repeats,
            minutes=arguments.minutes,
            smoke=arguments.smoke,
            progress=progress.update,
        )


def _progress(console: Any) -> Any:
    """Return what shows progress: one line that changes, or plain lines without a terminal."""
    from navrl.benchmark.plain_progress import PlainProgress

    if console.is_terminal:
        return console.status("starting")
    return PlainProgress(lambda line: print(line, flush=True))


def _options(arguments: argparse.Namespace) -> list[str]:
    """Return the options of one benchmark as they are typed."""
    typed = ["--check"] if arguments.check else []
    for name in ("repeats", "minutes", "out"):
        value = getattr(arguments, name)
        typed += [] if value is None else [f"--{name}", str(value)]
    return typed


def _keep(console: Any, arguments: argparse.Namespace, report: Report) -> None:
    """Write the JSON, and the pages that show it if it is where results are kept."""
    from navrl.benchmark import session

    kept = arguments.out is None and not arguments.smoke
    out = session.result_file(report.suite.name) if kept else arguments.out
    if out is not None:
        report.write(out)
        console.print(f"written: {out}")
    if kept:
        report.suite.publish(report.as_dict())
        session.write_pages()


def _run_all(console: Any, arguments: argparse.Namespace) -> int:
    from rich.table import Table

    from navrl.benchmark import session

    minutes = 58.0 if arguments.minutes is None else arguments.minutes
    outcomes = session.run_all(
        minutes=minutes,
        smoke=arguments.smoke,
        fresh=arguments.fresh,
        tell=lambda line: console.print(f"[bold]{line}[/bold]"),
    )
    table = Table("benchmark", "", "minutes", "")
    for one in outcomes:
        table.add_row(one.name, one.state, f"{one.minutes:.1f}" if one.minutes else "", one.why)
    console.print(table)
    return 1 if any(one.state == session.FAILED for one in outcomes) else 0


def _compare(console: Any, files: list[Path]) -> int:
    from navrl.benchmark.compare import compare_files
    from navrl.errors import BenchmarkError

    if len(files) != 2:
        raise BenchmarkError(
            f"`navrl bench compare` takes two results or two folders of them, found {len(files)}"
        )
    briefly = all(file.is_dir() for file in files)
    for comparison in compare_files(*files):
        _print_comparison(console, comparison, briefly=briefly)
    return 0


def _print_comparison(console: Any, comparison: Comparison, *, briefly: bool) -> None:
    """Print every metric, or briefly those that have changed and how many have not."""
    from rich.table import Table

    shown = [change for change in comparison.changes if change.real or not briefly]
    table = Table("case", "metric", title=comparison.benchmark, title_justify="left")
    table.add_column("B / A", justify="right")
    table.add_column("99 % interval", justify="right")
    table.add_column("")
    for change in shown:
        known = change.low == change.low
        interval = f"{change.low:.3f} - {change.high:.3f}" if known else "one round"
        verdict = f"[bold]{change.verdict}[/bold]" if change.real else change.verdict
        table.add_row(change.case, change.metric, f"{change.ratio:.3f}", interval, verdict)
    if shown:
        console.print(table)
    if left := len(comparison.changes) - len(shown):
        console.print(
            f"{comparison.benchmark}: unchanged, or not to be told from noise: {left} of "
            f"{len(comparison.changes)} metrics"
        )
    if comparison.drift:
        console.print(
            f"Other libraries' cases changed by up to {100 * comparison.drift:.1f} % between the "
            "runs; the intervals are widened by that."
        )
    for warning in comparison.warnings:
        console.print(f"[yellow]warning[/yellow] {warning}")


def _print(console: Any, report: Report) -> None:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    console.print(f"[bold]{report.suite.title}[/bold]")
    console.print(
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}"
    )
    console.print(
        f"Python {machine['python']}, {versions}, commit {machine['commit']}, {machine['date']}"
    )
    console.print(_cases(report))
    if report.gates:
        console.print(_gates(report))


def _cases(report: Report) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("case")
    for column in report.suite.columns:
        table.add_column(column.heading, justify="right")
    table.add_column("spread", justify="right")
    for case in report.suite.cases:
        cells, spreads = [], []
        for column in report.suite.columns:
            value = report.results.median(case.name, column.metric)
            cells.append(f"{value * column.scale:{column.format}}" if value == value else "")
            spreads.append(report.results.spread(case.name, column.metric))
        table.add_row(case.name, *cells, f"{100 * max(spreads):.0f} %")
    return table


def _gates(report: Report) -> Table:
    from rich.table import Table

    table = Table()
    for heading in ("gate", "limit", "measured", ""):
        table.add_column(heading, justify="right" if heading in ("limit", "measured") else "left")
    for gate, value in report.gates:
        held = "[green]holds[/green]" if gate.holds(value) else "[red]failed[/red]"
        table.add_row(
            f"{gate.name}{' (stretch)' if gate.stretch else ''}", gate.limit, f"{value:.4g}", held
        )
    return table
