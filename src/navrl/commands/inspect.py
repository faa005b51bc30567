"""`navrl inspect WHAT`: what a checkpoint or a model holds, or which checkpoints a run has."""

from __future__ import annotations

import argparse
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.commands.model_tables import size
from navrl.wording import counted

if TYPE_CHECKING:
    from rich.table import Table

    from navrl.io.checkpoint.listing import Entry
    from navrl.io.container.index import Index

EPILOG = """examples:
  navrl inspect runs/a/latest             tensors, sizes, codec, ratio, metadata
  navrl inspect runs/a                    the checkpoints of a run with their metrics
  navrl inspect runs/a/latest --verify    read every byte and compare the checksums; exit 1 if one is wrong
  navrl inspect policy:best               a model of the registry
  navrl inspect theirs.pth                a torch.save file: loaded to look at, no code in it is run
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what checkpoints and models hold",
        description="Show what a checkpoint, a model, or the checkpoints of a run hold. Of "
        "navrl's own "
        "files only the index is read, unless --verify. Files of torch.save and safetensors are "
        "loaded.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path", help="a checkpoint, a model, a run, a folder of checkpoints, or NAME:ALIAS"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check every byte; exit 1 if anything is damaged, or nothing is there",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the file or the folder; return 1 if something is damaged."""
    from rich.console import Console

    from navrl.commands.named_file import checkpoint_folder, named_file

    console = Console(width=None if Console().is_terminal else 150)
    if os.path.isdir(arguments.path):
        return _show_folder(console, checkpoint_folder(Path(arguments.path)), arguments.verify)
    path = named_file(arguments.path)
    show = _show_file if _is_container(path) else _show_foreign
    return show(console, path, arguments.verify)


def _is_container(path: Path) -> bool:
    from navrl.io.container.index import MAGIC, naming_file, open_to_read

    with naming_file(path), open(open_to_read(path), "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _show_file(console: Any, path: Path, verify: bool) -> int:
    from rich.markup import escape

    from navrl.io import read_index
    from navrl.io.checkpoint.parts import parts_of

    index = read_index(path)
    document = index.document
    kind = escape(f"{document.get('kind')!s:.60}")
    console.print(
        f"[bold]{escape(str(path))}[/bold]: {kind}, {size(index.size)} stored as {_stored(index)}"
    )
    _print_document(console, document)
    for part in parts_of(index).parts:
        console.print(f"part {part.file}, {size(part.stored_bytes)}", markup=False)
    metadata = json.dumps(document.get("metadata"))
    console.print(f"metadata {shortened(metadata)}", markup=False, soft_wrap=True)
    console.print(_tensors(index))
    return _verify(console, [path]) if verify else 0


def _print_document(console: Any, document: dict[str, Any]) -> None:
    if isinstance(document.get("created"), float):
        console.print(f"created {format_date(document['created'])}")
    if isinstance(document.get("base"), dict):
        base = shortened(str(document["base"].get("file")))
        console.print(f"holds differences to {base}", markup=False)


def _tensors(index: Index) -> Table:
    """Return the tensors of a container as a table."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("tensor", "type", "shape", "codec", *_right("bytes", "stored", "ratio"))
    for entry in index.arrays:
        ratio = f"{entry.stored_bytes / entry.size:.3f}" if entry.size else ""
        shape = " x ".join(map(str, entry.shape)) or "single"
        sizes = f"{entry.size:,}", f"{entry.stored_bytes:,}", ratio
        table.add_row(escape(entry.name), entry.element, shape, entry.codec, *sizes)
    return table


def _show_foreign(console: Any, path: Path, verify: bool) -> int:
    """Show a file of torch.save or safetensors, loaded without running any code of it."""
    from rich.markup import escape

    from navrl.errors import shown
    from navrl.io.checkpoint.conversion import read_any_format

    state, metadata = read_any_format(path)
    kind = "safetensors" if path.suffix == ".safetensors" else "torch.save"
    console.print(f"[bold]{escape(str(path))}[/bold]: {kind}, {size(path.stat().st_size)}")
    if metadata:
        console.print(f"metadata {shortened(json.dumps(metadata))}", markup=False, soft_wrap=True)
    console.print(_tensors_of_state(state))
    for key, value in state.items() if isinstance(state, dict) else ():
        if isinstance(value, str | int | float | bool | None):
            console.print(f"{shown(key)}: {shown(value)}", markup=False, soft_wrap=True)
    if verify:
        told = f"{path}: loads; {kind} files have no checksums"
        console.print(told, markup=False, soft_wrap=True)
    return 0


def _tensors_of_state(state: Any) -> Table:
    """Return the tensors in a nested state as a table."""
    from rich.markup import escape
    from rich.table import Table

    from navrl.io.container.state_tree import pack_state

    packed = pack_state(state)
    table = Table("tensor", "type", "shape", *_right("bytes"))
    for name, value in zip(packed.names(), packed.values, strict=True):
        shape = " x ".join(map(str, value.shape)) or "single"
        element = str(value.dtype).removeprefix("torch.")
        table.add_row(escape(name), element, shape, f"{value.nbytes:,}")
    return table


def _show_folder(console: Any, folder: Path, verify: bool) -> int:
    from rich.markup import escape

    from navrl.io.checkpoint.listing import (
        checkpoint_files,
        list_aliases,
        list_entries,
        list_unreadable,
    )

    entries = list_entries(folder)
    console.print(f"[bold]{escape(str(folder))}[/bold]: {counted(len(entries), 'checkpoint')}")
    if entries:
        console.print(_checkpoints(entries, list_aliases(folder)))
    for reason in [] if verify else list_unreadable(folder).values():
        console.print(f"not listed: {reason}", markup=False, soft_wrap=True)
    if not verify:
        return 0
    files = [path for _, path in checkpoint_files(folder)]
    if not files:
        console.print("nothing to verify; expected a run or a folder of checkpoints")
        return 1
    return _verify(console, files)


def _checkpoints(entries: list[Entry], aliases: dict[str, str]) -> Table:
    """Return the checkpoints of a folder as a table."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        *_right("step"), "names", "metrics", *_right("bytes", "stored", "ratio"), "created"
    )
    for entry in entries:
        names = ", ".join(
            sorted(name for name, target in aliases.items() if target == entry.path.name)
        )
        metrics = ", ".join(
            _metric(name, value) for name, value in entry.metrics.items() if value is not None
        )
        ratio = entry.stored_bytes / entry.raw_bytes if entry.raw_bytes else 1.0
        sizes = size(entry.raw_bytes), size(entry.stored_bytes), f"{ratio:.3f}"
        texts = escape(names), escape(metrics)
        table.add_row(str(entry.step), *texts, *sizes, format_date(entry.created))
    return table


def _verify(console: Any, paths: list[Path]) -> int:
    from navrl.errors import ContainerError
    from navrl.io import verify_checkpoint

    damaged = 0
    for path in paths:
        try:
            verify_checkpoint(path)
            console.print(f"{path}: verified", markup=False, soft_wrap=True)
        except ContainerError as error:
            damaged += 1
            console.print(f"damaged: {error}", markup=False, soft_wrap=True)
    return 1 if damaged else 0


def _right(*headings: str) -> list[Any]:
    from rich.table import Column

    return [Column(heading, justify="right") for heading in headings]


def _stored(index: Any) -> str:
    return f"{size(index.file_size)}, ratio {index.file_size / index.size if index.size else 1:.3f}"


def _metric(name: str, value: Any) -> str:
    try:
        return f"{name} {value:.4g}" if isinstance(value, int | float) else f"{name} {value!r:.60}"
    except OverflowError:  # a whole number beyond all floats
        return f"{name} {value!r:.60}"


def shortened(text: str) -> str:
    """Return a text, or its beginning if it is longer than anybody reads."""
    most = 10_000
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} letters)"


def format_date(seconds: float) -> str:
    """Return a time as people write it; also one that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s after 1970"  # no date that there is
