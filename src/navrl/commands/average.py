"""`navrl average REF REF ... -o FILE`: one policy out of several, by the mean of their weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EPILOG = """examples:
  navrl average runs/robust navigation:best -o policy.pt       two that share a training
  navrl eval policy.pt navigation:best --scenario crossing     is it better?
  navrl models register navigation policy.pt --alias best

Average models that have a training in common, such as several fine-tuned from the same one with
`navrl train preset=robust resume_checkpoint=...`. The mean of unrelated models does not fly.
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "average",
        help="average the weights of models that share a training",
        description="Write a model whose weights are the mean of those of several. Its settings "
        "are those of the first.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "references",
        nargs="+",
        metavar="REF",
        help="a model file, RUN for the model of a run, RUN/latest for its last checkpoint, "
        "NAME:ALIAS of the registry, or pretrained",
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE", help="the model to write"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Average, write, and say how to compare."""
    from navrl.averaged_models import average_models
    from navrl.commands.named_file import named_file
    from navrl.models import save_model

    state = average_models([named_file(reference) for reference in arguments.references])
    state["card"]["average_of"] = list(arguments.references)
    save_model(arguments.out, state)
    print(f"{arguments.out}: the mean of {len(arguments.references)} models")
    print(f"compare them: navrl eval {arguments.references[0]} {arguments.out}")
    return 0
