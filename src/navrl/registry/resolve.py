"""A model by its path or by its name in the registry, wherever a model is asked for."""

from __future__ import annotations

import os
from pathlib import Path

from navrl.errors import RegistryError
from navrl.registry.model_names import parse_reference, shown
from navrl.registry.registry import Registry

__all__ = ["find_model"]


def find_model(reference: str | os.PathLike[str], registry: Registry | None = None) -> Path:
    """Return the file of a model: a path that exists wins, else `name`, `name:alias`, `name:v3` or
    `user/project/name:alias`.

    Of the folder of a run it is the model in it.

    The registry on this machine is asked, and nobody else: of `user/project/name:alias` it knows
    the name. The file that is returned stays the same file, whatever becomes of the alias.

    Raises:
        RegistryError: there is neither such a file nor such a model, or the model's file is gone.
    """
    if not isinstance(reference, str | os.PathLike):
        raise RegistryError(
            f"a model is {shown(reference)}; expected a path, or a name such as policy:best"
        )
    text = os.fspath(reference)
    if os.path.isdir(text) and not os.path.isfile(os.path.join(text, "model.pt")):
        raise RegistryError(
            f"{shown(text)} is a folder without model.pt; expected a model, the folder of a "
            "run, or a name"
        )
    if os.path.exists(text):  # takes any text, where Path.exists does not
        return Path(text, "model.pt") if os.path.isdir(text) else Path(text)
    own = registry is None
    registry = registry or Registry()
    try:
        asked = parse_reference(text)
        found = registry.resolve(asked)
    except RegistryError as error:
        raise RegistryError(f"{shown(text)}: no such file, and {error}{_advice(text)}") from error
    finally:
        if own:
            registry.close()
    if not found.path.is_file():
        raise RegistryError(
            f"{found.label}: its file {found.path} is gone; `navrl models verify` lists what "
            "else is"
        )
    return found.path


def _advice(text: str) -> str:
    """Say how a model gets here from elsewhere, if the text names an elsewhere."""
    return (
        f"; `navrl models pull {text}` fetches it from a tracker"
        if text.count("/") == 2 and text.isprintable()
        else ""
    )
