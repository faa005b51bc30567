"""Provenance of a model: its run, settings, commit, versions, iteration and seed.

Read from the file, its run's folder and this machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from navrl.credentials import redacted
from navrl.registry.blob_contents import Contents

__all__ = ["gather_lineage"]


def gather_lineage(file: Path, contents: Contents, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a file came from; what the caller knows wins over what is found.

    Keys: `file`, `run_folder`, `command`, `config`, `git` (commit, dirty), `versions`, `iteration`,
    `frames`, `seed`, `parameters`.
    """
    lineage: dict[str, Any] = {
        "file": str(file.absolute()),
        "versions": _versions(),
        **contents.facts,
    }
    run = run_folder_of(file)
    if run is not None:
        lineage["run_folder"] = str(run)
        lineage |= _record(run)
    if "git" not in {**lineage, **known} and (git := _git()) is not None:
        lineage["git"] = git
    config = (_settings(run) if run is not None else None) or contents.config
    if config:
        lineage["config"] = config
        if isinstance(config.get("seed"), int):
            lineage.setdefault("seed", config["seed"])
    if contents.parameters:
        lineage["parameters"] = contents.parameters
    # runs of earlier versions have passwords in their files
    return dict(redacted(lineage | dict(known)))


def run_folder_of(file: Path) -> Path | None:
    """Return the run's folder of a file: RUN of RUN/model.pt and RUN/checkpoints/latest."""
    real = file.resolve()
    return next(
        (folder for folder in (real.parent, real.parent.parent) if (folder / "run.json").is_file()),
        None,
    )


def _record(run: Path) -> dict[str, Any]:
    """Return the facts in a run's `run.json`, or nothing if it cannot be read."""
    with suppress(OSError, ValueError):
        record = json.loads((run / "run.json").read_text())
        if isinstance(record, Mapping):
            return {
                key: record[key]
                for key in ("command", "git", "versions", "origin")
                if record.get(key)
            }
    return {}


def _settings(run: Path) -> dict[str, Any] | None:
    import yaml

    with suppress(OSError, ValueError, yaml.YAMLError):
        config = yaml.safe_load((run / "config.yaml").read_text())
        if isinstance(config, dict):
            return config
    return None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("navrl", "torch"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _git() -> dict[str, Any] | None:
    """Return commit and state of the working directory, or None outside a repository."""

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        return {
            "commit": ask("rev-parse", "HEAD"),
            "dirty": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    return None
