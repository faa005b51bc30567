"""`navrl convert SOURCE TARGET`: a checkpoint in another format, to and from safetensors and
torch.save.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EPILOG = """examples:
  navrl convert runs/a policy.safetensors              the model of a run
  navrl convert runs/a/latest plain.pth                for torch.load
  navrl convert policy:best plain.pt --to torch        a model of the registry
  navrl convert somebody_elses.pt mine.pt              compressed and checksummed from now on
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "convert",
        help="write a checkpoint in another format",
        description="Write a checkpoint in another format. The format of SOURCE is detected.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source",
        help="a checkpoint of navrl or torch.save, a safetensors file, RUN for the model of a "
        "run, RUN/latest, or NAME:ALIAS",
    )
    parser.add_argument("target", type=Path, help="the file to write")
    formats = "the format (default: by the suffix; .pth is torch)"
    parser.add_argument("--to", choices=("navrl", "safetensors", "torch"), help=formats)
    parser.add_argument(
        "--codec", default="planes-zstd", help="how a navrl file is stored (default: planes-zstd)"
    )
    parser.add_argument(
        "--trusted", action="store_true", help="trust SOURCE: a pickle in it may run code"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert and say how large the two files are."""
    from navrl.commands.named_file import named_file
    from navrl.io.checkpoint.conversion import convert_checkpoint

    source = named_file(arguments.source)
    target = convert_checkpoint(
        source, arguments.target, to=arguments.to, codec=arguments.codec, trusted=arguments.trusted
    )
    print(
        f"{source} ({source.stat().st_size / 1e6:.1f} MB) -> {target} "
        f"({target.stat().st_size / 1e6:.1f} MB)"
    )
    return 0
