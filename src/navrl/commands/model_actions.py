"""The actions of `navrl models`: call the registry, print what it returns."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

from navrl.wording import counted

if TYPE_CHECKING:
    from navrl.registry import ModelVersion, Registry

MIRRORS = ("wandb", "mlflow", "trackio", "hf")  # that hold copies of models
ALIASES = {"huggingface": "hf"}  # of mirrors


def _report(version: ModelVersion, arguments: argparse.Namespace, sentence: str) -> int:
    from navrl.commands.model_tables import print_json

    print_json(version.as_dict()) if arguments.json else print(sentence)
    return 0


def _named(version: ModelVersion) -> str:
    return f"{version.label} ({', '.join(version.aliases) or 'no alias'}; stage {version.stage})"


def ls(registry: Registry, arguments: argparse.Namespace) -> int:
    """List the models, or the versions of one."""
    from navrl.commands.model_tables import print_json, print_models, print_versions

    found: Any = registry.versions(arguments.name) if arguments.name else registry.models()
    if arguments.json:
        print_json([one.as_dict() for one in found])
    elif not found:
        print(f"no models in {registry.root}; `navrl models register NAME FILE` adds one")
    else:
        (print_versions if arguments.name else print_models)(found)
    return 0


def show(registry: Registry, arguments: argparse.Namespace) -> int:
    """Show a version and the history of its aliases."""
    from navrl.commands.model_tables import print_json, print_version

    version = registry.resolve(arguments.reference)
    moves = [move for alias in version.aliases for move in registry.history(version.name, alias)]
    if arguments.json:
        print_json(version.as_dict() | {"history": [move.as_dict() for move in moves]})
    else:
        print_version(version, moves)
    return 0


def compare(registry: Registry, arguments: argparse.Namespace) -> int:
    """Show versions side by side."""
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


def card(registry: Registry, arguments: argparse.Namespace) -> int:
    """Print or write a model card."""
    card = registry.card(arguments.reference)
    if arguments.out is None:
        print(card, end="")
        return 0
    from navrl.errors import RegistryError
    from navrl.training.run_folder import write_text

    try:
        write_text(arguments.out, card)
    except OSError as error:
        raise RegistryError(f"--out {arguments.out} cannot be written: {error.strerror}") from error
    print(f"written: {arguments.out}")
    return 0


def verify(registry: Registry, arguments: argparse.Namespace) -> int:
    """Verify every file; exit 1 if something is damaged."""
    from navrl.commands.model_tables import print_json

    damaged = registry.verify()
    if arguments.json:
        print_json([damage._asdict() for damage in damaged])
    else:
        for damage in damaged:
            print(f"damaged: {damage.label}: {damage.path} {damage.problem}")
        print(f"{registry.root}: {len(damaged) or 'nothing'} damaged")
    return 1 if damaged else 0


def promote(registry: Registry, arguments: argparse.Namespace) -> int:
    """Put a version into a stage, or give it an alias."""
    version = registry.promote(arguments.reference, arguments.to)
    return _report(version, arguments, _named(version))


def set_alias(registry: Registry, arguments: argparse.Namespace) -> int:
    """Move or remove an alias."""
    from navrl.registry import parse_reference

    if not arguments.remove:
        asked = registry.resolve(arguments.reference)
        version = registry.set_alias(asked.name, arguments.alias, asked.version)
        return _report(version, arguments, _named(version))
    name = parse_reference(arguments.reference).name
    version = registry.resolve(f"{name}:{arguments.alias}")
    registry.remove_alias(name, arguments.alias)
    version = registry.resolve(version)
    return _report(version, arguments, _named(version))


def rollback(registry: Registry, arguments: argparse.Namespace) -> int:
    """Move an alias back to its previous version."""
    from navrl.errors import RegistryError
    from navrl.registry import parse_reference

    asked = parse_reference(arguments.reference)
    if asked.label is None or asked.alias is None:
        raise RegistryError(f"{asked} has no alias; expected NAME:ALIAS, such as {asked.name}:prod")
    version = registry.rollback(asked.name, asked.alias)
    return _report(version, arguments, _named(version))


def tag(registry: Registry, arguments: argparse.Namespace) -> int:
    """Add and remove tags."""
    version = registry.tag(arguments.reference, _pairs(arguments.tags), arguments.remove)
    return _report(version, arguments, f"{version.label}: {', '.join(version.tags) or 'no tags'}")


def register_version(registry: Registry, arguments: argparse.Namespace) -> int:
    """Register a file as the next version, with the evaluation that its run left."""
    from navrl.registry.held_out import HELD_OUT, held_out_of_run

    file = arguments.file / "model.pt" if arguments.file.is_dir() else arguments.file
    held_out = held_out_of_run(file.parent) if file.name == "model.pt" else ""
    tags = ({HELD_OUT: held_out} if held_out else {}) | _pairs(arguments.tag)
    version = registry.register(
        arguments.name,
        file,
        aliases=arguments.alias,
        tags=tags,
        notes=arguments.notes,
        stage=arguments.stage,
        metrics=_numbers(arguments.metric) if arguments.metric else None,
        lineage={"parent": arguments.parent} if arguments.parent else None,
    )
    return _report(version, arguments, _named(version))


def prune(registry: Registry, arguments: argparse.Namespace) -> int:
    """Remove old versions."""
    from navrl.commands.model_tables import print_json, size

    pruned = registry.prune(arguments.name, arguments.keep_last, dry_run=arguments.dry_run)
    if arguments.json:
        print_json([version.as_dict() for version in pruned])
        return 0
    verb = "would remove" if arguments.dry_run else "removed"
    for version in pruned:
        print(f"{verb} {version.label} ({size(version.size)})")
    left = len(registry.versions(arguments.name)) - (len(pruned) if arguments.dry_run else 0)
    print(f"{counted(left, 'version')} kept")
    return 0


def delete(registry: Registry, arguments: argparse.Namespace) -> int:
    """Remove one version."""
    from navrl.errors import RegistryError
    from navrl.registry import parse_reference

    asked = parse_reference(arguments.reference)
    if asked.version is None:
        raise RegistryError(f"{asked} has no version number; expected NAME:v3")
    version = registry.delete(asked.name, asked.version, force=arguments.force)
    return _report(version, arguments, f"removed {version.label}")


def gc(registry: Registry, arguments: argparse.Namespace) -> int:
    """Remove the files of deleted versions."""
    from navrl.commands.model_tables import print_json, size

    garbage = registry.collect_garbage(
        dry_run=arguments.dry_run, purge_quarantine=arguments.purge_quarantine
    )
    quarantined = [str(path) for path in garbage.quarantined]
    if arguments.json:
        files = [str(path) for path in garbage.files]
        print_json({"files": files, "bytes": garbage.bytes, "quarantined": quarantined})
        return 0
    verb = "would remove" if arguments.dry_run else "removed"
    print(f"{verb} {counted(len(garbage.files), 'file')} ({size(garbage.bytes)})")
    if quarantined:
        verb = "would move" if arguments.dry_run else "moved"
        strays = counted(len(quarantined), "unowned file")
        print(
            f"{verb} {strays} to {registry.root / 'quarantine'}; "
            "`navrl models gc --purge-quarantine` deletes them"
        )
    return 0


def repair(registry: Registry, arguments: argparse.Namespace) -> int:
    """Repair the database and the journal; exit 1 if files are missing."""
    from navrl.commands.model_tables import print_json, print_repair

    done = registry.repair()
    print_json(done.as_dict()) if arguments.json else print_repair(registry.root, done)
    return 1 if done.missing else 0


def push(registry: Registry, arguments: argparse.Namespace) -> int:
    """Upload a version to a tracker."""
    from navrl.registry.tracker_sync import push

    label = push(registry, arguments.reference, _backend(arguments), arguments.tracker)
    version = registry.resolve(arguments.reference)
    return _report(version, arguments, f"{version.label} is {label} in {arguments.tracker}")


def pull(registry: Registry, arguments: argparse.Namespace) -> int:
    """Fetch a model from a tracker."""
    from navrl.registry.tracker_sync import pull

    version = pull(
        registry, arguments.reference, _backend(arguments), arguments.tracker, arguments.name
    )
    return _report(
        version, arguments, f"{arguments.reference} of {arguments.tracker} is {_named(version)}"
    )


def _backend(arguments: argparse.Namespace) -> Any:
    """Return the tracker's backend, in the project and of the user that the reference names."""
    from navrl.errors import NavrlError, RegistryError, nearest_name

    arguments.tracker = ALIASES.get(arguments.tracker, arguments.tracker)
    if arguments.tracker not in MIRRORS:
        raise RegistryError(
            f"no mirror {arguments.tracker!r}; there are {', '.join(MIRRORS)}."
            f"{nearest_name(arguments.tracker, MIRRORS)}"
        )
    place = _place(arguments.tracker, arguments.reference)
    options = {key: value for key, value in place.items() if value is not None}
    options |= _pairs(arguments.option)
    try:
        return importlib.import_module("navrl.tracking.backends").open_backend(
            arguments.tracker, **options
        )
    except NavrlError:
        raise
    except Exception as error:
        raise RegistryError(
            f"the tracker {arguments.tracker} cannot be used: {type(error).__name__}: {error}"
        ) from error


def _place(tracker: str, reference: str) -> dict[str, str | None]:
    """Return the options of a tracker's backend that a reference names."""
    from navrl.errors import RegistryError
    from navrl.registry import parse_reference

    asked = parse_reference(reference)
    if tracker in ("wandb", "trackio"):
        return {"project": asked.project, "entity": asked.entity}
    if tracker != "hf":
        return {}
    if asked.entity is not None:
        raise RegistryError(f"{asked} has three parts; expected USER/NAME:ALIAS on the hub")
    return {"user": asked.project}


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
