"""The arrays of all drones and worlds of an environment, and the calls into the kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.errors import StateError
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.kernels import step_kernel
from navrl.sim.kernels.detection import NEAREST
from navrl.sim.kernels.layout import ARRAYS, ATTITUDE, COUNTERS, FIELDS, WORLD
from navrl.sim.kernels.lidar import LidarTables, make_tables
from navrl.sim.kernels.parameters import lidar_interval, make_parameters
from navrl.sim.kernels.quadrotor import airframe_constants
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import Step
from navrl.sim.threads import start_threads
from navrl.sim.worlds.world_pool import WorldPool
from navrl.simd import WIDTH, aligned_zeros

IMPORTED_BY = os.getpid()


class DroneBatch:
    """Everything that changes while drones fly.

    The kernel gets the addresses of the arrays once: fill them in place, never replace one.

    Args:
        settings: of the task.
        pool: the worlds.
        width: of an observation row.
        seed: of all random numbers.
        auto_reset: whether an ended episode is followed by the next one.
    """

    def __init__(
        self,
        settings: NavigationSettings,
        pool: WorldPool,
        *,
        width: int,
        seed: int,
        auto_reset: bool,
    ) -> None:
        self.settings, self.pool, self.num_envs = settings, pool, settings.env.num_envs
        self.threads = _threads_of(settings)
        # `tracks` has two halves: the kernel reads one, and writes the next step into the other
        self.half, self.time = 0, 0
        tables = make_tables(settings.sensor)
        scratch = tables.scratch_size + NEAREST
        rays = tables.count * len(tables.beams)
        self.arrays = self._drone_arrays(width, rays) | self._world_arrays()
        self.arrays |= {"azimuths": tables.azimuths, "beams": tables.beams}
        self.arrays["scratch"] = aligned_zeros((self.threads, scratch))
        self._addresses = np.array([_address(name, self.arrays[name]) for name in ARRAYS], np.int64)
        sizes = self._sizes(tables, width, scratch)
        self.parameters = make_parameters(settings, seed, auto_reset, sizes)
        self._no_action = np.zeros((self.num_envs, 3), np.float32)
        self.assign_worlds()
        # lanes beyond the last drone must stay finite
        self.arrays["state"][:, ATTITUDE] = 1.0
        # No chunks: only compiles. In a forked child, compiling could deadlock.
        step_kernel.step_serial(*self._arguments(self._addresses, self._no_action, 0, False), 0)
        self.begin_worlds()

    def _drone_arrays(self, width: int, rays: int) -> dict[str, NDArray[Any]]:
        drones, delay = self.num_envs, self.settings.sensor.observation_delay
        kept = (drones, delay + 1, width) if delay else (1,)  # an address is needed in any case
        held = (drones, rays) if lidar_interval(self.settings) > 1 else (1,)
        return {
            "state": aligned_zeros((-(-drones // WIDTH), FIELDS, WIDTH)),
            "counters": np.zeros((drones, COUNTERS), np.int32),
            "running": np.zeros((drones, len(STATISTICS)), np.float32),
            "history": np.zeros((drones, self.settings.drone.delay + 1, 3), np.float32),
            "observed": np.zeros(kept, np.float32),
            "scans": np.zeros(held, np.float32),
            "airframe": airframe_constants(self.settings.drone, self.settings.sim.dt),
        }

    def _world_arrays(self) -> dict[str, NDArray[Any]]:
        pool, number = self.pool, len(self.pool.worlds)
        shape, substeps = pool.moving_origins.shape, self.settings.env.action_repeat
        return {
            "shapes": pool.shapes,
            "near": pool.near,
            "near_start": pool.near_start,
            "points": pool.points,
            "point_ranges": pool.point_ranges,
            "chances": np.cumsum(np.full(number, 1 / number)).astype(np.float32),
            "counts": pool.moving_counts,
            "sizes": pool.moving_sizes,
            "origins": pool.moving_origins,
            "positions": aligned_zeros(shape),
            "velocities": aligned_zeros(shape),
            "goals": aligned_zeros(shape),
            "tracks": aligned_zeros((2, substeps, number, 2, 3, pool.padded_moving)),
        }

    def _sizes(self, tables: LidarTables, width: int, scratch: int) -> Mapping[str, int]:
        return {
            "worlds": len(self.pool.worlds),
            "moving": self.pool.padded_moving,
            "azimuths": tables.count,
            "padded_azimuths": tables.azimuths.shape[1],
            "beams": len(tables.beams),
            "row": width,
            "scratch": scratch,
        }

    def _arguments(
        self, outputs: NDArray[np.int64], actions: NDArray[np.float32], half: int, flying: bool
    ) -> tuple[Any, ...]:
        step = step_kernel.step_address()
        return step, self.parameters, self._addresses, outputs, actions, half, self.time, flying

    # ------------------------------------------------------------------ worlds

    def assign_worlds(self) -> None:
        """Spread the drones over the worlds, as at the first episode."""
        self.arrays["counters"][:, WORLD] = np.arange(self.num_envs) % len(self.pool.worlds)

    def begin_worlds(self) -> None:
        """Put the moving obstacles at their origins, and compute their first step."""
        self.arrays["positions"][:] = self.arrays["origins"]
        self.arrays["velocities"][:] = 0
        self.arrays["goals"][:] = 0
        self.arrays["tracks"][..., 0, :, :] = self.pool.moving_origins
        self.arrays["tracks"][..., 1, :, :] = 0
        step_kernel.begin_worlds(self.parameters, self._addresses)
        self.half, self.time = 0, self.settings.env.action_repeat

    def tracks(self, world: int) -> NDArray[np.float32]:
        """Return where the moving obstacles of a world are, a copy, (2, 3, D): positions, then
        velocities.
        """
        count = int(self.pool.moving_counts[world])
        now: NDArray[np.float32] = self.arrays["tracks"][self.half, -1, world, ..., :count]
        return now.copy()

    # ------------------------------------------------------------------ drones

    def reset(self, mask: NDArray[np.bool_]) -> None:
        """Begin a new episode where the mask holds."""
        step_kernel.reset_where(self.parameters, self._addresses, mask)

    def place(
        self, mask: NDArray[np.bool_], starts: NDArray[np.float32], targets: NDArray[np.float32]
    ) -> None:
        """Begin an episode from given starts to given targets, (N, 3), where the mask holds."""
        step_kernel.place_where(self.parameters, self._addresses, mask, starts, targets)

    def fly(self, actions: NDArray[np.float32], step: Step) -> None:
        """Fly all drones for one decision, and write what comes of it into the buffers."""
        self._run(actions, step, 1 - self.half, flying=True)
        self.half = 1 - self.half
        self.time += self.settings.env.action_repeat

    def observe(self, step: Step) -> None:
        """Write what all drones observe now into the buffers."""
        self._run(self._no_action, step, self.half, flying=False)

    def _run(self, actions: NDArray[np.float32], step: Step, half: int, *, flying: bool) -> None:
        # The threads of a parent process do not exist in a forked child: OpenMP would abort it.
        alone = self.threads == 1 or os.getpid() != IMPORTED_BY
        run = step_kernel.step_serial if alone else step_kernel.step_parallel
        run(*self._arguments(step.addresses, actions, half, flying), self.threads)

    def field(self, field: int, size: int) -> NDArray[np.float32]:
        """Return a copy of a field of all drones, (N, size); `kernels/layout.py` names them."""
        values = self.arrays["state"][:, field : field + size]
        return np.ascontiguousarray(values.transpose(0, 2, 1).reshape(-1, size)[: self.num_envs])

    def set_field(self, field: int, rows: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Write a field of some drones, (len(rows), size)."""
        size = values.shape[1]
        self.arrays["state"][rows // WIDTH, field : field + size, rows % WIDTH] = values


def _threads_of(settings: NavigationSettings) -> int:
    """Return how many threads step the drones: never more than there are blocks of them."""
    started = 1 if settings.sim.num_threads == 1 else start_threads()
    threads = settings.sim.num_threads or started
    return max(1, min(threads, -(-settings.env.num_envs // WIDTH)))


def _address(name: str, array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise StateError(f"{name} is not contiguous; the kernel reads it flat")
    return int(array.ctypes.data)
