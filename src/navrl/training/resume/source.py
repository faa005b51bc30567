"""The file that `resume_checkpoint=` means: a checkpoint, a model or a run, by path or name."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from navrl.errors import CheckpointError, ConfigError, RegistryError, TrackingError
from navrl.evaluation import PRETRAINED
from navrl.io.checkpoint.checkpoint_file import NoCheckpointError, find_checkpoint
from navrl.io.checkpoint.listing import newest_whole
from navrl.io.container.checksums import sha256_of
from navrl.registry.model_names import parse_reference
from navrl.registry.registry import Registry
from navrl.registry.schema import ModelVersion
from navrl.registry.tracker_sync import pull
from navrl.tracking.wandb_downloads import fetch_model_from_wandb

__all__ = ["Source", "find_source", "run_of"]

EXPECTED = (
    "expected a checkpoint, a model, the folder of a run, NAME:ALIAS or USER/PROJECT/NAME:ALIAS"
)


@dataclass(frozen=True)
class Source:
    """The file that a training starts from."""

    reference: str  # as typed
    file: Path
    version: str = ""  # label in the registry, such as `policy:v3`

    @property
    def lasting(self) -> str:
        """A reference to this very file that stays valid when aliases move."""
        return self.version or str(self.file)

    def __str__(self) -> str:
        same = self.reference == self.version or Path(self.reference).absolute() == self.file
        return self.reference if same else f"{self.reference} ({self.lasting})"

    def as_record(self) -> dict[str, str]:
        """Return the entry of `run.json`."""
        record = {
            "reference": self.reference,
            "file": str(self.file),
            "sha256": sha256_of(self.file),
        }
        return record | ({"version": self.version} if self.version else {})


def run_of(reference: str) -> Path | None:
    """Return the run that a folder or checkpoint belongs to; no file is opened."""
    path = Path(reference)
    if os.path.isdir(path):  # accepts any string, unlike Path.is_dir
        return path.parent if path.name == "checkpoints" else path
    try:
        folder = find_checkpoint(path).resolve().parent
    except (CheckpointError, OSError, ValueError):
        return None
    return folder.parent if folder.name == "checkpoints" else None


def find_source(reference: str, deadline: float) -> Source:
    """Return the file that a reference means; nothing is written to a run.

    A path comes first, then the registry. `user/project/name:alias` that is in neither is fetched
    from W&B into the registry within `deadline` seconds.

    Raises:
        ConfigError: nothing has that name; the message says what to do.
        CheckpointError: the run has no whole checkpoint.
    """
    path = Path(os.path.expanduser(reference))
    if os.path.isdir(path):
        return Source(reference, _newest_of(path))
    with suppress(CheckpointError):
        return Source(reference, find_checkpoint(path).resolve())
    if os.path.isabs(reference) or reference.startswith(("./", "../", "~")):
        raise ConfigError(
            f"resume_checkpoint {reference!a:.200}: no such file or folder; {EXPECTED}"
        )
    if reference == "pretrained":
        return Source(reference, PRETRAINED)
    with Registry() as registry:
        try:
            version = registry.resolve(reference)
        except RegistryError as error:
            reason = f"resume_checkpoint {reference!a:.200}: no such file or folder, and {error}"
            if not _is_remote(reference):
                raise ConfigError(f"{reason}; {EXPECTED}") from error
            version = _fetched(registry, reference, deadline)
    if not version.path.is_file():
        raise ConfigError(
            f"resume_checkpoint {reference}: {version.path}, the file of {version.label}, is "
            "missing; `navrl models verify` lists all missing files"
        )
    return Source(reference, version.path, version.label)


def _newest_of(run: Path) -> Path:
    folder = run if run.name == "checkpoints" else run / "checkpoints"
    try:
        return newest_whole(folder).absolute()
    except (NoCheckpointError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"resume_checkpoint {run} has no checkpoint to resume from: {reason}; {EXPECTED}"
        ) from error


def _is_remote(reference: str) -> bool:
    """Return whether a reference names a place in a tracker; others never use the network."""
    try:
        parsed = parse_reference(reference)
    except RegistryError:
        return False
    return parsed.entity is not None and parsed.label is not None


class _Wandb:
    """W&B as a mirror, with a deadline in seconds."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def download(self, reference: str, folder: Path) -> Path:
        """Fetch a file into a folder and return its path."""
        try:
            return fetch_model_from_wandb(reference, folder, timeout=self._deadline)
        except TrackingError as error:
            raise TrackingError(str(error).replace(str(folder), "this machine")) from error


def _fetched(registry: Registry, reference: str, deadline: float) -> ModelVersion:
    try:
        return pull(registry, reference, _Wandb(deadline), "wandb")
    except (TrackingError, RegistryError, ImportError) as error:
        raise ConfigError(
            f"resume_checkpoint {reference}: no such file, not in the registry of this machine, "
            f"and not fetched from W&B: {_reason(error)}. Check WANDB_API_KEY, WANDB_MODE=online "
            "and, for a server of your own, WANDB_BASE_URL; or fetch it with "
            f"`navrl models pull {reference}` where there is a network"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
