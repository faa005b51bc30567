"""`navrl curves RUN...`: how runs learnt, as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EPILOG = """examples:
  navrl curves runs/a --png curve.png
  navrl curves runs/a runs/b runs/c --png three_seeds.png
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "curves",
        help="draw success on unseen worlds against decisions and minutes",
        description="Draw the success in evaluations during training, of one run or several in "
        "one picture.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or its metrics.jsonl"
    )
    parser.add_argument(
        "--png", type=Path, default=Path("curves.png"), help="the picture (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw the picture and say where it is."""
    from navrl.errors import ConfigError
    from navrl.view.curves import save_curves

    try:
        save_curves(
            [run / "metrics.jsonl" if run.is_dir() else run for run in arguments.runs],
            arguments.png,
        )
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename != str(arguments.png):
            raise
        raise ConfigError(f"--png {arguments.png} cannot be written: {error.strerror}") from error
    print(f"written: {arguments.png}")
    return 0
