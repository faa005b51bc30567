"""Copies versions to and from a tracker; the registry stays the source of truth."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from navrl.errors import NavrlError, RegistryError
from navrl.registry.model_names import check_name, parse_reference
from navrl.registry.registry import Registry
from navrl.registry.schema import ModelVersion

__all__ = ["ModelSource", "ModelStore", "pull", "push"]


class ModelSource(Protocol):
    """A tracker to `pull` from."""

    def download(self, reference: str, folder: Path) -> Path:
        """Fetch a file into a folder and return its path."""


class ModelStore(ModelSource, Protocol):
    """A tracker to `push` to."""

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Keep a file as the newest version of a name and return its label, such as `v3`."""


def push(registry: Registry, reference: str, store: ModelStore, kind: str) -> str:
    """Upload a version with its aliases, metrics and lineage; return the tracker's label for it.

    The label is kept as the version's tag `kind`, which shows what has been uploaded.

    Raises:
        RegistryError: there is no such version, its file is damaged, or the tracker failed.
    """
    version = registry.resolve(reference)
    damage = registry.fault(version)
    if damage is not None:
        raise RegistryError(
            f"{version.label}: its file {version.path} {damage}; nothing was uploaded"
        )
    file = Path(str(version.lineage.get("file", ""))).name or f"{version.name}.pt"
    metadata = {
        "file": file,
        "registry": version.label,
        "kind": version.kind,
        "stage": version.stage,
        "notes": version.notes,
        "metrics": version.metrics,
        "tags": version.tags,
        "lineage": version.lineage,
        "total_parameters": version.lineage.get("parameters", 0),
        "description": registry.card(version),
    }
    with _explained(kind, f"upload {version.label}"):
        label = store.upload(version.path, version.name, aliases=version.aliases, metadata=metadata)
    registry.tag(version, {check_name(kind, "tracker"): str(label)})
    return str(label)


def pull(
    registry: Registry, reference: str, source: ModelSource, kind: str, name: str | None = None
) -> ModelVersion:
    """Fetch a model into the registry and return its version there.

    An alias is kept, a version number is not. Content that is registered already is not registered
    again.

    Raises:
        RegistryError: the tracker has no such model, or failed.
    """
    asked = parse_reference(reference)
    name = check_name(name) if name is not None else asked.name
    aliases = [asked.label] if asked.label is not None and asked.version is None else []
    with tempfile.TemporaryDirectory(prefix="navrl-pull-") as folder:
        with _explained(kind, f"fetch {asked}"):
            file = source.download(str(asked), Path(folder))
        lineage = {"pulled_from": str(asked), "mirror": kind, "file": file.name, "git": {}}
        return registry.register(name, file, aliases=aliases, lineage=lineage, reuse=True)


@contextmanager
def _explained(kind: str, task: str) -> Iterator[None]:
    """Turn any error of a tracker's client into a RegistryError."""
    try:
        yield
    except NavrlError:
        raise
    except Exception as error:
        raise RegistryError(
            f"{kind} could not {task}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
