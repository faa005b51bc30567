"""The local registry as a backend: the same calls without any service. Metrics are in the run's
folder already.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from navrl.errors import RegistryError, TrackingError
from navrl.registry.model_names import check_alias, check_name, parse_reference
from navrl.registry.registry import Registry
from navrl.tracking.backends.interface import RunInfo, legal_file_name, verified, wanted_version


class LocalBackend:
    """Models in a `Registry`; runs are left out."""

    confirms = True
    keeps_models = True

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._registry = Registry(folder)

    def start(self, run: RunInfo) -> int:
        """Begin nothing: the run's folder has its metrics."""
        return 0

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Leave metrics to the run's folder."""

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Leave pictures to the run's folder."""

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Leave videos to the run's folder."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Leave the summary to the run's folder."""

    def finish(self) -> None:
        """End nothing."""

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Register a file; one that is there already gets the aliases."""
        labels = ["latest", *(check_alias(alias) for alias in aliases)]
        known = dict(metadata or {})
        lineage = {"file": legal_file_name(str(known.get("file") or file.name)), "metadata": known}
        version = self._registry.register(name, file, aliases=labels, lineage=lineage, reuse=True)
        return f"v{version.version}"

    def download(self, reference: str, folder: Path) -> Path:
        """Copy a version out of the registry, verified."""
        name = parse_reference(reference).name
        parsed, label = wanted_version(reference, self.versions(name), self.aliases(name))
        version = self._registry.resolve(f"{parsed.name}:{label}")
        target = (
            Path(folder)
            / parsed.name
            / label
            / legal_file_name(str(version.lineage.get("file") or "model.pt"))
        )
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
        """Remove a version and its aliases; `latest` moves back to the newest that is left."""
        self._registry.delete(name, version, force=True)

    def _all(self, name: str) -> list[Any]:
        check_name(name)
        known = {model.name for model in self._registry.models()}
        try:
            return (
                sorted(self._registry.versions(name), key=lambda version: version.version)
                if name in known
                else []
            )
        except RegistryError as error:
            raise TrackingError(str(error)) from error
