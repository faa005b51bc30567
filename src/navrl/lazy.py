"""Packages whose public names are imported when they are first used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping

__all__ = ["lazy_names"]


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
        return getattr(importlib.import_module(places[name]), name)

    return find
