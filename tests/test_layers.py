"""Imports point one way: commands at the top, three islands at the bottom, errors, vectors and lazy
names below all.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import navrl

ROOT = Path(navrl.__file__).parent

# A module may import what is listed here for its part, and its own part; nothing else of navrl.
BOTTOM = {
    "arguments",
    "errors",
    "kernel_cache",
    "lazy",
    "machine",
    "navigation_observation",
    "observation",
    "simd",
}
ISLANDS = {"io", "sim", "rl"}
MIDDLE = {"config", "conf", "monitor", "registry", "adapters", "models", "tracking"}
UPPER = {"benchmark", "deploy", "environments", "train", "evaluate", "testing", "view"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "arguments": {"errors"},
    "kernel_cache": set(),
    "lazy": set(),
    "machine": set(),
    "navigation_observation": {"observation"},
    "observation": {"errors"},
    "simd": {"kernel_cache"},
    **dict.fromkeys(ISLANDS, BOTTOM),
    **dict.fromkeys(MIDDLE, BOTTOM | ISLANDS | MIDDLE),
    **dict.fromkeys(UPPER, BOTTOM | ISLANDS | MIDDLE | UPPER),
    "commands": BOTTOM | ISLANDS | MIDDLE | UPPER,
    "cli": BOTTOM | {"commands"},
    "__init__": BOTTOM | ISLANDS | MIDDLE | UPPER,
}


def part_of(module: str) -> str:
    """Return the part of navrl that a dotted module belongs to: `navrl.sim.env` -> `sim`."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Return (line, module) of everything of navrl that a file imports, anywhere in it."""
    package = ["navrl", *path.relative_to(ROOT).with_suffix("").parts][:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [
                (node.lineno, f"{module}.{alias.name}" if module == "navrl" else module)
                for alias in node.names
            ]
    return [
        (line, module) for line, module in found if module == "navrl" or module.startswith("navrl.")
    ]


# Inside io, only `container` is shared; rollouts are written in the background by the saver of
# checkpoints.
ROOMS: dict[str, set[str]] = {
    "container": set(),
    "checkpoint": {"container", "retention"},
    "rollouts": {"container", "checkpoint", "retention"},
    "replay": {"container"},
}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "io").glob("*/*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_room_of_io_imports_only_what_it_may(path):
    room = path.parent.name
    for line, module in imports_of(path):
        pieces = module.split(".")
        if pieces[:2] == ["navrl", "io"]:
            assert len(pieces) > 2, f"{path.name}:{line} imports {module}: name the module inside"
            assert pieces[2] in {room, *ROOMS[room]}, (
                f"{path.name}:{line} imports {module}: {room} may not know it"
            )


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_module_imports_only_from_the_layers_below(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert part in ALLOWED, (
        f"{part} has no place in the layers: give it one in this test and in docs/architecture.md"
    )
    for line, module in imports_of(path):
        imported = part_of(module)
        if module == "navrl.__version__" or imported == part:
            continue
        assert imported in ALLOWED[part], (
            f"{path.name}:{line} imports {module}: {part} may not know {imported}"
        )


def test_the_layer_test_sees_relative_and_nested_imports(tmp_path, monkeypatch):
    monkeypatch.setattr("test_layers.ROOT", tmp_path)
    module = tmp_path / "sim" / "bad.py"
    module.parent.mkdir()
    module.write_text(
        "def f():\n    from ..rl import ppo\n    from navrl import io\n    import navrl.config\n"
    )
    assert imports_of(module) == [(2, "navrl.rl"), (3, "navrl.io"), (4, "navrl.config")]
