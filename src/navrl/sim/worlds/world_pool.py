"""The pool of worlds as flat arrays for the kernels: obstacles, a grid of nearby ones, moving
obstacles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from navrl.kernel_cache import kernel
from navrl.sim.settings import NavigationSettings
from navrl.sim.worlds.obstacles import TALL_CENTRE, draw_world_origins, moving_obstacles, per_world
from navrl.sim.worlds.terrain import ARENA, GROUND, boxes_of_heights, draw_map
from navrl.sim.worlds.world_file import World, load_world
from navrl.simd import WIDTH

CELL = 1.0  # m, of the grid that lists the obstacles within LiDAR range of each cell
GRID_ORIGIN = -26.0  # m
GRID = 52  # cells along a side
SHAPE = 8  # columns of a shape
# m, of the walls of the layout `walled`: x of their inner faces; higher than drones may fly
WALL, WALL_THICKNESS, WALL_HEIGHT = ARENA, 0.5, 6.0


@dataclass(frozen=True)
class WorldPool:
    """All worlds of an environment; constant while drones fly. A new seed draws new origins."""

    worlds: list[World]
    shapes: NDArray[np.float32]  # (B, SHAPE): x0, x1, y0, y1, z0, z1, 1 if a cylinder, unused
    near: NDArray[np.int32]  # (K,) rows of `shapes`, grouped by world and cell, nearest first
    near_start: NDArray[np.int32]  # (W, GRID * GRID + 1) where each cell's group starts in `near`
    points: NDArray[np.float32]  # (P, 3) starts and goals that world files list
    # (W, 4): first start, number of starts, first goal, number of goals
    point_ranges: NDArray[np.int32]
    moving_counts: NDArray[np.int32]  # (W,)
    moving_sizes: NDArray[np.float32]  # (W, 2, D): width in m; 1 if a tall cylinder
    moving_origins: NDArray[np.float32]  # (W, 3, D)

    @property
    def padded_moving(self) -> int:
        """Moving obstacles that every world has room for."""
        return self.moving_origins.shape[2]


def build_pool(settings: NavigationSettings, seed: int) -> WorldPool:
    """Return the worlds of the settings; `seed` affects only the origins of moving obstacles."""
    worlds = _static_worlds(settings)
    if settings.env.layout == "walled":
        walled = {id(world): _walled(world) for world in worlds}
        worlds = [walled[id(world)] for world in worlds]
    shapes = [_shapes_of(world) for world in worlds]
    near, near_start = _joined_near_lists(shapes, float(settings.sensor.lidar_range))
    counts, sizes, origins = moving_obstacles(
        settings.env_dyn, len(worlds), planar=settings.env.planar
    )
    points, ranges = _points_of(worlds)
    pool = WorldPool(
        worlds=worlds,
        shapes=np.concatenate([*shapes, np.zeros((1, SHAPE), np.float32)]),
        near=near,
        near_start=near_start,
        points=points,
        point_ranges=ranges,
        moving_counts=counts,
        moving_sizes=sizes,
        moving_origins=origins,
    )
    draw_origins(pool, seed)
    return pool


def _joined_near_lists(
    shapes: Sequence[NDArray[np.float32]], lidar_range: float
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the near lists of all worlds as one, and where those of each cell begin."""
    near_start, near = [], []
    row, used = 0, 0
    for block in shapes:
        start, rows = _near_lists(block, lidar_range)
        near_start.append(start + used)
        near.append(rows + row)
        row += len(block)
        used += len(rows)
    # padded, because kernels read whole groups
    whole = np.concatenate([*near, np.zeros(WIDTH, np.int64)]).astype(np.int32)
    return whole, np.stack(near_start).astype(np.int32)


def draw_origins(pool: WorldPool, seed: int) -> None:
    """Draw the origins of the moving obstacles of every world, in place."""
    for world, count in enumerate(pool.moving_counts):
        draw_world_origins(pool.moving_origins[world], count, seed, world)
        tall = pool.moving_sizes[world, 1] > 0
        pool.moving_origins[world, 2, tall] = TALL_CENTRE


def _static_worlds(settings: NavigationSettings) -> list[World]:
    task = settings.env
    if task.world_files:
        loaded = [load_world(path) for path in task.world_files]
        return [loaded[w % len(loaded)] for w in range(task.num_worlds)]
    known: dict[tuple[int, int], World] = {}
    worlds = []
    for w in range(task.num_worlds):
        seed = task.map_seed + (0 if task.same_map else w)
        count = per_world(task.obstacles_per_world, task.num_obstacles, w)
        if (seed, count) not in known:
            drawn = draw_map(
                seed,
                count,
                quantised_widths=task.quantised_widths,
                attempts=task.placement_attempts,
            )
            known[seed, count] = World(boxes_of_heights(drawn.cell_heights()), name=f"map {seed}")
        worlds.append(known[seed, count])
    return worlds


def _walled(world: World) -> World:
    """Return a world with a wall along each side of the field."""
    outer = WALL + WALL_THICKNESS
    walls = [
        [low, high, -GROUND, GROUND, 0.0, WALL_HEIGHT]
        for low, high in ((-outer, -WALL), (WALL, outer))
    ]
    return replace(world, boxes=np.concatenate([world.boxes, np.array(walls, np.float32)]))


def _shapes_of(world: World) -> NDArray[np.float32]:
    shapes = np.zeros((len(world.boxes) + len(world.cylinders), SHAPE), np.float32)
    shapes[: len(world.boxes), :6] = world.boxes
    x, y, radius, bottom, top = world.cylinders.T
    columns = [x - radius, x + radius, y - radius, y + radius, bottom, top, np.ones_like(x)]
    shapes[len(world.boxes) :, :7] = np.stack(columns, axis=1)
    return shapes


def _near_lists(
    shapes: NDArray[np.float32], reach: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each cell of the grid, the shapes within `reach` of any of its points, nearest
    first: where each list begins, and all lists.
    """
    cells, rows, squared = _near_pairs(shapes, reach)
    order = np.lexsort((squared, cells))
    start = np.zeros(GRID * GRID + 1, np.int64)
    np.cumsum(np.bincount(cells, minlength=GRID * GRID), out=start[1:])
    return start, rows[order]


@kernel()
def _near_pairs(shapes, reach):
    """Return all pairs of a cell and a shape within `reach`, and their squared distances."""
    room = 1024
    cells, rows, squared = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room)
    used = 0
    for k in range(len(shapes)):
        first_x, last_x = _cells_between(shapes[k, 0] - reach, shapes[k, 1] + reach)
        first_y, last_y = _cells_between(shapes[k, 2] - reach, shapes[k, 3] + reach)
        for i in range(first_x, last_x + 1):
            for j in range(first_y, last_y + 1):
                x, y = GRID_ORIGIN + i * CELL, GRID_ORIGIN + j * CELL
                dx = max(max(shapes[k, 0] - (x + CELL), x - shapes[k, 1]), 0.0)
                dy = max(max(shapes[k, 2] - (y + CELL), y - shapes[k, 3]), 0.0)
                if dx * dx + dy * dy > reach * reach:
                    continue
                if used == room:
                    cells, rows = np.append(cells, cells), np.append(rows, rows)
                    squared = np.append(squared, squared)
                    room *= 2
                cells[used], rows[used], squared[used] = i * GRID + j, k, dx * dx + dy * dy
                used += 1
    return cells[:used], rows[:used], squared[:used]


@kernel()
def _cells_between(low, high):
    """Return the first and last cell along an axis that an interval touches."""
    first = math.floor((low - GRID_ORIGIN) / CELL)
    last = math.floor((high - GRID_ORIGIN) / CELL)
    return max(first, 0), min(last, GRID - 1)


def _points_of(worlds: list[World]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    # never empty: the kernel takes its address
    points: list[NDArray[np.float32]] = [np.zeros((1, 3), np.float32)]
    ranges, used = [], 1
    for world in worlds:
        ranges.append([used, len(world.starts), used + len(world.starts), len(world.goals)])
        points += [world.starts, world.goals]
        used += len(world.starts) + len(world.goals)
    return np.concatenate(points), np.array(ranges, np.int32)
