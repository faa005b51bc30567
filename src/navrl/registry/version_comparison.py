"""Versions side by side: all their metrics, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from navrl.registry.schema import ModelVersion

__all__ = ["Row", "compare_versions", "flat"]

_FACTS = (
    "iteration",
    "frames",
    "seed",
    "parameters",
    "parent",
    "git.commit",
    "versions.navrl",
    "versions.torch",
)
_OWN_TO_EVERY_RUN = ("run_folder", "resume", "resume_checkpoint")


class Row(NamedTuple):
    """One line of a comparison: group (model, metrics or config), key, one value per version.

    A value is None where a version does not have the key.
    """

    group: str
    key: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        """Whether the versions differ here."""
        return any(value != self.values[0] for value in self.values)


def compare_versions(versions: Sequence[ModelVersion]) -> list[Row]:
    """Return the facts and metrics of versions, and the settings in which they differ."""
    facts = [_facts(version) for version in versions]
    metrics = [dict(version.metrics) for version in versions]
    configs = [flat(version.lineage.get("config", {})) for version in versions]
    model = [Row("model", key, _values(facts, key)) for key in _union(facts)]
    measured = [Row("metrics", key, _values(metrics, key)) for key in sorted(_union(metrics))]
    settings = [
        Row("config", key, _values(configs, key))
        for key in sorted(_union(configs))
        if key not in _OWN_TO_EVERY_RUN
    ]
    return [*model, *measured, *(row for row in settings if row.differs)]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings with dotted keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{name}": value}
        )
    return found


def _facts(version: ModelVersion) -> dict[str, Any]:
    known = flat({key: value for key, value in version.lineage.items() if key != "config"})
    own = {
        "created": version.created.isoformat(timespec="seconds"),
        "stage": version.stage,
        "aliases": ", ".join(version.aliases),
        "kind": version.kind,
        "size": version.size,
        "digest": version.digest[:12],
    }
    return own | {key: known[key] for key in _FACTS if key in known}


def _union(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for column in columns for key in column))


def _values(columns: Sequence[Mapping[str, Any]], key: str) -> tuple[Any, ...]:
    return tuple(column.get(key) for column in columns)
