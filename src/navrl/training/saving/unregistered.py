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

_NOT_STORED = ("file", "attempts", "failure")  # state of this process alone


@dataclass(eq=False)
class UnregisteredModel:
    """A model file that waits to be registered, with its metadata."""

    file: Path
    origin: Path  # the file that the training wrote
    iteration: int
    metrics: dict[str, float]
    condition: str
    final: bool
    save: int = 0  # number of the checkpoint that it belongs to
    attempts: int = 0
    failure: str = ""  # of the last attempt


def keep(model: UnregisteredModel, folder: Path) -> None:
    """Keep a model's file and metadata in a folder that the training does not write to.

    Raises:
        OSError: the disk is full or not writable; `model.file` is unchanged.
    """
    kept = folder / f"{'final' if model.final else 'iteration'}_{model.iteration:06d}.pt"
    folder.mkdir(exist_ok=True)
    _facts_path(kept).unlink(missing_ok=True)
    kept.unlink(missing_ok=True)
    _link_or_copy(model.file, kept)
    model.file = kept
    known = {key: value for key, value in asdict(model).items() if key not in _NOT_STORED}
    with AtomicFile(_facts_path(kept)) as facts:
        facts.write([json.dumps(known | {"origin": str(model.origin)}, default=float).encode()])
        facts.commit()  # flushes the folder too


def _link_or_copy(source: Path, target: Path) -> None:
    with suppress(OSError):  # no hard links here
        os.link(source, target)
        return
    try:
        shutil.copyfile(source, target)
    except OSError:
        target.unlink(missing_ok=True)
        raise


def drop(model: UnregisteredModel) -> None:
    """Remove the files of `keep`, and the folder once it is empty."""
    if model.file != model.origin:
        with suppress(OSError):
            _facts_path(model.file).unlink(missing_ok=True)
            model.file.unlink(missing_ok=True)
            model.file.parent.rmdir()


def kept_models(folder: Path) -> list[UnregisteredModel]:
    """Return the models that `keep` left in a folder, in the order of the training."""
    found = (_read(path) for path in folder.glob("*.json"))
    return sorted(
        (model for model in found if model), key=lambda model: (model.final, model.iteration)
    )


def _read(path: Path) -> UnregisteredModel | None:
    """Return the model of a metadata file; None if either is missing or damaged."""
    file = path.with_suffix(".pt")
    with suppress(OSError, ValueError, TypeError, KeyError):
        known: dict[str, Any] = json.loads(path.read_bytes())
        names = {field.name for field in fields(UnregisteredModel)} - {*_NOT_STORED}
        values = {key: value for key, value in known.items() if key in names}
        if file.is_file():
            # attempts=1, because the process that was killed may have registered it
            return UnregisteredModel(
                **values | {"file": file, "origin": Path(known["origin"]), "attempts": 1}
            )
    return None


def _facts_path(kept: Path) -> Path:
    return kept.with_suffix(".json")
