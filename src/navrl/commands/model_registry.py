"""`navrl models ACTION`: the models on this machine, their versions, aliases and stages."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.registry import ModelVersion, Registry

EPILOG = """examples:
  navrl models register policy runs/mine              the model of a run becomes policy:v1, and policy:latest
  navrl models register policy runs/mine/checkpoints/latest --alias stable --tag robot=small --notes "no wind"
  navrl models ls                                     all models
  navrl models ls policy                              its versions
  navrl models show policy:best                       file, results, lineage, history of its aliases
  navrl models compare policy:v1 policy:v2            metrics side by side, and the settings that differ
  navrl models promote policy:v2 production           moves the alias prod; what was there is archived
  navrl models alias policy:v2 best                   moves an alias; --remove takes it away
  navrl models rollback policy:prod                   back to what it was before
  navrl models prune policy --keep-last 5 --dry-run   what has no alias and no stage and is old
  navrl models card policy:best --out CARD.md         a model card
  navrl models push policy:best --mirror wandb        to a tracker; pull ada/drones/policy:best fetches from one
  navrl models verify && navrl models gc              read every file; remove those of deleted versions
  navrl models repair                                 after a loss: database and journal, each from the other
  navrl eval policy:best                              a name is as good as a path
"""  # noqa: E501

REFERENCE = "NAME, NAME:ALIAS or NAME:v3"


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "models",
        help="versions, aliases and stages of the models on this machine",
        description="The registry of models on this machine: $NAVRL_REGISTRY, or the folder "
        "navrl/registry of your data.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    _add_looking(actions)
    _add_moving(actions)
    _add_files(actions)


def _action(
    actions: Any, name: str, run: Callable[[Registry, argparse.Namespace], int], text: str
) -> Any:
    parser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument(
        "--registry", type=Path, metavar="FOLDER", help="another registry than $NAVRL_REGISTRY"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.set_defaults(run=lambda arguments: _run(run, arguments))
    return parser


def _add_looking(actions: Any) -> None:
    ls = _action(actions, "ls", _ls, "list the models, or the versions of one")
    ls.add_argument("name", nargs="?", help="a model")
    show = _action(actions, "show", _show, "show all that is known of a version")
    show.add_argument("reference", help=REFERENCE)
    compare = _action(
        actions,
        "compare",
        _compare,
        "show versions side by side: metrics, and the settings that differ",
    )
    compare.add_argument("references", nargs="+", metavar="reference", help=REFERENCE)
    card = _action(actions, "card", _card, "print the model card of a version, as Markdown")
    card.add_argument("reference", help=REFERENCE)
    card.add_argument("--out", type=Path, metavar="FILE", help="write it there instead")
    _action(
        actions,
        "verify",
        _verify,
        "read every file, compare it with its digest, exit 1 and name what is damaged",
    )


def _add_moving(actions: Any) -> None:
    promote = _action(
        actions, "promote", _promote, "put a version into a stage, or give it an alias"
    )
    promote.add_argument("reference", help=REFERENCE)
    promote.add_argument(
        "to", metavar="STAGE|ALIAS", help="none, staging, production or archived; or an alias"
    )
    alias = _action(actions, "alias", _alias, "point an alias at a version, or remove it")
    alias.add_argument("reference", help=f"{REFERENCE}; with --remove the NAME")
    alias.add_argument("alias", help="such as best, stable or v1.0")
    alias.add_argument("--remove", action="store_true", help="take the alias away")
    rollback = _action(
        actions, "rollback", _rollback, "point an alias at what it pointed at before"
    )
    rollback.add_argument("reference", metavar="NAME:ALIAS", help="such as policy:prod")
    tag = _action(actions, "tag", _tag, "add tags to a version, or remove them")
    tag.add_argument("reference", help=REFERENCE)
    tag.add_argument("tags", nargs="*", metavar="key[=value]", help="tags to add")
    tag.add_argument("--remove", action="append", default=[], metavar="key", help="a tag to remove")


def _add_files(actions: Any) -> None:
    add = _action(
        actions,
        "register",
        _register,
        "copy a model, or a checkpoint, into the registry as a new version",
    )
    add.add_argument("name", help="of the model")
    add.add_argument("file", type=Path, help="a model, a checkpoint, or the folder of a run")
    add.add_argument(
        "--alias", action="append", default=[], help="beside latest; may be given again"
    )
    add.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="key=number",
        help="default: those in the model file",
    )
    add.add_argument(
        "--tag", action="append", default=[], metavar="key[=value]", help="may be given again"
    )
    add.add_argument("--notes", default="", help="a text for the model card")
    add.add_argument("--stage", help="none, staging, production or archived")
    add.add_argument("--parent", metavar="REFERENCE", help="the version that it was made from")
    prune = _action(
        actions, "prune", _prune, "remove old versions that have no alias and are in no stage"
    )
    prune.add_argument("name", help="of the model")
    prune.add_argument(
        "--keep-last", type=int, required=True, metavar="N", help="keep the newest N"
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    delete = _action(actions, "delete", _delete, "remove a version")
    delete.add_argument("reference", metavar="NAME:v3", help="the version, by its number")
    delete.add_argument("--force", action="store_true", help="also if an alias points at it")
    gc = _action(
        actions,
        "gc",
        _gc,
        "remove the files of deleted versions; put unknown files into quarantine",
    )
    gc.add_argument("--dry-run", action="store_true", help="only say what would go")
    gc.add_argument(
        "--purge-quarantine", action="store_true", help="also delete every file in quarantine"
    )
    text = (
        "make a damaged or lost database, or journal, whole again, and adopt files without a record"
    )
    _action(actions, "repair", _repair, text)
    push = _action(actions, "push", _push, "upload a version to a tracker")
    pull = _action(actions, "pull", _pull, "fetch a model from a tracker into the registry")
    for parser in (push, pull):
        parser.add_argument("reference", help="NAME:ALIAS or USER/PROJECT/NAME:ALIAS")
        parser.add_argument(
            "--mirror", default="wandb", help="wandb, mlflow or trackio (default: %(default)s)"
        )
        parser.add_argument(
            "--option",
            action="append",
            default=[],
            metavar="key=value",
            help="of the tracker, such as project=NavRL",
        )
    pull.add_argument("--name", help="what to call it here (default: its name there)")


def _run(
    action: Callable[[Registry, argparse.Namespace], int], arguments: argparse.Namespace
) -> int:
    """Carry out an action; what the system refuses is told in one line too."""
    from navrl.errors import RegistryError
    from navrl.registry import Registry

    try:
        with Registry(arguments.registry) as registry:
            code = action(registry, arguments)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        raise RegistryError(f"{str(error.filename)!r}: {error.strerror or error}") from error


def _told(version: ModelVersion, arguments: argparse.Namespace, sentence: str) -> int:
    from navrl.commands.model_tables import print_json

    print_json(version.as_dict()) if arguments.json else print(sentence)
    return 0


def _named(version: ModelVersion) -> str:
    return f"{version.label} ({', '.join(version.aliases) or 'no alias'}; stage {version.stage})"


def _ls(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.commands.model_tables import print_json, print_models, print_versions

    found: Any = registry.versions(arguments.name) if arguments.name else registry.models()
    if arguments.json:
        print_json([one.as_dict() for one in found])
    elif not found:
        print(f"no models in {registry.root}; `navrl models register NAME FILE` adds one")
    else:
        (print_versions if arguments.name else print_models)(found)
    return 0


def _show(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.commands.model_tables import print_json, print_version

    version = registry.resolve(arguments.reference)
    moves = [move for alias in version.aliases for move in registry.history(version.name, alias)]
    if arguments.json:
        print_json(version.as_dict() | {"history": [move.as_dict() for move in moves]})
    else:
        print_version(version, moves)
    return 0


def _compare(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.commands.model_tables import print_comparison, print_json

    rows = registry.compare(arguments.references)
    labels = [registry.resolve(reference).label for reference in arguments.references]
    if arguments.json:
        print_json(
            [row._asdict() | {"values": dict(zip(labels, row.values, strict=True))} for row in rows]
        )
    else:
        print_comparison(labels, rows)
    return 0


def _card(registry: Registry, arguments: argparse.Namespace) -> int:
    card = registry.card(arguments.reference)
    if arguments.out is None:
        print(card, end="")
        return 0
    from navrl.errors import RegistryError
    from navrl.train.run_folder import write_text

    try:
        write_text(arguments.out, card)
    except OSError as error:
        raise RegistryError(f"--out {arguments.out} cannot be written: {error.strerror}") from error
    print(f"written: {arguments.out}")
    return 0


def _verify(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.commands.model_tables import print_json

    damaged = registry.verify()
    if arguments.json:
        print_json([damage._asdict() for damage in damaged])
    else:
        for damage in damaged:
            print(f"damaged: {damage.label}: {damage.path} {damage.problem}")
        print(f"{registry.root}: {len(damaged) or 'nothing'} damaged")
    return 1 if damaged else 0


def _promote(registry: Registry, arguments: argparse.Namespace) -> int:
    version = registry.promote(arguments.reference, arguments.to)
    return _told(version, arguments, _named(version))


def _alias(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.registry import parse_reference

    if not arguments.remove:
        version = registry.set_alias(
            (asked := registry.resolve(arguments.reference)).name, arguments.alias, asked.version
        )
        return _told(version, arguments, _named(version))
    name = parse_reference(arguments.reference).name
    version = registry.resolve(f"{name}:{arguments.alias}")
    registry.remove_alias(name, arguments.alias)
    version = registry.resolve(version)
    return _told(version, arguments, _named(version))


def _rollback(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.errors import RegistryError
    from navrl.registry import parse_reference

    asked = parse_reference(arguments.reference)
    if asked.label is None or asked.alias is None:
        raise RegistryError(
            f"{asked} names no alias; expected NAME:ALIAS, such as {asked.name}:prod"
        )
    version = registry.rollback(asked.name, asked.alias)
    return _told(version, arguments, _named(version))


def _tag(registry: Registry, arguments: argparse.Namespace) -> int:
    version = registry.tag(arguments.reference, _pairs(arguments.tags), arguments.remove)
    return _told(version, arguments, f"{version.label}: {', '.join(version.tags) or 'no tags'}")


def _register(registry: Registry, arguments: argparse.Namespace) -> int:
    file = arguments.file / "model.pt" if arguments.file.is_dir() else arguments.file
    version = registry.register(
        arguments.name,
        file,
        aliases=arguments.alias,
        tags=_pairs(arguments.tag),
        notes=arguments.notes,
        stage=arguments.stage,
        metrics=_numbers(arguments.metric) if arguments.metric else None,
        lineage={"parent": arguments.parent} if arguments.parent else None,
    )
    return _told(version, arguments, _named(version))


def _prune(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.commands.model_tables import print_json, size

    gone = registry.prune(arguments.name, arguments.keep_last, dry_run=arguments.dry_run)
    if arguments.json:
        print_json([version.as_dict() for version in gone])
        return 0
    verb = "would remove" if arguments.dry_run else "removed"
    for version in gone:
        print(f"{verb} {version.label} ({size(version.size)})")
    print(
        f"{len(registry.versions(arguments.name)) - (len(gone) if arguments.dry_run else 0)} "
        "versions kept"
    )
    return 0


def _delete(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.errors import RegistryError
    from navrl.registry import parse_reference

    asked = parse_reference(arguments.reference)
    if asked.version is None:
        raise RegistryError(f"{asked} is no version by its number; expected NAME:v3")
    version = registry.delete(asked.name, asked.version, force=arguments.force)
    return _told(version, arguments, f"removed {version.label}")


def _gc(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.commands.model_tables import print_json, size

    garbage = registry.collect_garbage(
        dry_run=arguments.dry_run, purge_quarantine=arguments.purge_quarantine
    )
    quarantined = [str(path) for path in garbage.quarantined]
    if arguments.json:
        files = [str(path) for path in garbage.files]
        print_json({"files": files, "bytes": garbage.bytes, "quarantined": quarantined})
        return 0
    print(
        f"{'would remove' if arguments.dry_run else 'removed'} {len(garbage.files)} files "
        f"({size(garbage.bytes)})"
    )
    if quarantined:
        verb = "would move" if arguments.dry_run else "moved"
        print(
            f"{verb} {len(quarantined)} files that the registry knows nothing about to "
            f"{registry.root / 'quarantine'}; "
            "`navrl models gc --purge-quarantine` deletes them"
        )
    return 0


def _repair(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.commands.model_tables import print_json, print_repair

    done = registry.repair()
    print_json(done.as_dict()) if arguments.json else print_repair(registry.root, done)
    return 1 if done.missing else 0


def _push(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.registry.tracker_sync import push

    label = push(registry, arguments.reference, _mirror(arguments), arguments.mirror)
    version = registry.resolve(arguments.reference)
    return _told(version, arguments, f"{version.label} is {label} in {arguments.mirror}")


def _pull(registry: Registry, arguments: argparse.Namespace) -> int:
    from navrl.registry.tracker_sync import pull

    version = pull(
        registry, arguments.reference, _mirror(arguments), arguments.mirror, arguments.name
    )
    return _told(
        version, arguments, f"{arguments.reference} of {arguments.mirror} is {_named(version)}"
    )


def _mirror(arguments: argparse.Namespace) -> Any:
    """Return the tracker; the project and user of a reference are where it looks."""
    from navrl.errors import NavrlError, RegistryError
    from navrl.registry import parse_reference

    asked = parse_reference(arguments.reference)
    place = (
        {"project": asked.project, "entity": asked.entity}
        if arguments.mirror in ("wandb", "trackio")
        else {}
    )
    options = {key: value for key, value in place.items() if value is not None} | _pairs(
        arguments.option
    )
    try:
        return importlib.import_module("navrl.tracking.backends").open_backend(
            arguments.mirror, **options
        )
    except NavrlError:
        raise
    except Exception as error:
        raise RegistryError(
            f"the tracker {arguments.mirror} cannot be used: {type(error).__name__}: {error}"
        ) from error


def _pairs(words: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _numbers(words: list[str]) -> dict[str, float]:
    from navrl.errors import RegistryError

    try:
        return {key: float(value) for key, value in _pairs(words).items()}
    except ValueError:
        raise RegistryError(
            f"--metric is {', '.join(words)}; expected key=number, such as success=0.9"
        ) from None
