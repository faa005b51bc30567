"""`navrl models ACTION`: the options of each action; `model_actions` runs them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.commands import model_actions

if TYPE_CHECKING:
    from navrl.registry import Registry

EPILOG = """examples:
  navrl models register policy runs/mine              the model of a run becomes policy:v1, and policy:latest
  navrl models register policy runs/mine/checkpoints/latest --alias stable --tag robot=small --notes "no wind"
  navrl models ls                                     list all models
  navrl models ls policy                              list its versions
  navrl models show policy:best                       file, results, lineage, history of its aliases
  navrl models compare policy:v1 policy:v2            metrics side by side, and the settings that differ
  navrl models promote policy:v2 production           moves the alias prod; the version before it is archived
  navrl models alias policy:v2 best                   moves an alias; --remove removes it
  navrl models rollback policy:prod                   back to its previous version
  navrl models prune policy --keep-last 5 --dry-run   old versions without alias and stage
  navrl models card policy:best --out CARD.md         a model card
  navrl models push policy:best --tracker wandb       upload it; pull ada/drones/policy:best fetches one
  navrl models push policy:best --mirror hf           to the Hugging Face hub; pull ada/policy:best --mirror hf
  navrl models verify && navrl models gc              verify all files; remove those of deleted versions
  navrl models repair                                 rebuild a damaged database or journal
  navrl eval policy:best                              names work wherever paths do
"""  # noqa: E501

REFERENCE = "NAME, NAME:ALIAS or NAME:v3"


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "models",
        help="versions, aliases and stages of the models on this machine",
        description="The registry of models on this machine: $NAVRL_REGISTRY, or navrl/registry in "
        "your data folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    _add_lookups(actions)
    _add_moves(actions)
    _add_register(actions)
    _add_removals(actions)
    _add_trackers(actions)


def _action(
    actions: Any, name: str, run: Callable[[Registry, argparse.Namespace], int], text: str
) -> Any:
    parser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument(
        "--registry", type=Path, metavar="FOLDER", help="instead of $NAVRL_REGISTRY"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.set_defaults(run=lambda arguments: _run(run, arguments))
    return parser


def _add_lookups(actions: Any) -> None:
    ls = _action(actions, "ls", model_actions.ls, "list the models, or the versions of one")
    ls.add_argument("name", nargs="?", help="a model")
    show = _action(actions, "show", model_actions.show, "show everything known about a version")
    show.add_argument("reference", help=REFERENCE)
    compare = _action(
        actions,
        "compare",
        model_actions.compare,
        "show versions side by side: metrics, and the settings that differ",
    )
    compare.add_argument("references", nargs="+", metavar="reference", help=REFERENCE)
    card = _action(
        actions, "card", model_actions.card, "print the model card of a version, as Markdown"
    )
    card.add_argument("reference", help=REFERENCE)
    card.add_argument("--out", type=Path, metavar="FILE", help="write it to a file")
    _action(
        actions,
        "verify",
        model_actions.verify,
        "compare every file with its digest; exit 1 if one is damaged",
    )


def _add_moves(actions: Any) -> None:
    promote = _action(
        actions, "promote", model_actions.promote, "put a version into a stage, or give it an alias"
    )
    promote.add_argument("reference", help=REFERENCE)
    promote.add_argument(
        "to", metavar="STAGE|ALIAS", help="none, staging, production or archived; or an alias"
    )
    alias = _action(
        actions, "alias", model_actions.set_alias, "point an alias at a version, or remove it"
    )
    alias.add_argument("reference", help=f"{REFERENCE}; with --remove the NAME")
    alias.add_argument("alias", help="such as best, stable or v1.0")
    alias.add_argument("--remove", action="store_true", help="remove the alias")
    rollback = _action(
        actions, "rollback", model_actions.rollback, "point an alias at its previous version"
    )
    rollback.add_argument("reference", metavar="NAME:ALIAS", help="such as policy:prod")
    tag = _action(actions, "tag", model_actions.tag, "add tags to a version, or remove them")
    tag.add_argument("reference", help=REFERENCE)
    tag.add_argument("tags", nargs="*", metavar="key[=value]", help="tags to add")
    tag.add_argument("--remove", action="append", default=[], metavar="key", help="a tag to remove")


def _add_register(actions: Any) -> None:
    add = _action(
        actions,
        "register",
        model_actions.register_version,
        "copy a model, or a checkpoint, into the registry as a new version",
    )
    add.add_argument("name", help="of the model")
    add.add_argument("file", type=Path, help="a model, a checkpoint, or the folder of a run")
    add.add_argument("--alias", action="append", default=[], help="beside latest; repeatable")
    add.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="key=number",
        help="default: those in the model file",
    )
    add.add_argument("--tag", action="append", default=[], metavar="key[=value]", help="repeatable")
    add.add_argument("--notes", default="", help="a text for the model card")
    add.add_argument("--stage", help="none, staging, production or archived")
    add.add_argument("--parent", metavar="REFERENCE", help="the version that it was made from")


def _add_removals(actions: Any) -> None:
    prune = _action(
        actions, "prune", model_actions.prune, "remove old versions without alias and stage"
    )
    prune.add_argument("name", help="of the model")
    prune.add_argument(
        "--keep-last", type=int, required=True, metavar="N", help="keep the newest N"
    )
    prune.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    _add_deletion(actions)
    text = "rebuild a damaged or lost database or journal, and register unowned files"
    _action(actions, "repair", model_actions.repair, text)


def _add_deletion(actions: Any) -> None:
    delete = _action(actions, "delete", model_actions.delete, "remove a version")
    delete.add_argument("reference", metavar="NAME:v3", help="version number")
    delete.add_argument("--force", action="store_true", help="even if an alias points to it")
    gc = _action(
        actions,
        "gc",
        model_actions.gc,
        "remove the files of deleted versions; move unowned files to quarantine",
    )
    gc.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    gc.add_argument(
        "--purge-quarantine", action="store_true", help="also delete every file in quarantine"
    )


def _add_trackers(actions: Any) -> None:
    push = _action(
        actions, "push", model_actions.push, "upload a version to a tracker or the Hugging Face hub"
    )
    pull = _action(
        actions,
        "pull",
        model_actions.pull,
        "fetch a model from a tracker or the hub into the registry",
    )
    for parser in (push, pull):
        _add_tracker(parser)
    pull.add_argument("--name", help="its name in the registry (default: the same)")


def _add_tracker(parser: Any) -> None:
    """Add the version, and the tracker that has it or gets it."""
    parser.add_argument(
        "reference", help="NAME:ALIAS, USER/PROJECT/NAME:ALIAS; hf: USER/NAME:ALIAS"
    )
    parser.add_argument(
        "--mirror",
        "--tracker",
        dest="tracker",
        default="wandb",
        metavar="MIRROR",
        help="wandb, mlflow, trackio or hf, the Hugging Face hub (default: %(default)s)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="key=value",
        help="of the tracker, such as project=NavRL",
    )


def _run(
    action: Callable[[Registry, argparse.Namespace], int], arguments: argparse.Namespace
) -> int:
    """Run an action; errors of the system become one line too."""
    from navrl.errors import RegistryError
    from navrl.registry import Registry

    try:
        with Registry(arguments.registry) as registry:
            return action(registry, arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RegistryError(f"{str(error.filename)!r}: {error.strerror or error}") from error
