"""`navrl replay REF`: flights as a page that plays in any browser."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.commands.recorded import add_flights, recordings_of

if TYPE_CHECKING:
    from navrl.evaluation.recording import Recording

EPILOG = """examples:
  navrl replay pretrained                                  fly the policy in the package, then watch it
  navrl replay runs/mine                                   the flights that a run recorded at its end
  navrl replay runs/eval --scenario crossing -o a.html     one scenario of an evaluation
  navrl replay scripted env.num_obstacles=100 --flights 16
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "replay",
        help="write flights as a page that plays in any browser",
        description="Write one HTML file with recorded flights: drones, obstacles, LiDAR rays, "
        "failures first. It needs no network and no server: open it in a browser, or send it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flights(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("replay.html"),
        help="the page (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    write_page(arguments)
    return 0


def write_page(arguments: argparse.Namespace) -> Sequence[Recording]:
    """Write the replay page that the arguments ask for, print where it is, return its flights.

    Raises:
        ConfigError: the name is not that of a page, or the file cannot be written.
    """
    from navrl.errors import ConfigError
    from navrl.view.replay import write_replay

    path: Path = arguments.out
    if path.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--out is {path}; expected a name that ends in .html")
    recordings = recordings_of(arguments)
    try:
        write_replay(recordings, path)
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}") from error
    print(f"written: {path} ({path.stat().st_size / 1000:.0f} kB); open it in a browser")
    return recordings
