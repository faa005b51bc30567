"""Paint shapes into layers of a grid: the distance to the nearest one, in cm."""

from __future__ import annotations

import math

import numpy as np

from navrl.kernel_cache import kernel

__all__ = [
    "CELL",
    "FARTHEST",
    "LAYER",
    "LAYERS",
    "ORIGIN",
    "SIZE",
    "lower",
    "paint_boxes",
    "paint_cylinders",
]

CELL = 0.1  # m
ORIGIN = -26.0  # m, where the grid starts along x and y
SIZE = 520  # cells along a side
LAYER, LAYERS = 0.25, 17  # m, and how many: heights 0 to 4 m
FARTHEST = 200  # cm; what is farther away does not matter
BELOW = 0.12  # m: an obstacle whose top is further below the drone is out of its way


@kernel(nogil=True)
def _layers(bottom, top, standing):
    """Return the first and one past the last layer to paint: none, all, or the highest one.

    Of shapes that stand on the ground only the highest layer is painted, and `lower` does the rest.
    """
    first = max(math.ceil((bottom - BELOW) / LAYER), 0)
    last = min(math.floor((top + BELOW) / LAYER) + 1, LAYERS)
    if (first == 0) != standing:
        return 0, 0
    return (max(last - 1, 0), last) if standing else (first, last)


@kernel(nogil=True)
def _cells(low, high):
    """Return the first and one past the last cell whose distance to an interval may matter."""
    reach = 0.01 * FARTHEST
    first = math.floor((low - reach - ORIGIN) / CELL)
    return max(first, 0), min(math.ceil((high + reach - ORIGIN) / CELL) + 1, SIZE)


@kernel(nogil=True)
def paint_boxes(grid, boxes, standing):
    """Reduce the distances in a grid (LAYERS, X, Y) to those of boxes (M, 6): of those that stand
    on the ground, for `lower` to complete, or of the others.
    """
    for box in boxes:
        first, last = _layers(box[4], box[5], standing)
        x_first, x_last = _cells(box[0], box[1])
        y_first, y_last = _cells(box[2], box[3])
        for i in range(x_first, x_last):
            x = ORIGIN + (i + 0.5) * CELL
            dx = max(box[0] - x, x - box[1], 0.0)
            for j in range(y_first, y_last):
                y = ORIGIN + (j + 0.5) * CELL
                dy = max(box[2] - y, y - box[3], 0.0)
                distance = np.uint8(min(100.0 * math.sqrt(dx * dx + dy * dy), FARTHEST))
                for layer in range(first, last):
                    grid[layer, i, j] = min(grid[layer, i, j], distance)


@kernel(nogil=True)
def paint_cylinders(grid, cylinders, standing):
    """Reduce the distances in a grid (LAYERS, X, Y) to those of cylinders (M, 5), as above."""
    for x, y, radius, bottom, top in cylinders:
        first, last = _layers(bottom, top, standing)
        x_first, x_last = _cells(x - radius, x + radius)
        y_first, y_last = _cells(y - radius, y + radius)
        for i in range(x_first, x_last):
            dx = ORIGIN + (i + 0.5) * CELL - x
            for j in range(y_first, y_last):
                dy = ORIGIN + (j + 0.5) * CELL - y
                gap = max(math.sqrt(dx * dx + dy * dy) - radius, 0.0)
                distance = np.uint8(min(100.0 * gap, FARTHEST))
                for layer in range(first, last):
                    grid[layer, i, j] = min(grid[layer, i, j], distance)


@kernel(nogil=True)
def lower(grid):
    """Let shapes that stand on the ground be in the way in all layers below their highest one."""
    for layer in range(LAYERS - 2, -1, -1):
        for i in range(SIZE):
            for j in range(SIZE):
                grid[layer, i, j] = min(grid[layer, i, j], grid[layer + 1, i, j])
