"""The package uses nothing newer than Python 3.10, the Python of older Isaac Sims.

`make lint` has mypy check every name of the standard library against Python 3.10; this finds newer
syntax, and the newer names in common use, without it. `make test-old` runs navrl.io with torch 2.2.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "navrl").rglob("*.py"))
NEWER_MODULES = {"tomllib"}
NEWER_NAMES = {
    "typing": {"Self", "assert_never", "Never", "LiteralString", "NotRequired", "Required"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "verify", "ReprEnum"},
    "hashlib": {"file_digest"},
    "contextlib": {"chdir"},
    "asyncio": {"TaskGroup", "timeout", "Runner"},
    "itertools": {"batched"},
}
NEWER_BUILTINS = {"ExceptionGroup", "BaseExceptionGroup"}


def newer_names(source: str) -> list[str]:
    """Return what a module uses of the standard library that Python 3.10 does not have."""
    found = []
    for node in ast.walk(ast.parse(source, feature_version=(3, 10))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = {alias.name for alias in node.names}
            found += sorted(names & NEWER_NAMES.get(node.module or "", set()))
            found += [node.module] if node.module in NEWER_MODULES else []
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in NEWER_MODULES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NEWER_NAMES.get(node.value.id, ()):
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in NEWER_BUILTINS:
            found.append(node.id)
    return found


def test_the_package_uses_no_syntax_and_no_names_newer_than_python_3_10():
    newer = {str(path.relative_to(ROOT)): newer_names(path.read_text()) for path in SOURCES}
    assert {path: names for path, names in newer.items() if names} == {}


@pytest.mark.parametrize(
    "source", ["import tomllib", "from typing import Self", "import datetime\ndatetime.UTC"]
)
def test_newer_names_are_found(source):
    assert newer_names(source)


@pytest.mark.parametrize("source", ["try: pass\nexcept* ValueError: pass"])
def test_newer_syntax_is_refused(source):
    with pytest.raises(SyntaxError):
        newer_names(source)


def test_the_core_needs_only_what_files_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {re.match(r"[\w-]+", one)[0] for one in project["project"]["dependencies"]}
    assert names == {"torch", "numpy", "lz4", "zstandard", "xxhash"}
    assert project["project"]["requires-python"] == ">=3.10"
    assert project["tool"]["mypy"]["python_version"] == "3.10"
