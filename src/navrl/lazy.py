"""Packages whose public names are imported when they are first used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping

__all__ = ["TRAINING", "lazy_names"]

TRAINING = ("numba", "hydra", "omegaconf", "rich")  # what the extra `train` brings


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package; it finds modules of the package too.

    Args:
        package: its name.
        places: the module that each public name is in.
    """

    def find(name: str) -> object:
        if name not in places:
            if importlib.util.find_spec(f"{package}.{name}") is not None:
                return importlib.import_module(f"{package}.{name}")
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it offers "
                f"{', '.join(sorted(places))}"
            )
        try:
            return getattr(importlib.import_module(places[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in TRAINING:
                raise
            from navrl.errors import missing_extra

            raise missing_extra(f"{package}.{name} needs {error.name}", "train") from error

    return find
