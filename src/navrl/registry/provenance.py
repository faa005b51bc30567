"""Where a model came from: its run, settings, commit, versions, iteration, seed; found beside the
file, not asked for.
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


def gather_lineage(file: Path, contents: Contents, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the caller, the file, the folder of its run and this machine tell, in this order.

    Keys: `file`, `run_folder`, `command`, `config`, `git` (commit, dirty), `versions`, `iteration`,
        `frames`, `seed`,
    `parameters`.
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
    if "git" not in {**lineage, **told} and (git := _git()) is not None:
        lineage["git"] = git
    config = (_settings(run) if run is not None else None) or contents.config
    if config:
        lineage["config"] = config
        if isinstance(config.get("seed"), int):
            lineage.setdefault("seed", config["seed"])
    if contents.parameters:
        lineage["parameters"] = contents.parameters
    # a run of an earlier version has passwords in its files
    return dict(redacted(lineage | dict(told)))


def run_folder_of(file: Path) -> Path | None:
    """Return the folder of the run that a file lies in: RUN/model.pt or RUN/checkpoints/latest."""
    real = file.resolve()
    return next(
        (folder for folder in (real.parent, real.parent.parent) if (folder / "run.json").is_file()),
        None,
    )


def _record(run: Path) -> dict[str, Any]:
    """Return what `run.json` tells of a run: a record that cannot be read tells nothing, and keeps
    no model out.
    """
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
