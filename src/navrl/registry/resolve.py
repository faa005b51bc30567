"""Finds a model by its path or by its name in the registry."""

from __future__ import annotations

import os
from pathlib import Path

from navrl.errors import RegistryError
from navrl.registry.model_names import parse_reference, shown
from navrl.registry.registry import Registry

__all__ = ["find_model"]


def find_model(reference: str | os.PathLike[str], registry: Registry | None = None) -> Path:
    """Return the file of a model: a path, a run's folder, or a reference into the registry.

    A path that exists wins. References are `name`, `name:alias`, `name:v3` or
    `user/project/name:alias`, which is looked up by its name. Only the registry on this machine is
    asked. The returned file never changes, even if the alias moves.

    Raises:
        RegistryError: there is neither such a file nor such a model, or its file is missing.

    >>> import navrl
    >>> from navrl.evaluation import PRETRAINED
    >>> with navrl.Registry("models") as registry:
    ...     version = registry.register("policy", PRETRAINED)
    ...     navrl.find_model("policy:latest", registry) == version.path
    True
    """
    if not isinstance(reference, str | os.PathLike):
        raise RegistryError(
            f"the model is {shown(reference)}; expected a path, or a name such as policy:best"
        )
    text = os.fspath(reference)
    if os.path.exists(text):  # accepts any text, unlike Path.exists
        return _model_at(text)
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
            f"{found.label}: its file {found.path} is missing; `navrl models verify` lists all "
            "damage"
        )
    return found.path


def _model_at(path: str) -> Path:
    """Return the model at a path that exists: the file, or the model of a run's folder."""
    if not os.path.isdir(path):
        return Path(path)
    if not os.path.isfile(os.path.join(path, "model.pt")):
        raise RegistryError(
            f"{shown(path)} is a folder without model.pt; expected a model, a run's folder, or "
            "a name"
        )
    return Path(path, "model.pt")


def _advice(text: str) -> str:
    """Return how to fetch a model, if the text names a place in a tracker."""
    return (
        f"; `navrl models pull {text}` fetches it from a tracker"
        if text.count("/") == 2 and text.isprintable()
        else ""
    )
