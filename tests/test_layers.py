"""Imports point one way, as `layers.toml` says and docs/architecture.md shows."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

import navrl
from layers import PACKAGE, PAGE, generated, imports_of, part_of, read_layers, written

LAYERS = read_layers()
PARTS = [*chain.from_iterable(LAYERS.layers.values())]
MODULES = sorted(PACKAGE.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room(path: Path) -> str:
    """Return the package or module of a part that a file belongs to; of io/replay/links.py, replay."""
    pieces = path.relative_to(PACKAGE).parts
    return pieces[1].removesuffix(".py") if len(pieces) > 1 else ""


def test_the_layers_are_those_of_the_package_under_test():
    assert Path(navrl.__file__).parent.samefile(PACKAGE)


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_imports_only_from_the_layers_below(path):
    own = part(path)
    assert own in PARTS, f"{own} is in no layer: give it one in tests/layers.toml"
    for line, module in imports_of(path):
        other = part_of(module)
        if other != own and module not in ("navrl", "navrl.__version__"):
            assert LAYERS.may_import(own, other), (
                f"{named(path)}:{line} imports {module}: {own} may not import {other} "
                "(tests/layers.toml)"
            )


@pytest.mark.parametrize(
    "path", [path for path in MODULES if room(path) in LAYERS.rooms.get(part(path), ())], ids=named
)
def test_a_room_imports_only_what_it_may_of_its_part(path):
    own, rooms = room(path), LAYERS.rooms[part(path)]
    for line, module in imports_of(path):
        pieces = module.split(".")
        if pieces[1:2] == [part(path)]:
            assert len(pieces) > 2, f"{named(path)}:{line} imports {module}: name the module inside"
            assert pieces[2] in {own, *rooms[own]}, (
                f"{named(path)}:{line} imports {module}: {own} may not import {pieces[2]} "
                "(tests/layers.toml)"
            )


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_the_table_exists(name):
    assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


@pytest.mark.parametrize(
    "name", [f"{own}/{name}" for own in LAYERS.rooms for name in LAYERS.rooms[own]]
)
def test_every_room_of_the_table_exists(name):
    assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


@pytest.mark.parametrize(
    ("own", "other"), [(own, other) for own in LAYERS.sideways for other in LAYERS.sideways[own]]
)
def test_every_import_within_a_layer_is_made(own, other):
    assert LAYERS.layer_of(own) == LAYERS.layer_of(other)
    made = {
        part_of(module) for path in MODULES if part(path) == own for _, module in imports_of(path)
    }
    assert other in made, f"{own} does not import {other}: remove it from tests/layers.toml"


@pytest.mark.parametrize("graph", [LAYERS.sideways, *LAYERS.rooms.values()])
def test_imports_make_no_ring(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{' imports '.join(error.args[1])}")


def test_the_page_shows_the_table():
    assert written(PAGE.read_text()) == generated(LAYERS), "run `python tests/layers.py`"


def test_imports_are_found_wherever_they_are(tmp_path):
    (tmp_path / "rl").mkdir()
    (tmp_path / "io").mkdir()
    (tmp_path / "io" / "saver.py").touch()
    (tmp_path / "sim").mkdir()
    module = tmp_path / "sim" / "bad.py"
    module.write_text(
        "def f():\n"
        "    from ..rl import ppo\n"
        "    from navrl import io\n"
        "    import navrl.config\n"
        "    from navrl.io import saver\n"
        "    from navrl.io.saver import Saver\n"
        "    import torch\n"
    )
    assert imports_of(module, tmp_path) == [
        (2, "navrl.rl"),
        (3, "navrl.io"),
        (4, "navrl.config"),
        (5, "navrl.io.saver"),
        (6, "navrl.io.saver"),
    ]


def test_an_import_upwards_sideways_or_of_an_unknown_part_is_not_allowed():
    assert LAYERS.may_import("training", "io")
    assert LAYERS.may_import("training", "evaluation")
    assert not LAYERS.may_import("io", "training")
    assert not LAYERS.may_import("io", "sim")
    assert not LAYERS.may_import("training", "unknown")
