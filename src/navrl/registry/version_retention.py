"""Which versions of a model may be pruned."""

from __future__ import annotations

from collections.abc import Iterable

from navrl.errors import RegistryError
from navrl.io.retention import Item, Retention
from navrl.registry.schema import ModelVersion

NEEDED_STAGES = ("staging", "production")


def prunable(versions: Iterable[ModelVersion], keep_last_n: int) -> list[ModelVersion]:
    """Return the versions to prune, oldest first; never the last n, nor one in use.

    A version is in use if it has an alias, or is in staging or production.

    Raises:
        RegistryError: `keep_last_n` is not a number of at least 1.
    """
    if isinstance(keep_last_n, bool) or not isinstance(keep_last_n, int) or keep_last_n < 1:
        raise RegistryError(f"keep_last_n is {keep_last_n!r}; expected a number of at least 1")
    items = [
        Item(
            version,
            order=version.version,
            pinned=bool(version.aliases) or version.stage in NEEDED_STAGES,
        )
        for version in versions
    ]
    return Retention(keep_last_n).prunable(items)
