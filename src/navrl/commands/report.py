"""`navrl report RUN...`: how runs learnt, what they cost and how they fail, as one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EPILOG = """examples:
  navrl report runs/mine                                   writes report.html; open it in a browser
  navrl report runs/a runs/b runs/c -o three_seeds.html    runs side by side, and a mean over seeds
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "report",
        help="write a page about runs: curves, results, failures, time, checkpoints, settings",
        description="Write one HTML file about one run or several: success per scenario with "
        "intervals, learning curves, failures by cause with links to their replays, where the time "
        "goes, speed, memory, checkpoints, and the settings that differ. A run may still train.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report.html"),
        help="the page (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    from navrl.errors import ConfigError
    from navrl.view.report import write_report

    if arguments.out.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--out is {arguments.out}; expected a name that ends in .html")
    try:
        write_report(arguments.runs, arguments.out)
    except OSError as error:
        raise ConfigError(f"--out {arguments.out} cannot be written: {error.strerror}") from error
    print(f"written: {arguments.out}; open it in a browser")
    return 0
