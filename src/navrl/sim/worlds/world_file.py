"""World files: boxes and cylinders listed in YAML, or heights from a PNG image or an NPZ array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.errors import WorldError, nearest_name, shown
from navrl.sim.worlds.file_reader import MAXIMUM_PIXELS, check_size, read_npz, read_png, read_yaml
from navrl.sim.worlds.terrain import ARENA, GROUND, boxes_of_heights

MAXIMUM_SHAPES = 20_000
MAXIMUM_HEIGHT = 50.0  # m
LONGEST_NAME = 200  # characters
EDGE = 23.0  # m: random starts and targets lie on the square of 24 m, so nothing may stand there

_NO_POINTS = np.zeros((0, 3), np.float32)


@dataclass(frozen=True)
class World:
    """The static part of one world."""

    boxes: NDArray[np.float32]  # (M, 6): x0, x1, y0, y1, z0, z1
    # x, y, radius, z0, z1
    cylinders: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 5), np.float32))
    # (S, 3); empty: random edges
    starts: NDArray[np.float32] = field(default_factory=lambda: _NO_POINTS)
    goals: NDArray[np.float32] = field(default_factory=lambda: _NO_POINTS)  # (G, 3)
    name: str = ""


def load_world(path: str | Path) -> World:
    """Return the world in a .yaml, .yml, .png or .npz file.

    Raises:
        FileNotFoundError: there is no such file.
        WorldError: the file is damaged, of the wrong shape, or describes something impossible; the
            message says what.
    """
    path = Path(path)
    readers = {".yaml": _read_yaml, ".yml": _read_yaml, ".png": _read_png, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise WorldError(
            f"{path}: cannot read a world from {path.suffix or 'a file without extension'!r}; "
            "expected .yaml, .png or .npz"
        )
    if not path.is_file():
        raise FileNotFoundError(2, "no such world file", str(path))
    check_size(path)
    return readers[path.suffix.lower()](path)


def _read_yaml(path: Path) -> World:
    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise WorldError(
            f"{path}: expected keys boxes, cylinders, starts, goals at the top, found "
            f"{type(content).__name__}"
        )
    _known_keys(path, "the file", content, ("name", "boxes", "cylinders", "starts", "goals"))
    boxes = [_box(path, i, entry) for i, entry in enumerate(_entries(path, content, "boxes"))]
    cylinders = [
        _cylinder(path, i, entry) for i, entry in enumerate(_entries(path, content, "cylinders"))
    ]
    starts, goals = (_points(path, content, key) for key in ("starts", "goals"))
    world = World(
        np.array(boxes, np.float32).reshape(-1, 6),
        np.array(cylinders, np.float32).reshape(-1, 5),
        starts,
        goals,
        _name(content.get("name", path.stem)),
    )
    _check_edges(path, world)
    return world


def _name(value: Any) -> str:
    return value[:LONGEST_NAME] if isinstance(value, str) else shown(value)


def _entries(path: Path, content: Mapping[str, Any], key: str) -> Sequence[Any]:
    entries = content.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise WorldError(f"{path}: {key} is {type(entries).__name__}; expected a list")
    if len(entries) > MAXIMUM_SHAPES:
        raise WorldError(f"{path}: {len(entries)} {key}; expected at most {MAXIMUM_SHAPES}")
    return entries


def _known_keys(path: Path, subject: str, entry: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in entry:
        if key not in known:
            raise WorldError(
                f"{path}: {subject} has an unknown key {shown(key)}.{nearest_name(key, known)}"
            )


def _numbers(path: Path, subject: str, value: Any, count: int) -> list[float]:
    values = value if isinstance(value, list) else [value]
    good = len(values) == count and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    )
    if not good or not all(abs(v) < 1e9 for v in values):
        raise WorldError(
            f"{path}: {subject} is {shown(value)}; expected {count} finite "
            f"number{'s' if count > 1 else ''}"
        )
    return [float(v) for v in values]


def _shape(
    path: Path, subject: str, entry: Any, required: Sequence[str], optional: Sequence[str]
) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise WorldError(
            f"{path}: {subject} is {shown(entry)}; expected keys {', '.join(required)}"
        )
    _known_keys(path, subject, entry, (*required, *optional))
    missing = [key for key in required if key not in entry]
    if missing:
        raise WorldError(
            f"{path}: {subject} has no {' and no '.join(missing)}; expected {', '.join(required)}"
        )
    return entry


def _box(path: Path, index: int, entry: Any) -> list[float]:
    subject = f"boxes[{index}]"
    entry = _shape(path, subject, entry, ("center", "size"), ())
    x, y, z = _numbers(path, f"{subject}.center", entry["center"], 3)
    sizes = _numbers(path, f"{subject}.size", entry["size"], 3)
    if min(sizes) <= 0:
        raise WorldError(f"{path}: {subject}.size is {sizes}; expected three lengths above 0")
    dx, dy, dz = (size / 2 for size in sizes)
    return _bounded(path, subject, [x - dx, x + dx, y - dy, y + dy, z - dz, z + dz])


def _cylinder(path: Path, index: int, entry: Any) -> list[float]:
    subject = f"cylinders[{index}]"
    entry = _shape(path, subject, entry, ("center", "radius", "height"), ("bottom",))
    x, y = _numbers(path, f"{subject}.center", entry["center"], 2)
    (radius,) = _numbers(path, f"{subject}.radius", entry["radius"], 1)
    (height,) = _numbers(path, f"{subject}.height", entry["height"], 1)
    (bottom,) = _numbers(path, f"{subject}.bottom", entry.get("bottom", 0.0), 1)
    if min(radius, height) <= 0:
        raise WorldError(
            f"{path}: {subject} has radius {radius} and height {height}; expected both above 0"
        )
    _bounded(
        path, subject, [x - radius, x + radius, y - radius, y + radius, bottom, bottom + height]
    )
    return [x, y, radius, bottom, bottom + height]


def _bounded(path: Path, subject: str, extent: list[float]) -> list[float]:
    if min(extent[:4]) < -GROUND or max(extent[:4]) > GROUND or not 0 < extent[5] <= MAXIMUM_HEIGHT:
        raise WorldError(
            f"{path}: {subject} spans x {extent[0]:g}..{extent[1]:g}, y "
            f"{extent[2]:g}..{extent[3]:g}, top {extent[5]:g}; "
            f"expected x and y within {GROUND:g} m of the centre and a top between 0 and "
            f"{MAXIMUM_HEIGHT:g} m"
        )
    return extent


def _points(path: Path, content: Mapping[str, Any], key: str) -> NDArray[np.float32]:
    points = [
        _numbers(path, f"{key}[{i}]", entry, 3)
        for i, entry in enumerate(_entries(path, content, key))
    ]
    for i, (x, y, z) in enumerate(points):
        if max(abs(x), abs(y)) > GROUND or not 0.2 < z < 4.0:
            raise WorldError(
                f"{path}: {key}[{i}] is {[x, y, z]}; expected x, y within {GROUND:g} m and 0.2 "
                "< z < 4"
            )
    return np.array(points, np.float32).reshape(-1, 3)


def _check_edges(path: Path, world: World) -> None:
    if len(world.starts) and len(world.goals):
        return
    reach = [np.abs(world.boxes[:, :4]).max(initial=0)]
    reach += [(np.abs(world.cylinders[:, :2]) + world.cylinders[:, 2:3]).max(initial=0)]
    if max(reach) > EDGE:
        raise WorldError(
            f"{path}: obstacles reach {max(reach):.1f} m from the centre, where random starts "
            "and targets lie (24 m); "
            f"keep them within {EDGE:g} m, or list starts and goals in the file"
        )


def _heights(path: Path, heights: NDArray[Any], half_width: float) -> World:
    if heights.ndim != 2 or min(heights.shape) < 2 or heights.size > MAXIMUM_PIXELS:
        raise WorldError(
            f"{path}: heights of shape {shown(heights.shape)}; "
            f"expected two axes, at least 2 x 2, at most {MAXIMUM_PIXELS} cells"
        )
    if not np.issubdtype(heights.dtype, np.number) or np.issubdtype(
        heights.dtype, np.complexfloating
    ):
        raise WorldError(
            f"{path}: heights of type {shown(str(heights.dtype))}; expected real numbers"
        )
    heights = heights.astype(np.float32)
    if not np.isfinite(heights).all() or heights.min() < 0 or heights.max() > MAXIMUM_HEIGHT:
        raise WorldError(
            f"{path}: heights must be finite, from 0 to {MAXIMUM_HEIGHT:g} m; found "
            f"{heights.min()} to {heights.max()}"
        )
    boxes = boxes_of_heights(heights, half_width)
    if len(boxes) > MAXIMUM_SHAPES:
        raise WorldError(
            f"{path}: makes {len(boxes)} boxes; expected at most {MAXIMUM_SHAPES}: use fewer "
            "heights, or a coarser grid"
        )
    return World(boxes, name=path.stem)


def _read_png(path: Path) -> World:
    """Return the world of an image: black is the ground, white is 6 m; the image covers the 40 m
    arena, +y up.
    """
    pixels, white = read_png(path)
    # 0.1 m steps, so that equal heights merge into few boxes
    heights = np.round(pixels / white * 60.0) * 0.1
    return _heights(path, np.ascontiguousarray(heights[::-1].T), ARENA)


def _read_npz(path: Path) -> World:
    """Return the world of an array `heights` (x, y) in metres, and optionally `half_width`, half
    the side of the square that it covers.
    """
    arrays, names = read_npz(path, ("heights", "half_width"))
    if "heights" not in arrays:
        raise WorldError(f"{path}: holds {_listed(names)}; expected an array named heights")
    width = arrays.get("half_width", np.array(ARENA))
    if width.size != 1 or width.dtype.kind not in "iuf" or not 1.0 <= float(width.item()) <= EDGE:
        raise WorldError(
            f"{path}: half_width is {shown(width.tolist())}; expected one number from 1 to {EDGE:g}"
        )
    return _heights(path, arrays["heights"], float(width.item()))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:60] for name in names[:3]) + more if names else "nothing"
