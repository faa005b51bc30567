"""Models of a run that wait to be registered: `RUN/unregistered` has their files, and beside each
what is known about it.

A training that is killed and resumed finds them there.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from navrl.io.container.atomic_files import AtomicFile

__all__ = ["UnregisteredModel", "drop", "keep", "kept_models"]

_OF_THE_PROCESS = ("file", "attempts", "failure")  # what a resumed training finds out anew


@dataclass(eq=False)
class UnregisteredModel:
    """A model file that is to be registered, and what is known about it."""

    file: Path
    origin: Path  # where the training wrote it
    iteration: int
    metrics: dict[str, float]
    condition: str
    final: bool
    save: int = 0  # the number of the checkpoint that it belongs to
    attempts: int = 0
    failure: str = ""  # of the last attempt


def keep(model: UnregisteredModel, folder: Path) -> None:
    """Keep the file of a model in a folder, under a name that the training does not write to, with
    what is known about it.

    Raises:
        OSError: the disk is full, or nobody may write there; `model.file` is the file that there
            is.
    """
    kept = folder / f"{'final' if model.final else 'iteration'}_{model.iteration:06d}.pt"
    folder.mkdir(exist_ok=True)
    _facts_path(kept).unlink(missing_ok=True)
    kept.unlink(missing_ok=True)
    _link_or_copy(model.file, kept)
    model.file = kept
    known = {key: value for key, value in asdict(model).items() if key not in _OF_THE_PROCESS}
    with AtomicFile(_facts_path(kept)) as facts:
        facts.write([json.dumps(known | {"origin": str(model.origin)}, default=float).encode()])
        facts.commit()  # flushes the folder too


def _link_or_copy(source: Path, target: Path) -> None:
    with suppress(OSError):  # a file system without links
        os.link(source, target)
        return
    try:
        shutil.copyfile(source, target)
    except OSError:
        target.unlink(missing_ok=True)
        raise


def drop(model: UnregisteredModel) -> None:
    """Remove what `keep` made, and its folder with the last of them."""
    if model.file != model.origin:
        with suppress(OSError):
            _facts_path(model.file).unlink(missing_ok=True)
            model.file.unlink(missing_ok=True)
            model.file.parent.rmdir()


def kept_models(folder: Path) -> list[UnregisteredModel]:
    """Return the models that `keep` has left in a folder, in the order of the training."""
    found = (_read(path) for path in folder.glob("*.json"))
    return sorted(
        (model for model in found if model), key=lambda model: (model.final, model.iteration)
    )


def _read(path: Path) -> UnregisteredModel | None:
    """Return the model whose facts are in a file; None if they, or the model, are not there or
    damaged.
    """
    file = path.with_suffix(".pt")
    with suppress(OSError, ValueError, TypeError, KeyError):
        known: dict[str, Any] = json.loads(path.read_bytes())
        names = {field.name for field in fields(UnregisteredModel)} - {*_OF_THE_PROCESS}
        values = {key: value for key, value in known.items() if key in names}
        if file.is_file():
            # One attempt more than was made: the process that was killed may have registered it.
            return UnregisteredModel(
                **values | {"file": file, "origin": Path(known["origin"]), "attempts": 1}
            )
    return None


def _facts_path(kept: Path) -> Path:
    return kept.with_suffix(".json")
