"""The hardware: usable cores, and what benchmark results and run records name."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

__all__ = ["machine", "usable_cores"]


def usable_cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return processor, cores, memory, system, package versions, navrl's commit and the date."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {
            name: _version(name) for name in ("navrl", "torch", "numpy", "numba", *packages)
        },
        "commit": _commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


# What benchmarks write: the code is the same before and after.
WRITTEN = ("docs", "benchmarks/results", "*.md")


def _commit() -> str:
    """Return the commit; of changed code `COMMIT-dirty.DIGEST`, with a digest of the changes."""
    with suppress(OSError, subprocess.SubprocessError):
        commit = _git("describe", "--always", "--abbrev=10").strip()
        outside = [f":(top,exclude){path}" for path in WRITTEN]
        changes = _git("diff", "HEAD", "--", ":/", *outside)
        digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
        return f"{commit}-dirty.{digest}" if changes else commit
    return "unknown"


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=True, timeout=10
    )
    return done.stdout
