"""Local maps: what stands and moves around each drone as a small picture, turned towards its goal.

For policies that look at pictures instead of a LiDAR, and for memories that have to hold pictures. The drone is in the
middle, its goal straight up; the first channel shows what stands as high as the drone flies, the second what moves there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from navrl.errors import ConfigError
from navrl.sim.terrain import GROUND, PIXEL
from navrl.sim.worldfile import World

if TYPE_CHECKING:
    from navrl.sim.env import NavigationEnv

SIDE = round(2 * GROUND / PIXEL)  # cells of a world
MARGIN = 0.3  # m above and below the drone that it must not touch
FLOATING, TALL = 1.0, 5.0  # m, heights of moving boxes and moving cylinders
SEEN = 255


class LocalGrids:
    """Draws the surroundings of all drones of an environment.

    Args:
        env: whose drones are in the middle of the pictures.
        cells: of a picture's side.
        resolution: m of a cell's side.
    """

    def __init__(self, env: NavigationEnv, *, cells: int = 84, resolution: float = 0.1) -> None:
        if not 1 <= cells <= 1024 or not 0.01 <= resolution <= 10:
            raise ConfigError(f"a grid of {cells} cells of {resolution} m; expected 1 to 1024 cells of 0.01 to 10 m")
        self.env, self.cells, self.resolution = env, cells, resolution
        self._heights = np.stack([_heights(world) for world in env.pool.worlds])

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Return what is around all drones now, (N, 2, cells, cells) uint8: 255 where something is, else 0."""
        env = self.env
        if out is None:
            out = torch.empty(env.num_envs, 2, self.cells, self.cells, dtype=torch.uint8)
        positions, sizes = self._moving()
        _draw(out.numpy(), env.position.numpy(), env.forward.numpy(), env.world.numpy(), self._heights,
              positions, sizes, env.pool.moving_counts, np.float32(self.resolution))  # fmt: skip
        return out

    def _moving(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return positions (W, D, 3) and sizes (W, D, 2: radius, half the height) of all moving obstacles."""
        pool = self.env.pool
        most = max(1, int(pool.moving_counts.max(initial=0)))
        positions, sizes = np.zeros((len(pool.worlds), most, 3), np.float32), np.zeros((len(pool.worlds), most, 2), np.float32)
        for world in np.flatnonzero(pool.moving_counts):
            seen = self.env.obstacles(int(world))
            count = len(seen["width"])
            positions[world, :count] = seen["position"].numpy()
            sizes[world, :count, 0] = seen["width"].numpy() / 2
            sizes[world, :count, 1] = np.where(seen["tall"].numpy(), TALL / 2, FLOATING / 2)
        return positions, sizes


def _heights(world: World) -> NDArray[np.float32]:
    """Return how high the highest thing in each cell of a world is, in m."""
    heights = np.zeros((SIDE, SIDE), np.float32)
    centres = (np.arange(SIDE) + 0.5) * PIXEL - GROUND
    for x0, x1, y0, y1, _, top in world.boxes:
        block = np.ix_((centres > x0) & (centres < x1), (centres > y0) & (centres < y1))
        heights[block] = np.maximum(heights[block], top)
    for x, y, radius, _, top in world.cylinders:
        inside = (centres[:, None] - x) ** 2 + (centres[None] - y) ** 2 < radius**2
        heights[inside] = np.maximum(heights[inside], top)
    return heights


@njit(parallel=True, cache=True, nogil=True, fastmath=True)
def _draw(grids, position, forward, world, heights, moving, sizes, counts, resolution):  # type: ignore[no-untyped-def]
    cells = grids.shape[2]
    middle = np.float32(cells - 1) / 2
    for drone in prange(grids.shape[0]):
        x, y, z = position[drone]
        ahead_x, ahead_y = forward[drone]
        ground = heights[world[drone]]
        for row in range(cells):
            ahead = (middle - row) * resolution  # the first row is the farthest ahead
            for column in range(cells):
                left = (middle - column) * resolution
                i = int(np.floor((x + ahead * ahead_x - left * ahead_y + GROUND) / PIXEL))
                j = int(np.floor((y + ahead * ahead_y + left * ahead_x + GROUND) / PIXEL))
                inside = 0 <= i < SIDE and 0 <= j < SIDE
                grids[drone, 0, row, column] = SEEN if inside and ground[i, j] > z - MARGIN else 0
                grids[drone, 1, row, column] = 0
        for number in range(counts[world[drone]]):
            _draw_moving(grids[drone, 1], moving[world[drone], number], sizes[world[drone], number],
                         position[drone], forward[drone], resolution)  # fmt: skip


@njit(cache=True, nogil=True, fastmath=True)
def _draw_moving(grid: Any, at: Any, size: Any, position: Any, forward: Any, resolution: Any) -> None:
    cells = grid.shape[0]
    middle = np.float32(cells - 1) / 2
    if abs(at[2] - position[2]) > size[1] + MARGIN:
        return
    east, north = at[0] - position[0], at[1] - position[1]
    row = middle - (east * forward[0] + north * forward[1]) / resolution
    column = middle - (north * forward[0] - east * forward[1]) / resolution
    reach = size[0] / resolution
    for i in range(max(0, int(np.ceil(row - reach))), min(cells, int(np.floor(row + reach)) + 1)):
        for j in range(max(0, int(np.ceil(column - reach))), min(cells, int(np.floor(column + reach)) + 1)):
            if (i - row) ** 2 + (j - column) ** 2 <= reach * reach:
                grid[i, j] = SEEN
