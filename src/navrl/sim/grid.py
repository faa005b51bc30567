"""Local maps: the obstacles around each drone as a small image, turned towards its goal.

For policies with image observations, and for replay buffers that hold them. The drone is in the
centre, its goal straight up; the first channel shows static obstacles at the height of the drone,
the second moving ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from navrl.errors import ActionError, ConfigError
from navrl.kernel_cache import kernel
from navrl.sim.threads import start_threads
from navrl.sim.worlds.obstacles import FLOATING_HEIGHT, TALL_HEIGHT
from navrl.sim.worlds.terrain import GROUND, PIXEL
from navrl.sim.worlds.world_file import World

if TYPE_CHECKING:
    from navrl.sim.env import NavigationEnv

SIDE = round(2 * GROUND / PIXEL)  # cells of a world
MARGIN = 0.3  # m above and below the drone: obstacles within count as at its height
OCCUPIED = 255
NOTHING = 1e6  # m, the bottom of an empty cell; not infinity, which fast-math may not see


class LocalGrids:
    """Draws the surroundings of all drones of an environment.

    Args:
        env: the environment of the drones.
        cells: per side of an image.
        resolution: m per cell.
    """

    def __init__(self, env: NavigationEnv, *, cells: int = 84, resolution: float = 0.1) -> None:
        if not 1 <= cells <= 1024 or not 0.01 <= resolution <= 10:
            raise ConfigError(
                f"a grid of {cells} cells of {resolution} m; expected 1 to 1024 cells of 0.01 "
                "to 10 m"
            )
        self.env, self.cells, self.resolution = env, cells, resolution
        # (W, 2, SIDE, SIDE)
        self._heights = np.stack([_heights(world) for world in env.pool.worlds])
        start_threads()  # of the kernel that draws

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Return the current images, (N, 2, cells, cells) uint8: 255 where occupied, else 0."""
        env = self.env
        shape = (env.num_envs, 2, self.cells, self.cells)
        if out is None:
            out = torch.empty(shape, dtype=torch.uint8)
        elif (
            out.shape != shape
            or out.dtype != torch.uint8
            or not out.is_cpu
            or not out.is_contiguous()
        ):
            raise ActionError(
                f"out is {out.dtype} {tuple(out.shape)}; expected contiguous uint8 {shape} in "
                "main memory"
            )
        positions, sizes = self._moving()
        _draw(
            out.numpy(),
            env.position.numpy(),
            env.forward.numpy(),
            env.world.numpy(),
            self._heights,
            positions,
            sizes,
            env.pool.moving_counts,
            np.float32(self.resolution),
        )
        return out

    def _moving(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return positions (W, D, 3) and sizes (W, D, 2: radius, half height) of all moving
        obstacles.
        """
        pool = self.env.pool
        most = max(1, int(pool.moving_counts.max(initial=0)))
        positions = np.zeros((len(pool.worlds), most, 3), np.float32)
        sizes = np.zeros((len(pool.worlds), most, 2), np.float32)
        for world in np.flatnonzero(pool.moving_counts):
            seen = self.env.obstacles(int(world))
            count = len(seen["width"])
            positions[world, :count] = seen["position"].numpy()
            sizes[world, :count, 0] = seen["width"].numpy() / 2
            heights = np.where(seen["tall"].numpy(), TALL_HEIGHT, FLOATING_HEIGHT)
            sizes[world, :count, 1] = heights / 2
        return positions, sizes


def _heights(world: World) -> NDArray[np.float32]:
    """Return the lowest bottom and highest top of the obstacles in each cell of a world, in m.

    An obstacle is in a cell if it covers the centre; thinner ones are widened to one cell.
    """
    bottoms, tops = np.full((SIDE, SIDE), NOTHING, np.float32), np.zeros((SIDE, SIDE), np.float32)
    centres, half = (np.arange(SIDE) + 0.5) * PIXEL - GROUND, PIXEL / 2
    for x0, x1, y0, y1, bottom, top in world.boxes:
        wide, long = max(0.0, half - (x1 - x0) / 2), max(0.0, half - (y1 - y0) / 2)
        block = np.ix_(
            (centres >= x0 - wide) & (centres <= x1 + wide),
            (centres >= y0 - long) & (centres <= y1 + long),
        )
        bottoms[block], tops[block] = (
            np.minimum(bottoms[block], bottom),
            np.maximum(tops[block], top),
        )
    for x, y, radius, bottom, top in world.cylinders:
        inside = (centres[:, None] - x) ** 2 + (centres[None] - y) ** 2 <= max(
            radius, half * 2**0.5
        ) ** 2
        bottoms[inside], tops[inside] = (
            np.minimum(bottoms[inside], bottom),
            np.maximum(tops[inside], top),
        )
    return np.stack([bottoms, tops])


@kernel(parallel=True, nogil=True, fastmath=True)
def _draw(grids, position, forward, world, heights, moving, sizes, counts, resolution):
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
                occupied = (
                    0 <= i < SIDE
                    and 0 <= j < SIDE
                    and ground[0, i, j] < z + MARGIN
                    and ground[1, i, j] > z - MARGIN
                )
                grids[drone, 0, row, column] = OCCUPIED if occupied else 0
                grids[drone, 1, row, column] = 0
        for number in range(counts[world[drone]]):
            _draw_moving(
                grids[drone, 1],
                moving[world[drone], number],
                sizes[world[drone], number],
                position[drone],
                forward[drone],
                resolution,
            )


@kernel(nogil=True, fastmath=True)
def _draw_moving(
    grid: Any, at: Any, size: Any, position: Any, forward: Any, resolution: Any
) -> None:
    cells = grid.shape[0]
    middle = np.float32(cells - 1) / 2
    if abs(at[2] - position[2]) > size[1] + MARGIN:
        return
    east, north = at[0] - position[0], at[1] - position[1]
    row = middle - (east * forward[0] + north * forward[1]) / resolution
    column = middle - (north * forward[0] - east * forward[1]) / resolution
    reach = max(size[0] / resolution, 0.71)  # at least one cell
    for i in range(max(0, int(np.ceil(row - reach))), min(cells, int(np.floor(row + reach)) + 1)):
        for j in range(
            max(0, int(np.ceil(column - reach))), min(cells, int(np.floor(column + reach)) + 1)
        ):
            if (i - row) ** 2 + (j - column) ** 2 <= reach * reach:
                grid[i, j] = OCCUPIED
