"""The local registry as a backend: the same calls, without any service."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from navrl.errors import RegistryError, TrackingError
from navrl.registry.model_names import check_alias, check_name
from navrl.registry.registry import Registry
from navrl.registry.schema import ModelVersion
from navrl.tracking.backends.interface import Backend, all_aliases, legal_file_name, verified


class LocalBackend(Backend):
    """Models in a `Registry`. Metrics are left out: the run's folder has them."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._registry = Registry(folder)

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Register a file; one that is there already gets the aliases."""
        labels, known = all_aliases(aliases), dict(metadata or {})
        lineage = {"file": legal_file_name(str(known.get("file") or file.name)), "metadata": known}
        version = self._registry.register(name, file, aliases=labels, lineage=lineage, reuse=True)
        return f"v{version.version}"

    def download(self, reference: str, folder: Path) -> Path:
        """Copy a version out of the registry, verified."""
        parsed, label = self._resolve(reference)
        version = self._registry.resolve(f"{parsed.name}:{label}")
        file_name = legal_file_name(str(version.lineage.get("file") or "model.pt"))
        target = Path(folder) / parsed.name / label / file_name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(version.path, target)
        return verified(target, version.digest, reference)

    def versions(self, name: str) -> list[str]:
        """Return the versions, oldest first."""
        return [f"v{version.version}" for version in self._all(name)]

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias."""
        return {
            alias: f"v{version.version}" for version in self._all(name) for alias in version.aliases
        }

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias."""
        self._registry.set_alias(name, check_alias(alias), version)

    def delete(self, name: str, version: str) -> None:
        """Remove a version and its aliases; `latest` moves to the newest that is left."""
        self._registry.delete(name, version, force=True)

    def _all(self, name: str) -> list[ModelVersion]:
        check_name(name)
        known = {model.name for model in self._registry.models()}
        try:
            return self._registry.versions(name) if name in known else []
        except RegistryError as error:
            raise TrackingError(str(error)) from error
