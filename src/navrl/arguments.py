"""Arguments of public functions: what is taken, in the type that the code needs, and the error for
the rest.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError, shown

__all__ = ["as_mapping", "as_path", "whole_number"]


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number as an int; those of NumPy and torch are taken too, and floats such as
    1e6.

    Raises:
        ConfigError: it is no whole number, or outside its limits; the message names the argument.
    """
    try:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        number = None if isinstance(value, bool) else operator.index(whole)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {shown(value)}; expected a whole number {limits}")
    return number


def as_path(name: str, value: Any) -> Path:
    """Return a path.

    Raises:
        ConfigError: it is neither text nor a path; the message names the argument.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} is {shown(value)}; expected a path, such as 'runs/a/model.pt'")
    return Path(value)


def as_mapping(name: str, value: Any) -> dict[str, Any]:
    """Return values by name as a new dict; None gives an empty one.

    Raises:
        ConfigError: it is something else; the message names the argument.
    """
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} is {shown(value)}; expected values by name, such as {{'success': 0.5}}"
        )
    return dict(value or {})
