"""The names of all settings and the types of their values, read from the sources.

Nothing is imported: a shell completes `navrl train env.num_` in a moment, without torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["config_groups", "setting_types"]

PACKAGE = Path(__file__).parents[1]
ROOT = ("navrl.config", "Config")  # the dataclass of everything


@lru_cache
def setting_types() -> dict[str, str]:
    """Return the type of every setting by its dotted key, such as `env.num_envs`: `int`."""
    return dict(_settings(*ROOT, ""))


def config_groups() -> dict[str, list[str]]:
    """Return what can be chosen whole, such as `preset`, and the choices."""
    folders = (path for path in PACKAGE.joinpath("conf").iterdir() if path.is_dir())
    groups = {
        folder.name: sorted(file.stem for file in folder.glob("[!_]*.yaml")) for folder in folders
    }
    robots = sorted(file.stem for file in PACKAGE.joinpath("sim", "robots").glob("*.yaml"))
    return {name: choices for name, choices in groups.items() if choices} | {"robot": robots}


def _settings(module: str, name: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield key and type of the fields of a dataclass, its bases first."""
    home, node = _find_class(module, name)
    for base in node.bases:
        yield from _settings(home, ast.unparse(base), prefix)
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            kind, key = ast.unparse(part.annotation), f"{prefix}{part.target.id}"
            if kind in _classes(home) or _imports(home).get(kind, "").startswith("navrl."):
                yield from _settings(home, kind, f"{key}.")
            elif not kind.startswith("ClassVar"):
                yield key, kind


def _find_class(module: str, name: str) -> tuple[str, ast.ClassDef]:
    """Return the module that defines a class which a module defines or imports, and the class."""
    while name not in _classes(module):
        module = _imports(module)[name]
    return module, _classes(module)[name]


@lru_cache
def _tree(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


@lru_cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _tree(module).body if isinstance(node, ast.ClassDef)}


@lru_cache
def _imports(module: str) -> dict[str, str]:
    """Return the modules that names are imported from."""
    nodes = [node for node in _tree(module).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in nodes for alias in node.names}
