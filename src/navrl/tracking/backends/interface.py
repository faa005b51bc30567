"""What every tracker can do: take the metrics of one run, and keep versions of models."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from navrl.errors import TrackingError
from navrl.io.container.checksums import sha256_of
from navrl.registry.model_names import (
    MAX_LENGTH,
    Reference,
    check_alias,
    check_name,
    parse_reference,
)
from navrl.tracking.queue import Undeliverable

SLOWEST = 1e6  # bytes a second: a large file is given the time that it takes at this rate


@dataclass(frozen=True)
class RunInfo:
    """The run that metrics belong to.

    >>> from pathlib import Path
    >>> from navrl.tracking.backends import RunInfo
    >>> RunInfo("3f2a", "first", Path("runs/first"), {"seed": 1}).config
    {'seed': 1}
    """

    id: str
    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)


class Backend:
    """A tracker; by default it leaves out what a run shows, and keeps no models.

    Calls may block for minutes, raise anything, or never return: only delivery workers and
    commands make them.

    Rows (metrics, images, videos) carry the number of their record, which grows, and the time at
    which they were made, so that a tracker can recognise a row that it has received before.

    >>> from pathlib import Path
    >>> from navrl.tracking.backends import Backend, RunInfo
    >>> class Printed(Backend):
    ...     def log(self, step, values, *, number, moment):
    ...         print(step, values)
    >>> backend = Printed()
    >>> backend.start(RunInfo("3f2a", "first", Path("runs/first")))
    0
    >>> backend.log(7, {"loss": 0.5}, number=1, moment=0.0)
    7 {'loss': 0.5}
    """

    confirms = True  # a row is delivered once its call returns; else once `finish` does
    keeps_models = True  # else it is sent none

    def start(self, run: RunInfo) -> int:
        """Begin or resume a run; return the number of the last row known to be there, or 0."""
        return 0

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Log the metrics of a step."""

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a picture."""

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a video."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set the summary of the run."""

    def finish(self) -> None:
        """End the run; once this returns, everything is delivered."""

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Keep a file as the newest version of `name` and return the version, such as `v3`.

        A file that is there already is not kept twice: its version gets the aliases.
        """
        raise self._keeps_none()

    def download(self, reference: str, folder: Path) -> Path:
        """Fetch `name:alias` or `name:v3` into a folder, verify it, and return the file."""
        raise self._keeps_none()

    def versions(self, name: str) -> list[str]:
        """Return the versions of a name, oldest first."""
        return []

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias of a name."""
        return {}

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias to a version."""
        raise self._keeps_none()

    def delete(self, name: str, version: str) -> None:
        """Remove a version, its aliases and its file."""
        raise self._keeps_none()

    def _resolve(self, reference: str) -> tuple[Reference, str]:
        """Return the parts of a reference and the version that it means."""
        parsed = parse_reference(reference)
        return wanted_version(reference, self.versions(parsed.name), self.aliases(parsed.name))

    def _keeps_none(self) -> TrackingError:
        kind = type(self).__name__.removesuffix("Backend")
        return TrackingError(f"{kind} keeps no models; use wandb, trackio, mlflow or hf")


def all_aliases(aliases: Collection[str]) -> list[str]:
    """Return the aliases of an upload, `latest` first, each checked."""
    return ["latest", *(check_alias(alias) for alias in aliases)]


def described(file: Path, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of an upload, with the file's name, SHA-256 and size in bytes.

    Its `description`, a model card as Markdown, is shown where a tracker has a place for it.
    """
    known = dict(metadata or {})
    name = legal_file_name(str(known.get("file") or file.name))
    return {**known, "sha256": sha256_of(file), "file": name, "file_size": file.stat().st_size}


def legal_file_name(name: str) -> str:
    """Return a file name with only the characters that every tracker accepts."""
    legal = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(name).name).strip(".-")[-MAX_LENGTH:]
    return check_name(legal or "file", "file")


@contextlib.contextmanager
def refused_here(file: Path) -> Iterator[None]:
    """Mark a file as undeliverable if the tracker's client rejects it before sending anything.

    Retried, it would block everything behind it in the queue.
    """
    try:
        yield
    except Exception as error:  # a client may raise anything
        raise Undeliverable(
            f"{file.name}: not a picture or video that this tracker accepts: {error}"
        ) from error


@contextlib.contextmanager
def named_file(file: Path, name: str) -> Iterator[Path]:
    """Give a file another name for the block: trackers show it, and take the format from it."""
    with tempfile.TemporaryDirectory(prefix="navrl-named-") as folder:
        named = Path(folder) / check_name(name, "file")
        named.symlink_to(file.resolve())
        yield named


def verified(file: Path, sha256: str, reference: str) -> Path:
    """Return a downloaded file if it is what was uploaded.

    Raises:
        TrackingError: it is not; the file is removed.
    """
    found = sha256_of(file)
    if sha256 and found != sha256:
        file.unlink()
        raise TrackingError(
            f"{reference}: the download has SHA-256 {found[:12]}..., expected {sha256[:12]}...; "
            "fetch it again"
        )
    return file


def wanted_version(
    reference: str, versions: Collection[str], aliases: Mapping[str, str]
) -> tuple[Reference, str]:
    """Return the parts of a reference and the version that it means.

    Raises:
        TrackingError: there is no such version or alias.
        RegistryError: the reference is malformed.
    """
    parsed = parse_reference(reference)
    label = parsed.label or "latest"
    version = label if label in versions else aliases.get(label)
    if version is None:
        there = ", ".join([*aliases, *versions]) or "nothing"
        raise TrackingError(f"{reference}: no such version or alias; there is {there}")
    return parsed, version
