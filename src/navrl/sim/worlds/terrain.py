"""Static maps: the random boxes of the original, bit for bit, and any height field as boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from navrl.kernel_cache import kernel

PIXEL = 0.1  # m, of the raster that the boxes are drawn on
RASTER = 399  # pixels per side, surrounded by one ring of flat vertices
ARENA = 20.0  # m, half the width of the square that holds the obstacles
GROUND = 25.0  # m, half the width of the ground

HEIGHT_EDGES = (1.0, 1.5, 2.0, 4.0, 6.0)  # m
HEIGHT_PROBABILITIES = (0.10, 0.15, 0.20, 0.55)


@dataclass(frozen=True)
class RandomMap:
    """A random map."""

    vertices: NDArray[np.int16]  # (401, 401), heights in units of 0.1 m
    boxes: NDArray[np.float64]  # (n, 5): x0, y0, width, length, height in pixels
    retries: NDArray[np.int64]  # (n,)

    def cell_heights(self) -> NDArray[np.float32]:
        """Return the height of each 0.1 m cell of the arena in metres, (400, 400).

        Meshing pulls the lower vertex of every steep edge onto the higher one, so a cell is as high
        as the lowest of its four vertices, and a box of w pixels is w - 1 cells wide.
        """
        v = self.vertices
        lowest = np.minimum(np.minimum(v[:-1, :-1], v[1:, :-1]), np.minimum(v[:-1, 1:], v[1:, 1:]))
        return lowest.astype(np.float32) * np.float32(PIXEL)


def draw_map(
    seed: int, num_obstacles: int, *, quantised_widths: bool = True, attempts: int = 100_000
) -> RandomMap:
    """Return the map that the original draws for a seed, from NumPy's legacy generator."""
    generator = np.random.RandomState(seed)
    stream = np.empty(0, np.uint32)
    probabilities = np.cumsum(HEIGHT_PROBABILITIES)
    edges = np.array(HEIGHT_EDGES) / PIXEL
    widest = 1 if quantised_widths else 6
    while True:
        # The number of words needed depends on the words: draw plenty, and double if too few.
        stream = np.concatenate(
            [stream, _words(generator, max(len(stream), 64 * num_obstacles + 1024))]
        )
        boxes, retries, complete = _place_boxes(
            stream, num_obstacles, probabilities, edges, widest, attempts
        )
        if complete:
            break
    raster = np.zeros((RASTER, RASTER))
    for x, y, width, length, height in boxes:
        raster[int(x) : int(x + width), int(y) : int(y + length)] = height
    vertices = np.zeros((RASTER + 2, RASTER + 2), np.int16)
    vertices[1:-1, 1:-1] = np.rint(raster)
    return RandomMap(vertices, boxes, retries)


def _words(generator: np.random.RandomState, count: int) -> NDArray[np.uint32]:
    return np.frombuffer(generator.bytes(4 * count), "<u4").astype(np.uint32)


@kernel()
def _uniform(stream, position):
    """Return a double in [0, 1) as NumPy's legacy generator makes it of two words."""
    high, low = stream[position] >> np.uint32(5), stream[position + 1] >> np.uint32(6)
    return (high * 67108864.0 + low) / 9007199254740992.0, position + 2


@kernel()
def _below(stream, position, largest, mask):
    """Return an integer in [0, largest] as NumPy's legacy generator makes it: by masking words and
    rejecting larger values.
    """
    while position < len(stream):
        value = np.int64(stream[position] & np.uint32(mask))
        position += 1
        if value <= largest:
            return value, position
    return np.int64(0), position


@kernel()
def _place_boxes(stream, count, probabilities, edges, widest, attempts):
    boxes, retries = np.zeros((count, 5)), np.zeros(count, np.int64)
    position = 4  # the original first draws a sub-terrain and a difficulty, which change nothing
    reserve = 64  # words; one attempt needs fewer, with overwhelming probability
    for k in range(count):
        if position + reserve > len(stream):
            return boxes, retries, False
        draw, position = _uniform(stream, position)
        height_class = 0
        while height_class < 3 and draw >= probabilities[height_class]:
            height_class += 1
        draw, position = _uniform(stream, position)
        height = edges[height_class] + (edges[height_class + 1] - edges[height_class]) * draw
        x = y = width = length = np.int64(0)
        for attempt in range(attempts):
            if position + reserve > len(stream):
                return boxes, retries, False
            if widest == 1:
                width, position = _below(stream, position, 1, 1)
                length, position = _below(stream, position, 1, 1)
                width, length = 4 + 4 * width, 4 + 4 * length
            else:
                width, position = _below(stream, position, widest, 7)
                length, position = _below(stream, position, widest, 7)
                width, length = 4 + width, 4 + length
            x, position = _below(stream, position, 99, 127)
            y, position = _below(stream, position, 99, 127)
            x, y = min(4 * x, RASTER - width), min(4 * y, RASTER - length)
            if _spaced(boxes, k, x, y, width, length):
                break
            retries[k] = attempt + 1
        boxes[k, 0] = x
        boxes[k, 1] = y
        boxes[k, 2] = width
        boxes[k, 3] = length
        boxes[k, 4] = height
    return boxes, retries, True


@kernel()
def _spaced(boxes, count, x, y, width, length):
    """Return whether a box obeys the spacing rule of the original: overlaps are allowed, gaps of 2
    to 10 pixels are not.
    """
    for k in range(count):
        dx, dy = abs(boxes[k, 0] - x) - width, abs(boxes[k, 1] - y) - length
        if dx < 0 and dy < 0:
            continue
        if 4 <= dx * dx + dy * dy <= 100:
            return False
    return True


def boxes_of_heights(
    heights: NDArray[np.float32], half_width: float = ARENA
) -> NDArray[np.float32]:
    """Return boxes (M, 6) of x0, x1, y0, y1, z0, z1 that fill a square height field exactly.

    Neighbouring cells of equal height are merged into rectangles.
    """
    rows, columns = heights.shape
    rectangles = _rectangles(np.ascontiguousarray(heights, np.float32))
    scale = np.array(
        [
            2 * half_width / rows,
            2 * half_width / rows,
            2 * half_width / columns,
            2 * half_width / columns,
        ]
    )
    boxes = np.zeros((len(rectangles), 6), np.float32)
    boxes[:, :4] = rectangles[:, :4] * scale - half_width
    boxes[:, 5] = rectangles[:, 4]
    return boxes


@kernel()
def _rectangles(heights):
    """Return the rectangles of equal height, (M, 5): first row, end row, first column, end column,
    height.
    """
    rows, columns = heights.shape
    taken = np.zeros((rows, columns), np.bool_)
    found = np.zeros((rows * columns, 5))
    count = 0
    for i in range(rows):
        for j in range(columns):
            height = heights[i, j]
            if taken[i, j] or height <= 0:
                continue
            right = j + 1
            while right < columns and not taken[i, right] and heights[i, right] == height:
                right += 1
            below = i + 1
            while below < rows and _same(heights, taken, below, j, right, height):
                below += 1
            for row in range(i, below):
                for column in range(j, right):
                    taken[row, column] = True
            found[count, 0], found[count, 1], found[count, 2], found[count, 3] = i, below, j, right
            found[count, 4] = height
            count += 1
    return found[:count]


@kernel()
def _same(heights, taken, row, left, right, height):
    for column in range(left, right):
        if taken[row, column] or heights[row, column] != height:
            return False
    return True
