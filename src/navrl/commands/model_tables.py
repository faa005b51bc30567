"""Output of `navrl models`: tables on a terminal, plain lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.registry import AliasMove, ModelSummary, ModelVersion, Repair
    from navrl.registry.version_comparison import Row


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table: boxed on a terminal, else one row a line with aligned columns."""
    cells = [[_printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(*headings, title=title or None, title_justify="left")
        for row in cells:
            table.add_row(*map(escape, row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for line in (headings, *cells):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def print_models(models: Sequence[ModelSummary]) -> None:
    """Print the list of models."""
    headings = ("model", "versions", "newest", "aliases", "size", "updated")
    rows = [
        (
            model.name,
            str(model.versions),
            f"v{model.last_version}",
            ", ".join(f"{alias}=v{version}" for alias, version in model.aliases.items()),
            size(model.size),
            date(model.updated),
        )
        for model in models
    ]
    print_table(headings, rows)


def print_versions(versions: Sequence[ModelVersion]) -> None:
    """Print the list of a model's versions."""
    headings = ("version", "aliases", "stage", "kind", "metrics", "size", "created")
    rows = [
        (
            version.label,
            ", ".join(version.aliases),
            version.stage,
            version.kind,
            ", ".join(
                f"{name} {number(value)}" for name, value in list(version.metrics.items())[:3]
            ),
            size(version.size),
            date(version.created),
        )
        for version in versions
    ]
    print_table(headings, rows)


def print_version(version: ModelVersion, moves: Sequence[AliasMove]) -> None:
    """Print everything known about a version, and the history of its aliases."""
    facts = {**_facts(version), **_results(version), **_lineage(version)}
    print_table(("what", "value"), [(name, value) for name, value in facts.items() if value])
    if moves:
        print_table(
            ("alias", "from", "to", "why", "when"),
            [
                (move.alias, label(move.old), label(move.new), move.reason, date(move.moved))
                for move in moves
            ],
        )


def _facts(version: ModelVersion) -> dict[str, str]:
    from navrl.registry.held_out import HELD_OUT, held_out_results

    line = version.tags.get(HELD_OUT, "")
    held_out = held_out_results(line).items() if line else ()
    return {
        "version": version.label,
        **{f"held out, {scenario}": result for scenario, result in held_out},
        "path": str(version.path),
        "kind": version.kind,
        "aliases": ", ".join(version.aliases),
        "stage": version.stage,
        "tags": ", ".join(
            f"{key}={text}" if text else key
            for key, text in version.tags.items()
            if key != HELD_OUT
        ),
        "size": size(version.size),
        "SHA-256": version.digest,
        "created": date(version.created),
        "notes": version.notes,
    }


def _results(version: ModelVersion) -> dict[str, str]:
    return {name: number(value) for name, value in version.metrics.items()}


def _lineage(version: ModelVersion) -> dict[str, str]:
    """Return what the version was made from; its configuration is too long to be shown."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, default=str)
        for name, value in version.lineage.items()
        if name != "config"
    }


def print_comparison(labels: Sequence[str], rows: Sequence[Row]) -> None:
    """Print versions side by side; what differs is marked."""
    shown = [
        (
            row.group,
            row.key,
            "*" if row.differs else "",
            *(number(value) if value is not None else "-" for value in row.values),
        )
        for row in rows
    ]
    print_table(("", "", "", *labels), shown)


def print_repair(root: Path, done: Repair) -> None:
    """Print what a repair did, and what is still missing."""
    for path in done.kept:
        print(f"damaged, kept as {path}")
    if done.rebuilt:
        print("rebuilt the database from the journal")
    for label in done.returned:
        print(f"returned the file of {label} from quarantine")
    for label in done.adopted:
        print(f"registered an unowned file as {label}")
    for path in done.quarantined:
        print(f"moved a damaged unowned file to {path}")
    for label in done.missing:
        print(f"missing: the file of {label}; register the same file again, or delete {label}")
    print(f"{root}: {done.versions} versions, {len(done.missing) or 'no'} files missing")


def number(value: Any) -> str:
    """Return a value as text, numbers with four digits."""
    if value is None:
        return "not finite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def label(version: int | None) -> str:
    """Return the label of a version, or a dash for none."""
    return "-" if version is None else f"v{version}"


def size(count: float) -> str:
    """Return a number of bytes as text."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def date(moment: Any) -> str:
    """Return a time as text, in UTC."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _printable(text: str) -> str:
    """Return text as one line without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
