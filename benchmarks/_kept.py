"""Keeps the results of finished cases, so that an interrupted benchmark can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from navrl.evaluation import PRETRAINED

PACKAGE = PRETRAINED.parents[1]
# what decides how a flight ends
SOURCES = ("sim/**/*.py", "simd/*.py", "rl/**/*.py", "evaluation/**/*.py", "*observation.py")


class Kept:
    """Results by case, in one file that is removed when the benchmark has finished.

    Args:
        path: of the file; None: nothing is kept.
        files: policies that are flown. Results of others, or of other sources, do not count.
    """

    def __init__(self, path: Path | None, files: Iterable[Path] = (PRETRAINED,)) -> None:
        self._path = path
        self._key = _digest([*files]) if path else ""

    def measured(
        self, name: str, settings: Any, measure: Callable[[], Mapping[str, float]]
    ) -> Mapping[str, float]:
        """Return the results of a case: kept ones if its settings are the same, else new ones."""
        entry = {"settings": settings, "sources": self._key}
        kept = self._read()
        found: dict[str, Any] = kept.get(name, {})
        if {key: found.get(key) for key in entry} == entry:
            return dict(found["results"])
        results = measure()
        if self._path is not None:
            kept[name] = {**entry, "results": dict(results)}
            scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            scratch.write_text(json.dumps(kept, indent=1) + "\n")
            scratch.replace(self._path)
        return results

    def clear(self) -> None:
        """Forget everything: the benchmark has finished."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        if self._path is None or not self._path.is_file():
            return {}
        try:
            return dict(json.loads(self._path.read_text()))
        except ValueError:
            return {}  # cut short by an earlier version; everything is flown again


def _digest(files: list[Path]) -> str:
    """Return a digest of policies and of the sources that fly them."""
    sources = [path for pattern in SOURCES for path in sorted(PACKAGE.glob(pattern))]
    total = hashlib.sha256()
    for path in [*files, *sources]:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
