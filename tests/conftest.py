"""Throw stale compiled kernels away: numba watches the file of the entry point only, not those that it calls."""

from __future__ import annotations

from pathlib import Path

import navrl

PACKAGE = Path(navrl.__file__).parent


def pytest_sessionstart() -> None:
    compiled = [*PACKAGE.rglob("__pycache__/*.nb[ic]")]
    sources = [PACKAGE / "simd.py", *PACKAGE.glob("io/replay*.py"), *PACKAGE.glob("sim/*.py"), *PACKAGE.glob("rl/*.py")]
    edited = max(source.stat().st_mtime for source in sources)
    if compiled and edited > min(file.stat().st_mtime for file in compiled):
        for file in compiled:
            file.unlink(missing_ok=True)
