"""Which versions of a model may go."""

from __future__ import annotations

from collections.abc import Iterable

from navrl.errors import RegistryError
from navrl.registry.schema import ModelVersion

NEEDED_STAGES = ("staging", "production")


def prunable(versions: Iterable[ModelVersion], keep_last_n: int) -> list[ModelVersion]:
    """Return the versions that may go, the oldest first: not among the last n, without an alias, in
    no stage that is used.

    Raises:
        RegistryError: `keep_last_n` is no number of at least 1.
    """
    if isinstance(keep_last_n, bool) or not isinstance(keep_last_n, int) or keep_last_n < 1:
        raise RegistryError(f"keep_last_n is {keep_last_n!r}; expected a number of at least 1")
    ordered = sorted(versions, key=lambda version: version.version)
    return [
        version
        for version in ordered[:-keep_last_n]
        if not version.aliases and version.stage not in NEEDED_STAGES
    ]
