"""Python objects by name: `package.module:name`, as `env.target` and `network.target` take them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError, shown

__all__ = ["find_target"]


def find_target(key: str, target: str) -> Any:
    """Return what `package.module:name` names; modules in the working folder are found too.

    Args:
        key: the setting, for messages.
        target: what it names. Importing runs the module's code: never pass a name that comes from
            an untrusted file.

    Raises:
        ConfigError: there is no such module or name, or importing it fails.
    """
    module, colon, name = target.partition(":")
    if not module or not colon or not name:
        raise ConfigError(f"{key} is {shown(target)}; expected module:name, such as my_module:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # stays: the module may import others later
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key} is {shown(target)}, which cannot be imported: {error}. Expected module:name of "
            "an installed module, or of one in this folder"
        ) from error
    return found
