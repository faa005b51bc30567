"""`navrl sweep SPACE.yaml`: look for settings that learn better."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.sweep.sweep import Sweep

EPILOG = """examples:
  navrl sweep new space.yaml             write a commented file to start from
  navrl sweep space.yaml                 run its trials, one after another, in sweeps/space
  navrl sweep space.yaml                 again after kill -9 or Ctrl+C: resumes where it stopped
  navrl sweep space.yaml --show          the trials so far, the best first
  navrl sweep space.yaml --storage postgresql://me@host/sweeps    share the study between machines

The same command in a second terminal runs trials of the same study side by side.
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "sweep",
        help="look for better settings with Optuna",
        description="Train with settings that Optuna proposes, end poor trials early, and rank "
        "the rest. Every trial is a run like any other.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "space", type=Path, metavar="SPACE.yaml", nargs="+", help="or: new SPACE.yaml"
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FOLDER", help="of its trials (default: sweeps/NAME)"
    )
    parser.add_argument("--storage", metavar="URL", help="a database that machines share")
    parser.add_argument("--show", action="store_true", help="only show the trials so far")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the trials and print what they came to."""
    from rich.console import Console

    from navrl.errors import ConfigError
    from navrl.sweep.space import load_space
    from navrl.sweep.sweep import Sweep

    words = arguments.space
    if len(words) == 2 and words[0] == Path("new"):
        return _write_template(words[1])
    if len(words) != 1:
        raise ConfigError(f"{len(words)} files; expected one, or `navrl sweep new SPACE.yaml`")
    folder = arguments.out or Path("sweeps") / words[0].stem
    console = Console()
    sweep = Sweep(
        load_space(words[0]),
        folder,
        storage=arguments.storage,
        tell=lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True),
    )
    return _run(sweep, console, arguments.show, folder / "report.html")


def _run(sweep: Sweep, console: Any, only_show: bool, report: Path) -> int:
    """Run the trials, unless they are only shown; print them, and write the report."""
    try:
        if not only_show:
            sweep.run()
    finally:
        _print_results(sweep, console)
        path = sweep.save_results()
    print(f"written: {path}")
    if not only_show:
        _write_report(sweep, report)
    return 0


def _write_template(path: Path) -> int:
    from navrl.errors import ConfigError
    from navrl.sweep.space import TEMPLATE

    if path.exists():
        raise ConfigError(f"{path} exists; name another file")
    path.write_text(TEMPLATE)
    print(f"written: {path}; edit it, then: navrl sweep {path}")
    return 0


def _print_results(sweep: Sweep, console: Any) -> None:
    from rich.table import Table

    results = sweep.results()
    varied = list(sweep.space.space)
    table = Table("trial", "state", sweep.space.metric, "minutes", *varied)
    for result in results:
        value = "" if result.value is None else f"{result.value:.4g}"
        minutes = "" if result.minutes is None else f"{result.minutes:.1f}"
        settings = [f"{result.settings.get(key, '')}" for key in varied]
        table.add_row(str(result.number), result.state, value, minutes, *settings)
    console.print(table)
    if results and results[0].state == "complete":
        words = " ".join(sweep.space.overrides(results[0].settings))
        console.print(f"best: navrl train {words}", highlight=False, markup=False, soft_wrap=True)


def _write_report(sweep: Sweep, path: Path) -> None:
    """Write the report of the five best trials that came to their end."""
    from navrl.view.report import write_report

    done = [Path(result.folder) for result in sweep.results() if result.state == "complete"]
    runs = [folder for folder in done[:5] if folder.is_dir()]
    if runs:
        write_report(runs, path)
        print(f"open in a browser: {path}")
