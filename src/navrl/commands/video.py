"""`navrl video REF`: flights as an MP4 or a GIF."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.commands.recorded import add_flights, recordings_of

if TYPE_CHECKING:
    from navrl.view.video import VideoSettings

EPILOG = """examples:
  navrl video pretrained --scenario crossing -o crossing.mp4
  navrl video runs/mine -o flight.gif --size 640x360 --fps 12 --speed 2
  navrl video runs/mine --scenario standard --follow 17 -o crash.mp4      fly behind one drone
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "video",
        help="write flights as an MP4 or a GIF, without a display",
        description="Draw flights in perspective and write them as a video. MP4 needs the extra "
        "navrl[video], GIF only navrl[view]. If several scenarios are recorded, the last is shown.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flights(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("flight.mp4"),
        help="the video (default: %(default)s)",
    )
    _add_pictures(parser)
    _add_playback(parser)
    parser.add_argument("--dark", action="store_true", help="on a dark background")
    parser.set_defaults(run=run)


def _add_pictures(parser: Any) -> None:
    parser.add_argument(
        "--size", default="854x480", metavar="WxH", help="of a picture (default: %(default)s)"
    )
    parser.add_argument(
        "--fps", type=int, default=25, help="pictures a second (default: %(default)s)"
    )


def _add_playback(parser: Any) -> None:
    """Add which part of the flights is shown, how fast and from where."""
    parser.add_argument(
        "--speed", type=float, default=1.0, help="2 plays twice as fast (default: %(default)s)"
    )
    parser.add_argument("--start", type=float, default=0.0, metavar="S", help="skip S seconds")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after S seconds of flight")
    parser.add_argument(
        "--follow", type=int, metavar="N", help="fly behind episode N (numbers: navrl replay)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the video and print where it is."""
    from rich.console import Console
    from rich.progress import Progress

    from navrl.errors import ConfigError
    from navrl.view.video import check_format, write_video

    check_format(arguments.out)
    settings = _settings(arguments)
    recording = recordings_of(arguments)[-1]
    try:
        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task("drawing")

            write_video(
                recording,
                arguments.out,
                settings,
                lambda done, of: bars.update(bar, completed=done, total=of),
            )
    except OSError as error:
        raise ConfigError(f"--out {arguments.out} cannot be written: {error.strerror}") from error
    megabytes = arguments.out.stat().st_size / 1e6
    print(f"written: {arguments.out} ({megabytes:.1f} MB, scenario {recording.scenario})")
    return 0


def _settings(arguments: argparse.Namespace) -> VideoSettings:
    from navrl.view.video import VideoSettings

    width, height = _size(arguments.size)
    return VideoSettings(
        width=width,
        height=height,
        frames_per_second=arguments.fps,
        speed=arguments.speed,
        start=arguments.start,
        seconds=arguments.seconds,
        follow=arguments.follow,
        dark=arguments.dark,
    )


def _size(text: str) -> tuple[int, int]:
    """Return the width and the height written as `854x480`."""
    from navrl.errors import ConfigError

    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise ConfigError(f"--size is {text!r:.40}; expected width x height, such as 854x480")
    return int(width), int(height)
