"""`navrl checkpoints prune FOLDER`: remove old checkpoints by the rules of a training run."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.wording import counted

if TYPE_CHECKING:
    from navrl.io import Retention
    from navrl.io.checkpoint.listing import Entry

EPILOG = """examples:
  navrl checkpoints prune runs/a --keep-last 3 --dry-run
  navrl checkpoints prune runs/a --keep-last 3 --keep-best 2 --metric success --keep-every 1000
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "checkpoints",
        help="prune a folder of checkpoints",
        description="Work on the checkpoints of a run. `navrl inspect RUN` lists them.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    prune = actions.add_parser(
        "prune",
        help="remove the checkpoints that no rule keeps",
        description="Remove the checkpoints that no rule keeps, and the batches beside them. What "
        "has an alias is always kept.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prune.add_argument("folder", type=Path, help="a run, or a folder of checkpoints")
    _add_rules(prune)
    prune.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    prune.set_defaults(run=run)


def _add_rules(prune: Any) -> None:
    """Add which checkpoints are kept."""
    prune.add_argument(
        "--keep-last",
        type=int,
        required=True,
        metavar="N",
        help="keep the N that were written last",
    )
    prune.add_argument(
        "--keep-best", type=int, default=0, metavar="K", help="keep the best K by --metric"
    )
    prune.add_argument("--metric", help="the metric that ranks them")
    prune.add_argument(
        "--mode",
        choices=("max", "min"),
        default="max",
        help="whether the largest or the smallest value is best",
    )
    prune.add_argument(
        "--keep-every", type=int, default=0, metavar="K", help="keep steps that are a multiple of K"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prune the folder and say what went."""
    from navrl.commands.named_file import checkpoint_folder
    from navrl.io.checkpoint.listing import list_entries
    from navrl.io.checkpoint.pruning import prune_entries
    from navrl.io.container.atomic_files import check_is_folder

    folder = checkpoint_folder(arguments.folder)
    check_is_folder(folder)
    rules = _rules(arguments)
    entries = list_entries(folder)
    beside = {entry.step for entry in entries if entry.rollout_path.exists()}
    dry_run = arguments.dry_run
    removed = prune_entries(folder, rules, entries, with_rollouts=True, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    for entry in removed:
        batch = ", and the batch beside it" if entry.step in beside else ""
        print(f"{verb} {entry.path} ({entry.stored_bytes / 1e6:.1f} MB){batch}")
    _remove_leftovers(folder, entries, removed, dry_run)
    print(f"{counted(len(entries) - len(removed), 'checkpoint')} kept")
    return 0


def _rules(arguments: argparse.Namespace) -> Retention:
    from navrl.io import Retention

    return Retention(
        arguments.keep_last,
        arguments.keep_best,
        arguments.metric,
        arguments.mode,
        arguments.keep_every,
    )


def _remove_leftovers(
    folder: Path, entries: list[Entry], removed: Collection[Entry], dry_run: bool
) -> None:
    """Remove the files that belong to no checkpoint, and say which."""
    from navrl.io.checkpoint.pruning import remove_orphaned_rollouts, remove_unused_parts
    from navrl.io.container.atomic_files import remove_stale_files

    verb = "would remove" if dry_run else "removed"
    for path in remove_orphaned_rollouts(folder, entries, dry_run=dry_run):
        print(f"{verb} {path}, a batch without its checkpoint")
    left = entries if dry_run else [entry for entry in entries if entry not in removed]
    for path in remove_unused_parts(folder, left, dry_run=dry_run):
        print(f"{verb} {path}, a part without its checkpoint")
    for path in [] if dry_run else remove_stale_files(folder):
        print(f"removed {path}, a temporary file of a writer that died")
