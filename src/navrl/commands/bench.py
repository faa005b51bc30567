"""`navrl bench NAME`: run a benchmark, print its table, keep its JSON, check its gates."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from navrl.benchmark import Report

EPILOG = """examples:
  navrl bench simulator            the whole run, table on the screen, JSON in benchmarks/results/
  navrl bench simulator --check    the same, and exit 1 with the gates that failed
  navrl bench simulator --smoke    seconds, only to see that it still runs
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "bench",
        help="run a benchmark of a part and its peers",
        description="Run benchmarks/NAME.py: cases interleaved, medians over rounds, peers in "
        "the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="the benchmark: a file of the folder benchmarks/, without .py")
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes and one round; writes no JSON unless --out"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit 1 and list the gates that failed"
    )
    parser.add_argument("--repeats", type=int, help="rounds (default: the benchmark's own)")
    parser.add_argument(
        "--out", type=Path, help="where the JSON goes (default: benchmarks/results/NAME.json)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark and return 1 if a check failed."""
    from rich.console import Console

    from navrl import benchmark as bench

    console = Console(width=None if Console().is_terminal else 150)
    suite = bench.find_suite(arguments.name, smoke=arguments.smoke)
    with console.status("starting") as status:
        report = bench.run(
            suite, repeats=arguments.repeats, smoke=arguments.smoke, progress=status.update
        )
    _print(console, report)
    out = arguments.out
    if out is None and not arguments.smoke:
        out = bench.benchmark_folder() / "results" / f"{suite.name}.json"
        suite.publish(report.as_dict())
    if out is not None:
        report.write(out)
        console.print(f"written: {out}")
    if arguments.check and report.missed:
        for sentence in report.missed:
            console.print(f"[red]failed[/red] {sentence}")
        return 1
    return 0


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
