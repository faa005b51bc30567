"""Pictures of a world and its flights from a camera."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.render import shapes
from navrl.render.camera import Camera
from navrl.render.kernels import draw_lines, fill_triangles, shrink
from navrl.render.moment import FLYING, Moment
from navrl.render.palette import LIGHT, Palette
from navrl.sim.reference import FLOATING_HEIGHT, TALL_HEIGHT
from navrl.sim.worlds.terrain import GROUND

__all__ = ["MARKS", "Renderer"]

MARKS = {
    "success_100": "disc",
    "static_collision": "cross",
    "dynamic_collision": "diamond",
    "out_of_bounds": "triangle",
    "time_out": "square",
}
DRONE_RADIUS = 0.3  # m
HIGHEST = 6.0  # m: obstacles of this height have the darkest colour
GRID = 5.0  # m

Bytes = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]


class Renderer:
    """Draws one world; what stands still is drawn once for as long as the camera does not move.

    Args:
        boxes: (M, 6) static obstacles: x0, x1, y0, y1, z0, z1.
        cylinders: (C, 5) static obstacles: x, y, radius, z0, z1.
        width, height: of the pictures, in pixels.
        palette: of the colours.
        smooth: pixels are the means of `smooth` x `smooth`.
    """

    def __init__(
        self,
        boxes: Floats,
        cylinders: Floats,
        *,
        width: int = 854,
        height: int = 480,
        palette: Palette = LIGHT,
        smooth: int = 2,
    ) -> None:
        self.width, self.height, self.smooth = width, height, smooth
        self.tones = {name: shapes.tone(colour) for name, colour in asdict(palette).items()}
        self._static = self._obstacles(boxes, cylinders)
        rows, columns = height * smooth, width * smooth
        self._colour = np.zeros((rows, columns, 3), np.uint8)
        self._depth = np.zeros((rows, columns), np.float32)
        self._background: tuple[Camera, Bytes, Floats] | None = None

    def picture(self, camera: Camera, moment: Moment, *, chosen: int | None = None) -> Bytes:
        """Return the picture of a moment, (height, width, 3).

        The path and mark of a chosen drone are drawn larger.
        """
        self._packed = camera.packed(self.width * self.smooth, self.height * self.smooth)
        self._draw_background(camera)
        self._draw_moving(moment)
        self._draw_trails(moment, chosen)
        self._draw_drones(camera, moment)
        self._draw_rays(moment)
        self._draw_marks(camera, moment, chosen)
        small = np.empty((self.height, self.width, 3), np.uint8)
        shrink(self._colour, self.smooth, small)
        return small

    # ------------------------------------------------------------------ what stands still

    def _obstacles(self, boxes: Floats, cylinders: Floats) -> tuple[Floats, Bytes]:
        low, high = boxes[:, 0::2], boxes[:, 1::2]
        x, y, radius, bottom, top = cylinders.T
        centre = np.stack([x, y, (bottom + top) / 2], 1)
        half = np.stack([radius, radius, (top - bottom) / 2], 1)
        meshes = [shapes.boxes((low + high) / 2, (high - low) / 2), shapes.cylinders(centre, half)]
        tops = [boxes[:, 5], top]
        colours = []
        for mesh, heights in zip(meshes, tops, strict=True):
            share = np.clip(heights / HIGHEST, 0, 1)[:, None]
            colour = self.tones["low"] * (1 - share) + self.tones["high"] * share
            colours.append(np.repeat(colour, len(mesh) // max(len(heights), 1), axis=0))
        triangles = np.concatenate(meshes)
        return triangles, shapes.shaded(triangles, np.concatenate(colours))

    def _draw_background(self, camera: Camera) -> None:
        """Draw the ground and the obstacles, or take them from the last picture."""
        if self._background is not None and self._background[0] == camera:
            self._colour[:], self._depth[:] = self._background[1:]
            return
        self._colour[:] = self.tones["sky"]
        self._depth[:] = 0
        self._fill(_square(GROUND), self.tones["ground"])
        triangles, tones = self._static
        shade = self.tones["ground"] * 0.86
        self._fill(shapes.shadows(triangles), shade)
        self._lines(_grid(), self.tones["grid"], 1.0, 1.2)
        self._fill(triangles, tones)
        self._background = (camera, self._colour.copy(), self._depth.copy())

    # ------------------------------------------------------------------ what moves

    def _draw_moving(self, moment: Moment) -> None:
        half = np.repeat(moment.moving_width[:, None] / 2, 3, axis=1)
        tall = moment.moving_tall
        half[:, 2] = np.where(tall, TALL_HEIGHT / 2, FLOATING_HEIGHT / 2)
        place = moment.moving_position
        for triangles in (
            shapes.boxes(place[~tall], half[~tall]),
            shapes.cylinders(place[tall], half[tall]),
        ):
            self._fill(shapes.shadows(triangles), self.tones["ground"] * 0.86)
            self._fill(triangles, shapes.shaded(triangles, self.tones["moving"]))

    def _draw_trails(self, moment: Moment, chosen: int | None) -> None:
        for flight, trail in enumerate(moment.trails):
            if len(trail) > 1:
                lines = np.stack([trail[:-1], trail[1:]], axis=1)
                faint = chosen is not None and chosen != flight
                thickness = 1.8 if flight == chosen else 1.3
                tone = self.tones[moment.state[flight]]
                self._lines(lines, tone, 0.25 if faint else 0.75, thickness)

    def _draw_drones(self, camera: Camera, moment: Moment) -> None:
        flying = np.array([state == FLYING for state in moment.state], np.bool_)
        if not flying.any():
            return
        place = moment.position[flying]
        radius = np.maximum(DRONE_RADIUS, self._metres(camera, place, 6.0))
        triangles = shapes.drones(place, moment.yaw[flying], radius)
        self._fill(shapes.shadows(triangles), self.tones["ground"] * 0.8)
        self._fill(triangles, shapes.shaded(triangles, self.tones[FLYING]))

    def _draw_rays(self, moment: Moment) -> None:
        self._lines(moment.rays[~moment.hits], self.tones["ray"], 0.35, 0.8)
        self._lines(moment.rays[moment.hits], self.tones["static_collision"], 0.9, 0.8)

    def _draw_marks(self, camera: Camera, moment: Moment, chosen: int | None) -> None:
        sizes = np.full(len(moment.state), 3.6, np.float32)
        if chosen is not None:
            sizes[chosen] = 8.0
        for state in dict.fromkeys(moment.state):
            mine = np.array([other == state for other in moment.state])
            goal, tone = moment.goal[mine], self.tones[state]
            radius = self._metres(camera, goal, 1.0) * sizes[mine]
            self._fill(shapes.marks(goal, "ring", radius, camera), tone)
            if state != FLYING:
                place = moment.position[mine]
                radius = self._metres(camera, place, 5.6)
                rim, shape = radius * 1.35, MARKS[state]
                self._fill(shapes.marks(place, shape, rim, camera), self.tones["background"], False)
                self._fill(shapes.marks(place, shape, radius, camera), tone, False)

    # ------------------------------------------------------------------ helpers

    def _metres(self, camera: Camera, place: Floats, pixels: float) -> Floats:
        """Return the metres that so many pixels are at each place, (N,)."""
        ahead = (place - np.array(camera.eye, np.float32)) @ camera.axes()[2].astype(np.float32)
        return np.maximum(ahead, 0.5) * np.float32(pixels * self.smooth / self._packed[12])

    def _fill(self, triangles: Floats, tones: NDArray[np.generic], tested: bool = True) -> None:
        every = _one_each(tones.astype(np.uint8), len(triangles))
        triangles = np.require(triangles, np.float32, ["C", "W"])
        fill_triangles(self._colour, self._depth, self._packed, triangles, every, tested)

    def _lines(
        self, lines: Floats, tone: NDArray[np.float64], opacity: float, thickness: float
    ) -> None:
        """Draw lines so many pixels of the final picture thick."""
        every = _one_each(tone.astype(np.float32), len(lines))
        lines = np.require(lines, np.float32, ["C", "W"])
        wide = thickness * self.smooth
        draw_lines(self._colour, self._depth, self._packed, lines, every, opacity, wide)


def _one_each(tones: NDArray[Any], number: int) -> NDArray[Any]:
    """Return one tone or many as (number, 3), contiguous and writable: numba compiles again for
    every other kind of array.
    """
    return np.require(np.broadcast_to(tones, (number, 3)), requirements=["C", "W"])


def _square(half: float) -> Floats:
    """Return the ground as triangles."""
    a, b, c, d = ((-half, -half, 0), (half, -half, 0), (half, half, 0), (-half, half, 0))
    return np.array([[a, b, c], [a, c, d]], np.float32)


def _grid() -> Floats:
    """Return the lines on the ground, (N, 2, 3)."""
    ticks = np.arange(-GROUND, GROUND + GRID / 2, GRID)
    along = [[(t, -GROUND, 0.012), (t, GROUND, 0.012)] for t in ticks]
    return np.array(along + [[(-GROUND, t, 0.012), (GROUND, t, 0.012)] for t in ticks], np.float32)
