"""Throw stale compiled kernels away: numba watches the file of the entry point only, not those that it calls."""

from __future__ import annotations

from pathlib import Path

import navrl

SIMULATOR = Path(navrl.__file__).parent / "sim"


def pytest_sessionstart() -> None:
    compiled = [*SIMULATOR.glob("__pycache__/*.nb[ic]")]
    edited = max(source.stat().st_mtime for source in SIMULATOR.glob("*.py"))
    if compiled and edited > min(file.stat().st_mtime for file in compiled):
        for file in compiled:
            file.unlink(missing_ok=True)
