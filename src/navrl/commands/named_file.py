"""The file that a command is about: by its path, by the run that it is of, or by its name in the
registry.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["checkpoint_folder", "named_file"]


def named_file(reference: str) -> Path:
    """Return the file of a checkpoint or a model.

    Args:
        reference: a path; RUN for the model of a run; RUN/NAME for RUN/checkpoints/NAME, such as
            RUN/latest; NAME:ALIAS of the registry; `pretrained`.

    Raises:
        CheckpointError: there is none of these; the message says what to type.
    """
    from navrl.errors import CheckpointError, RegistryError
    from navrl.evaluation import PRETRAINED
    from navrl.io import find_checkpoint
    from navrl.registry import find_model

    path = Path(reference)
    try:
        return find_checkpoint(path)
    except CheckpointError as error:
        missing = error
    if (path.parent / "checkpoints" / path.name).is_file():
        return path.parent / "checkpoints" / path.name
    if reference == "pretrained":
        return PRETRAINED
    try:
        return find_model(reference)
    except RegistryError as error:
        if path.is_dir() or ":" not in reference:
            raise missing from error
        raise CheckpointError(str(error)) from error


def checkpoint_folder(folder: Path) -> Path:
    """Return the folder with the checkpoints of a run, or the folder itself if it is not a
    run's.
    """
    own = folder / "checkpoints"
    return own if own.is_dir() else folder
