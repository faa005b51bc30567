"""What every backend can do: take the metrics of one run, and keep versions of models under names
and aliases.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from navrl.errors import TrackingError
from navrl.registry.model_names import MAX_LENGTH, Reference, check_name, parse_reference
from navrl.tracking.queue import Undeliverable, digest_of

SLOWEST = 1e6  # bytes a second: a large file is given the time that it takes at this rate


@dataclass(frozen=True)
class RunInfo:
    """The run that metrics belong to."""

    id: str
    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """A tracker. Every call may take long, raise anything, or never return: only workers and
    commands make them.

    Rows (metrics, images, videos) carry the number of their record, which grows, and the moment
    they were made at, so that a backend can tell a row that it has got already.
    """

    confirms: bool  # a row is delivered when its call returns; else when `finish` does
    keeps_models: bool  # else it is sent none

    def start(self, run: RunInfo) -> int:
        """Begin, or go on with, a run; return the number of the last row that is certainly there,
        or 0.
        """

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Take the metrics of a step."""

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Take a picture of a step."""

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Take a video of a step."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Take what sums the run up; again replaces it."""

    def finish(self) -> None:
        """End the run; when this returns, everything is delivered."""

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Keep a file as the newest version of `name` and return the version, such as `v3`; the
        same file again is the same.
        """

    def download(self, reference: str, folder: Path) -> Path:
        """Fetch `name:alias` or `name:v3` into a folder, verified, and return the file."""

    def versions(self, name: str) -> list[str]:
        """Return the versions of a name, oldest first."""

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias of a name."""

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias to a version."""

    def delete(self, name: str, version: str) -> None:
        """Remove a version, its aliases and its files."""


def described(file: Path, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of an upload, with what is needed to recognise and verify the file, and
    its size in bytes.

    Its `description`, a model card as Markdown, is shown where a tracker has a place for it.
    """
    given = dict(metadata or {})
    name = legal_file_name(str(given.get("file") or file.name))
    return {**given, "sha256": digest_of(file), "file": name, "file_size": file.stat().st_size}


def legal_file_name(name: str) -> str:
    """Return the name of a file with the characters that every tracker takes."""
    return check_name(
        re.sub(r"[^A-Za-z0-9_.-]", "_", Path(name).name).strip(".-")[-MAX_LENGTH:] or "file", "file"
    )


@contextlib.contextmanager
def refused_here(file: Path) -> Iterator[None]:
    """Give up on a file that a tracker's client refuses before it has asked anybody: it would hold
    up all that follows.
    """
    try:
        yield
    except Exception as error:  # whatever a client can think of
        raise Undeliverable(
            f"{file.name}: not a picture or video that this tracker takes: {error}"
        ) from error


@contextlib.contextmanager
def named_file(file: Path, name: str) -> Iterator[Path]:
    """Give a file another name for the block: trackers show it, and tell formats by it."""
    with tempfile.TemporaryDirectory(prefix="navrl-named-") as folder:
        named = Path(folder) / check_name(name, "file")
        named.symlink_to(file.resolve())
        yield named


def verified(file: Path, sha256: str, reference: str) -> Path:
    """Return a fetched file if it is what was uploaded.

    Raises:
        TrackingError: it is not; the file is removed.
    """
    found = digest_of(file)
    if sha256 and found != sha256:
        file.unlink()
        raise TrackingError(
            f"{reference}: what arrived has SHA-256 {found[:12]}..., expected {sha256[:12]}...; "
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
