"""The scene of the live view: obstacles, drones, trails, rays and a goal that can be dragged."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.render import shapes
from navrl.render.moment import Moment
from navrl.render.palette import LIGHT
from navrl.sim.reference import FLOATING_HEIGHT, TALL_HEIGHT
from navrl.view.live.flight import LiveFlight

__all__ = ["LiveScene"]

DRONE = 0.35  # m, radius as drawn: larger than the real one, to be seen from afar

Floats = NDArray[np.float32]


class LiveScene:
    """Draws a flight into a viser server.

    Args:
        server: a `viser.ViserServer`.
    """

    def __init__(self, server: Any) -> None:
        self._scene = server.scene
        self._scene.set_up_direction("+z")
        self._scene.add_grid("/ground", width=50, height=50, cell_size=5, section_size=10)
        self._handles: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._dragged: tuple[float, float, float] | None = None
        self._dragging = False

    def open(self, flight: LiveFlight) -> None:
        """Draw a new flight in the place of the one before."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._draw_static(flight)
        moment = flight.moment()
        tall = moment.moving_tall
        self._moving = {"boxes": np.flatnonzero(~tall), "cylinders": np.flatnonzero(tall)}
        for name, mesh in (("boxes", shapes.boxes), ("cylinders", shapes.cylinders)):
            chosen = self._moving[name]
            if len(chosen):
                height = TALL_HEIGHT if name == "cylinders" else FLOATING_HEIGHT
                self._draw_moving(name, mesh, moment.moving_width[chosen], height)
        unit = shapes.drones(np.zeros((1, 3)), np.zeros(1), np.full(1, DRONE))
        self._batch("drones", unit, np.zeros((flight.drones, 3)), LIGHT.flying)
        self._goal(moment.goal[0])

    def _draw_static(self, flight: LiveFlight) -> None:
        parts = []
        if len(flight.boxes):
            low, high = flight.boxes[:, 0::2], flight.boxes[:, 1::2]
            parts.append(shapes.boxes((low + high) / 2, (high - low) / 2))
        if len(flight.cylinders):
            x, y, radius, low, high = flight.cylinders.T
            centre = np.stack([x, y, (low + high) / 2], axis=1)
            half = np.stack([radius, radius, (high - low) / 2], axis=1)
            parts.append(shapes.cylinders(centre, half))
        if parts:
            vertices, faces = _mesh(np.concatenate(parts))
            self._handles["static"] = self._scene.add_mesh_simple(
                "/static", vertices, faces, color=_colour(LIGHT.high), flat_shading=True
            )

    def _draw_moving(self, name: str, mesh: Any, width: Floats, height: float) -> None:
        unit = mesh(np.zeros((1, 3)), np.full((1, 3), 0.5))
        scales = np.stack([width, width, np.full_like(width, height)], axis=1)
        self._batch(name, unit, np.zeros((len(width), 3)), LIGHT.moving, scales)

    def _batch(
        self, name: str, triangles: Floats, places: Any, colour: str, scales: Any = None
    ) -> None:
        vertices, faces = _mesh(triangles)
        count = len(places)
        self._handles[name] = self._scene.add_batched_meshes_simple(
            f"/{name}",
            vertices,
            faces,
            batched_wxyzs=np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)).astype(np.float32),
            batched_positions=np.asarray(places, np.float32),
            batched_scales=np.ones((count, 3), np.float32) if scales is None else scales,
            batched_colors=np.tile(_colour(colour), (count, 1)).astype(np.uint8),
            flat_shading=True,
        )

    def _goal(self, place: Floats) -> None:
        """Show the goal of the followed drone as arrows that can be dragged."""
        goal = self._scene.add_transform_controls(
            "/goal",
            scale=2.0,
            disable_rotations=True,
            depth_test=False,  # to be found behind obstacles too
            position=tuple(map(float, place)),
        )
        self._scene.add_icosphere("/goal/ball", radius=0.5, color=_colour(LIGHT.success_100))
        self._handles["goal"] = goal

        @goal.on_drag_start
        def _(_: Any) -> None:
            self._dragging = True

        @goal.on_drag_end
        def _(_: Any) -> None:
            with self._lock:
                x, y, z = map(float, goal.position)
                self._dragged = x, y, z
                self._dragging = False

    def take_goal(self) -> tuple[float, float, float] | None:
        """Return where the goal was dragged since the last call, if it was."""
        with self._lock:
            dragged, self._dragged = self._dragged, None
        return dragged

    def show(self, moment: Moment, *, followed: int, rays: bool) -> None:
        """Draw what has moved."""
        for name, chosen in self._moving.items():
            if len(chosen):
                self._handles[name].batched_positions = moment.moving_position[chosen]
        drones = self._handles["drones"]
        drones.batched_positions = moment.position.astype(np.float32)
        half = 0.5 * moment.yaw
        none = np.zeros_like(half)
        turns = np.stack([np.cos(half), none, none, np.sin(half)], axis=1)
        drones.batched_wxyzs = turns.astype(np.float32)
        colours = [_colour(getattr(LIGHT, state)) for state in moment.state]
        drones.batched_colors = np.array(colours, np.uint8)
        if not self._dragging and self._dragged is None:
            self._handles["goal"].position = tuple(map(float, moment.goal[followed]))
        self._lines("trails", _segments(moment.trails), LIGHT.flying)
        seen = moment.rays[moment.hits] if rays else moment.rays[:0]
        self._lines("rays", seen, LIGHT.ray)

    def _lines(self, name: str, lines: Floats, colour: str) -> None:
        """Replace a set of lines; an empty one is removed."""
        if len(lines):
            self._handles[name] = self._scene.add_line_segments(
                f"/{name}",
                points=lines,
                colors=_colour(colour),
                thickness=1.5,
                thickness_units="screen",
            )
        elif name in self._handles:
            self._handles.pop(name).remove()


def _mesh(triangles: Floats) -> tuple[Floats, NDArray[np.uint32]]:
    """Return vertices, (3 N, 3), and faces, (N, 3), of triangles, (N, 3, 3)."""
    vertices = np.ascontiguousarray(triangles.reshape(-1, 3), np.float32)
    return vertices, np.arange(len(vertices), dtype=np.uint32).reshape(-1, 3)


def _segments(trails: list[Floats]) -> Floats:
    """Return the ways of all drones as lines, (K, 2, 3)."""
    parts = [np.stack([way[:-1], way[1:]], axis=1) for way in trails if len(way) > 1]
    return np.concatenate(parts) if parts else np.zeros((0, 2, 3), np.float32)


def _colour(written: str) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in shapes.tone(written))
    return red, green, blue
